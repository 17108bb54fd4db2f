"""`mldebug doctor --gpus` as lines: what works, what to do, the health of each component, Xids (driver errors), which rank uses
which GPU. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rich.text import Text

from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.redact import clean
from mldebug.core.units import duration_words
from mldebug.hardware.health.model import (
    ACTION_WORDS,
    ComponentHealth,
    HealthState,
    SuggestedAction,
)
from mldebug.hardware.health.sentences import NODE, GpuName, complaints, dated_reason
from mldebug.hardware.kernel_log.attribution import RankEvent, sentence
from mldebug_agents.support.doctor.gpus import GpuExamination

MAX_XIDS = 10
MAX_USERS = 64
STYLES = {"unhealthy": "bold red", "degraded": "yellow", "unknown": "dim", "healthy": "green"}
_ORDER = (HealthState.UNHEALTHY, HealthState.DEGRADED, HealthState.UNKNOWN, HealthState.HEALTHY)
_Kind = tuple[HealthState, str, str, SuggestedAction]


def gpu_lines(found: GpuExamination, now: float) -> Iterator[Text]:
    """The lines that `mldebug doctor --gpus` prints below the table of checks. `now`: unix time."""
    names = found.glance.names()
    wrong = complaints(found.health, names, now)
    yield from _section("To do", [Text(f"  {one.text}") for one in wrong])
    yield from _section("Health", list(_health(found.health, names, now)))
    yield from _section(f"Xids of the last hours ({len(found.xids)})", list(_xids(found.xids, now)))
    yield from _section("Who works where", list(_users(found, names)))


def _section(title: str, lines: Sequence[Text]) -> Iterator[Text]:
    if lines:
        yield Text(f"\n{title}", style="bold")
        yield from lines


def _health(
    health: Iterable[ComponentHealth], names: Mapping[str, GpuName], now: float
) -> Iterator[Text]:
    """The worst first; the same of several GPUs is one line, and so is all that is simply healthy."""
    groups: dict[_Kind, list[ComponentHealth]] = {}
    for one in health:
        key = (one.state, one.component, dated_reason(one, now), one.action)
        groups.setdefault(key, []).append(one)
    fine: list[str] = []
    for kind, some in sorted(groups.items(), key=lambda item: _place(item[0])):
        state, component, reason, action = kind
        if state is HealthState.HEALTHY and not reason:
            fine.append(component)
            continue
        todo = f" → {ACTION_WORDS[action]}" if action is not SuggestedAction.NONE else ""
        yield _line(state, f"{component} of {_subject(some, names)}: {reason}{todo}")
    if fine:
        yield _line(HealthState.HEALTHY, ", ".join(dict.fromkeys(fine)))


def _place(kind: _Kind) -> tuple[int, int]:
    """The worst state first, in it the greatest action."""
    return _ORDER.index(kind[0]), -list(SuggestedAction).index(kind[3])


def _line(state: HealthState, words: str) -> Text:
    return Text.assemble("  ", (f"{state.value:9}", STYLES[state.value]), f"  {clean(words, 500)}")


def _subject(some: Sequence[ComponentHealth], names: Mapping[str, GpuName]) -> str:
    """`GPU 3 (0000:3b:00.0)`, `GPUs 0-7`, `this node`."""
    indices = [one.gpu for one in some if one.gpu is not None]
    if not indices:
        return some[0].uuid or NODE
    if len(indices) > 1:
        return f"GPUs {shorten_ranks(fold_ranks(indices))}"
    return str(names.get(some[0].uuid, GpuName(indices[0])))


def _xids(events: Sequence[RankEvent], now: float) -> Iterator[Text]:
    """The newest last."""
    if len(events) > MAX_XIDS:
        yield Text(f"  … {len(events) - MAX_XIDS} before", style="dim")
    for event in events[-MAX_XIDS:]:
        at = event.burst.last_at
        moment = datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")
        ago = duration_words(int(now - at))
        yield Text(clean(f"  {moment} ({ago} ago): {sentence(event)}", 500))


def _users(found: GpuExamination, names: Mapping[str, GpuName]) -> Iterator[Text]:
    ordered = sorted(found.users, key=lambda one: (one.job_id, one.rank))
    for one in ordered[:MAX_USERS]:
        gpu = names.get(one.uuid)
        words = f" ({one.words})" if one.words else ""
        which = str(gpu) if gpu else f"GPU {one.uuid}"
        yield Text(clean(f"  {which}: rank {one.rank} of {one.job}{words}", 300))
    for line in found.unjoined[:MAX_USERS]:
        yield Text(clean(f"  {line}", 300), style="yellow")
