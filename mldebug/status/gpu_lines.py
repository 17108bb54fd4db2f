"""GPUs and kernel log in the lines of `mldebug status`: one line where all is well. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mldebug.core.units import duration_words
from mldebug.hardware.health.sentences import MAX_LINES, complaints, headline
from mldebug.hardware.kernel_log.attribution import RankEvent, sentence
from mldebug.status.gpu_view import all_names
from mldebug.status.snapshot import RunState, Snapshot


class StatusLine(NamedTuple):
    """A line that `mldebug status` prints about GPUs. `bad`: it is bad news, and shown so. `at`: unix time of the event that it tells of;
    None: it is so now.
    """

    text: str
    bad: bool = False
    at: float | None = None


def hardware_lines(snapshot: Snapshot, now: float) -> Iterator[StatusLine]:
    """Yield the lines about GPUs: how many there are and whether they are healthy, then one for each that is not, the worst
    first, at most 8. `now`: unix time.
    """
    if snapshot.gpus_released_until is not None:
        left = _duration(snapshot.gpus_released_until - now)
        yield StatusLine(
            f"it has let go of the GPUs for another {left}: {snapshot.gpus_released_why}", True
        )
        yield StatusLine("  take them up again: mldebug gpus release --end")
    elif snapshot.gpus is not None and (snapshot.gpus.gpus or snapshot.gpus.lost):
        yield _headline(snapshot)
    found = complaints(snapshot.health, all_names(snapshot.gpus, snapshot.gpu_count), now)
    for line in found[:MAX_LINES]:
        yield StatusLine(line.text, True, line.at)
    if len(found) > MAX_LINES:
        yield StatusLine(f"… and {len(found) - MAX_LINES} more: mldebug doctor --gpus", True)


def _headline(snapshot: Snapshot) -> StatusLine:
    uuids = [one.uuid for one in snapshot.gpus.gpus] if snapshot.gpus else []
    missing = len(snapshot.gpu_count.missing) if snapshot.gpu_count else 0
    silent = len(snapshot.gpu_count.silent) if snapshot.gpu_count else 0
    gone = f", {missing} missing" if missing else ""
    gone += f", {silent} without an answer" if silent else ""
    return StatusLine(f"{headline(uuids, snapshot.health)}{gone}", bool(missing or silent))


def rank_lines(events: Iterable[RankEvent], run: RunState, now: float) -> Iterator[str]:
    """Yield a line for each kernel or driver event that concerns ranks of this run: the newest 8, the oldest of them first.
    `now`: unix time.
    """
    mine = _against(events, run)
    if len(mine) > MAX_LINES:
        yield f"… {len(mine) - MAX_LINES} kernel events before"
    for one in mine[-MAX_LINES:]:
        yield f"{_duration(now - one.burst.last_at)} ago: {_event_words(one, run)}"


def rank_sentences(events: Iterable[RankEvent], run: RunState) -> tuple[str, ...]:
    """Sentences for the API about GPU events of the run's ranks, without the time since them."""
    return tuple(_event_words(one, run) for one in _against(events, run)[-MAX_LINES:])


def _against(events: Iterable[RankEvent], run: RunState) -> list[RankEvent]:
    return [event for event in events if event.run == run.id and event.rank is not None]


def _event_words(one: RankEvent, run: RunState) -> str:
    """With the rank's last frame, and beside the stall, where the run is suspected of one."""
    frame = run.frames.get(one.rank, "") if one.rank is not None else ""
    suspected = run.progress_at if run.frames else None
    return sentence(one, run.incident_since or suspected, frame)


def _duration(seconds: float) -> str:
    return duration_words(int(seconds))
