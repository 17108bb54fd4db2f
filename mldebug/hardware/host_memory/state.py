"""Host memory as people see it: each limit, its growth, when it will be reached, and which rank grows most."""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from mldebug.core.model import Gap, MeasuredData
from mldebug.core.units import duration_words, size_words
from mldebug.hardware.host_memory.parse import Level, RankMemory

FULL = 0.95  # of a limit
FLAT = 1024.0  # bytes a second that are no growth


class LevelState(MeasuredData, frozen=True, kw_only=True):
    """One memory limit (of the host or a cgroup) with its forecast: growth, and seconds until it is reached."""

    level: Level
    growth: float | None = None  # bytes a second; None: not watched for long enough
    seconds_left: float | None = None  # None: it does not grow, or nobody knows
    alarm: bool = False


class NodeMemory(MeasuredData, frozen=True, kw_only=True):
    """The memory of the host, its control groups and the ranks at one moment."""

    at: float = 0.0  # unix
    levels: tuple[LevelState, ...] = ()
    ranks: tuple[RankMemory, ...] = ()
    unread: int = 0  # ranks of which nothing could be read
    gaps: tuple[Gap, ...] = ()  # control groups whose limit may not be read: there may be one


def judged(level: Level, growth: float | None, horizon: float) -> LevelState:
    """The forecast for one limit.

    `growth`: bytes per second, None: not known. `horizon`: an alert is due this many seconds before
    the limit is reached, or when it nearly is.
    """
    left = max(0, level.limit - level.used) / growth if growth and growth > FLAT else None
    soon = left is not None and left <= horizon
    return LevelState(level=level, growth=growth, seconds_left=left, alarm=soon or level.used >= FULL * level.limit)  # fmt: skip


def alarms(memory: NodeMemory) -> Iterator[str]:
    """One sentence for each limit that is reached or soon will be, the most urgent first."""
    bad = [level for level in memory.levels if level.alarm]
    for one in sorted(bad, key=lambda it: it.seconds_left if it.seconds_left is not None else 0.0):
        yield level_sentence(one, memory.ranks)


def level_sentence(one: LevelState, ranks: Sequence[RankMemory]) -> str:
    """How full the limit is, when it will be reached, and which ranks grow most, in one sentence."""
    return f"{level_name(one.level)}: {_level(one)}{_grower(ranks)}"


def of_runs(memory: NodeMemory, runs: Collection[str]) -> NodeMemory:
    """The memory state reduced to the ranks of these runs (ids)."""
    mine = tuple(rank for rank in memory.ranks if rank.run in runs)
    return msgspec.structs.replace(memory, ranks=mine)


def _level(one: LevelState) -> str:
    level = one.level
    used = f"{size_words(level.used)} of {size_words(level.limit)} in use"
    if one.seconds_left is None or not one.growth:
        return used
    more = f"{size_words(one.growth * 60)} more a minute"
    return f"{used}, {more}: out of memory in {left_words(one.seconds_left)}"


def left_words(seconds: float) -> str:
    """Seconds in words, rounded as a forecast deserves: `8 min 40 s`, `3 h 20 min`, `15 d 8 h`."""
    return duration_words(round(seconds))


def level_name(level: Level) -> str:
    """The name of the limit at the beginning of a sentence: the host's memory, or a control group's path."""
    return "host memory" if level.scope == "host" else f"memory of cgroup {level.name}"


def _grower(ranks: Sequence[RankMemory]) -> str:
    growing = [rank for rank in ranks if rank.growth and rank.growth > FLAT]
    if not growing:
        return ""
    most = max(growing, key=lambda one: one.growth or 0.0)
    return f"; rank {most.rank} grows most, {size_words((most.growth or 0.0) * 60)} a minute"
