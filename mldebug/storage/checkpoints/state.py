"""What is shown of the checkpoints of a job: the newest ones, what would be lost, and what could not be read."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from mldebug.core.model import Gap, MeasuredData
from mldebug.core.redact import clean
from mldebug.core.units import duration_words, size_words
from mldebug.storage.checkpoints.history import (
    CLOSE,
    SKEW,
    CheckpointSeries,
    KnownCheckpoint,
    size_change,
)
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.retention import could_go

LISTED = 8  # checkpoints of a series that are shown one by one
COUNTS = (1, 2, 3, 5)  # of kept checkpoints for which it is told what the others would free
KEPT = 3


class SeriesState(MeasuredData, frozen=True, kw_only=True):
    """One series of checkpoints as the snapshot has it. Values that are not known are None."""

    run: str = ""  # id of the job; "": a folder of the configuration
    folder: str
    series: str  # `checkpoint-#`
    last: KnownCheckpoint | None = None  # the newest complete one that is there
    newest: KnownCheckpoint | None = None  # where that is another one
    listed: tuple[KnownCheckpoint, ...] = ()  # the newest first, at most `LISTED`
    counts: dict[str, int] = {}  # state -> checkpoints that are there
    left_bytes: int = 0  # size of incomplete checkpoints
    bytes: int = 0  # of all that are there
    would_free: dict[
        int, int
    ] = {}  # bytes of those that could go if the newest 1, 2, 3, 5 whole ones stay
    could_go: tuple[
        KnownCheckpoint, ...
    ] = ()  # if the newest `KEPT` stay: the oldest first, at most `LISTED`
    size_change: float | None = None  # of the last complete one against those before it, a ratio
    period: float | None = None  # seconds between two checkpoints
    lost_seconds: float | None = None  # since the last complete one was begun
    lost_steps: int | None = None
    skew: float = 0.0  # seconds by which the clock of the file system is ahead
    trouble: str = ""  # why this is not known, or old
    gaps: tuple[Gap, ...] = ()
    sentence: str = ""


def series_state(series: CheckpointSeries, name: tuple[str, str, str], now: float, *, step: int | None = None, trouble: str = "", gaps: tuple[Gap, ...] = ()) -> SeriesState:  # fmt: skip
    """The state of a series at unix time `now`.

    `name`: (run, folder, series); `step`: the run's; `trouble`: why the last reading was
    incomplete, "" if it was not.
    """
    run, folder, kind = name
    checkpoints, whole = series.checkpoints, series.complete
    last = whole[-1] if whole else None
    newest = checkpoints[-1] if checkpoints and checkpoints[-1] is not last else None
    seconds, steps = lost(last, now, step) if last and not trouble else (None, None)
    counts = {str(state): len(series.of(state)) for state in Completeness}
    state = SeriesState(
        run=run,
        folder=folder,
        series=kind,
        last=last,
        newest=newest,
        listed=checkpoints[::-1][:LISTED],
        counts=counts,
        bytes=sum(one.size for one in checkpoints),
        would_free={keep: sum(one.size for one in could_go(checkpoints, keep)) for keep in COUNTS},
        could_go=could_go(checkpoints, KEPT)[:LISTED],
        left_bytes=sum(one.size for one in series.of(Completeness.INCOMPLETE)),
        size_change=size_change(last, series.memory.complete) if last else None,
        period=series.period,
        lost_seconds=seconds,
        lost_steps=steps,
        skew=series.memory.skew if abs(series.memory.skew) > SKEW else 0.0,
        trouble=trouble,
        gaps=gaps,
    )
    return msgspec.structs.replace(state, sentence="; ".join(_sentences(state, now)))


def lost(last: KnownCheckpoint, now: float, step: int | None) -> tuple[float, int | None]:
    """(seconds, steps) of work since this checkpoint was begun, which a stop at `now` would lose; steps None where not known.

    Work done while a checkpoint is written is not in it.
    """
    since = last.began if last.began is not None else last.ended
    behind = step - last.step if step is not None and last.step is not None else None
    return max(0.0, now - since), behind if behind is not None and behind >= 0 else None


def _sentences(state: SeriesState, now: float) -> Iterator[str]:
    if state.last is not None:
        yield f"last complete checkpoint {_name(state.last)} {_ago(now - state.last.ended)}{_cost(state.last)}"
    elif not state.trouble:
        yield f"no complete checkpoint in {clean(state.folder, 200)}"
    if state.trouble:
        yield f"what would be lost is not known: {state.trouble}"
    elif loss := lost_words(state):
        yield f"if it dies now {loss} are lost"
    if state.newest is not None:
        yield _newest(state.newest)
    if state.size_change is not None and abs(state.size_change) > CLOSE:
        more = "larger" if state.size_change > 0 else "smaller"
        yield f"{abs(state.size_change):.0%} {more} than those before it"
    if state.left_bytes and not (state.newest and state.newest.state is Completeness.INCOMPLETE):
        yield f"{size_words(state.left_bytes)} left over of saves that died"


def lost_words(state: SeriesState) -> str:
    """What would be lost now: `at most 12 min of work and 1,200 steps`; "" where that is not known."""
    if state.lost_seconds is None:
        return ""
    steps = f" and {state.lost_steps:,} steps" if state.lost_steps is not None else ""
    unsure = state.newest is not None and state.newest.state is Completeness.UNKNOWN
    return f"{'at most ' if unsure else ''}{_duration(state.lost_seconds)} of work{steps}"


def _newest(checkpoint: KnownCheckpoint) -> str:
    sentences = {
        Completeness.WRITING: f"{_name(checkpoint)} is being written, {size_words(checkpoint.size)} so far",
        Completeness.INCOMPLETE: f"{_name(checkpoint)} is incomplete: {checkpoint.why} ({size_words(checkpoint.size)} left over)",
        Completeness.UNKNOWN: f"{_name(checkpoint)}: nobody can say whether it is complete: {checkpoint.why}",
    }
    return sentences.get(checkpoint.state, f"{_name(checkpoint)} is complete")


def _name(checkpoint: KnownCheckpoint) -> str:
    return clean(checkpoint.name, 80)


def _cost(checkpoint: KnownCheckpoint) -> str:
    seconds, rate = checkpoint.seconds, checkpoint.rate
    if seconds is None or rate is None:
        return f" ({size_words(checkpoint.size)})"
    return f" ({size_words(checkpoint.size)} in {_duration(seconds)}, {size_words(rate)}/s)"


def _ago(seconds: float) -> str:
    return f"{_duration(seconds)} ago"


def _duration(seconds: float) -> str:
    return duration_words(round(seconds))


def lines_of(states: Iterable[SeriesState], run: str) -> list[str]:
    """Sentences about the checkpoints of one run; run "": those of folders named in the configuration."""
    return [state.sentence for state in states if state.run == run and state.sentence]


def newest_of(states: Sequence[SeriesState], run: str) -> SeriesState | None:
    """The run's series with the newest complete checkpoint, from which the run would resume; None where there is none."""
    found = [state for state in states if state.run == run and state.last]
    return max(found, key=lambda one: one.last.ended if one.last else 0.0, default=None)
