"""Compare two captures of one job, rank by rank: which ranks stand in the same place, work there, moved, disappeared or are new.

Pure.

`compare` gives the data, `mldebug.incidents.report.changes` the words.
"""

from collections.abc import Iterator
from typing import NamedTuple

from mldebug.capture.frames import comparable, principal, python_frames, site
from mldebug.capture.movement import ProcessSample, movement
from mldebug.core.model import Frame, Movement, NodeCapture, ProcessCapture, RankCapture
from mldebug.core.report_model import Change

STILL_CPU = 0.01  # of the time: a thread that waits uses less
STILL_SWITCHES = 2.0  # a second: of a wait that looks up now and then
STILL_IO = 1 << 20  # bytes: threads beside the training write some


class RankChange(NamedTuple):
    """What became of one rank between two captures.

    `before` and `after`: the frame it stood in, only where it moved. `counters`: CPU time, switches
    and I/O between the captures; None where they cannot be compared.
    """

    rank: int
    change: Change
    before: str = ""
    after: str = ""
    counters: Movement | None = None


def compare(first: NodeCapture, later: NodeCapture) -> tuple[RankChange, ...]:
    """What became of every rank that is in either capture, in order of rank."""
    old = {one.identity.rank: one for one in first.ranks}
    new = {one.identity.rank: one for one in later.ranks}
    seconds = later.taken_at - first.taken_at
    return tuple(_changes(old, new, seconds))


def is_active(counters: Movement | None) -> bool:
    """Whether a process's counters show more than waiting: CPU time, many context switches, or I/O.

    False where there are none.
    """
    if counters is None:
        return False
    wakes = counters.switches > STILL_SWITCHES * max(1.0, counters.span_seconds)
    return counters.cpu_ratio >= STILL_CPU or wakes or counters.io_chars >= STILL_IO


def _changes(
    old: dict[int, RankCapture], new: dict[int, RankCapture], seconds: float
) -> Iterator[RankChange]:
    for rank in sorted(old.keys() | new.keys()):
        before, after = old.get(rank), new.get(rank)
        if after is None:
            yield RankChange(rank, Change.GONE)
        elif before is None:
            yield RankChange(rank, Change.CAME)
        elif _process(before) != _process(after):
            yield RankChange(rank, Change.REPLACED)
        else:
            yield _change(rank, before.process, after.process, seconds)


def _process(one: RankCapture) -> tuple[int, int]:
    return one.identity.pid, one.identity.start_ticks


def _change(rank: int, before: ProcessCapture, after: ProcessCapture, seconds: float) -> RankChange:
    samples = [
        ProcessSample(0.0, before.state, before.stacks),
        ProcessSample(seconds, after.state, after.stacks),
    ]
    counters = movement(after.pid, samples)
    old, new = _frames(before), _frames(after)
    if not old or not new:
        return RankChange(rank, Change.UNSEEN, counters=counters)
    if comparable(old) != comparable(new):
        return RankChange(rank, Change.MOVED, *_places(old, new), counters)
    change = Change.ACTIVE if is_active(counters) else Change.UNCHANGED
    return RankChange(rank, change, counters=counters)


def _frames(process: ProcessCapture) -> tuple[Frame, ...]:
    stack = principal(process.stacks or process.native, process.pid)
    return python_frames(stack.frames) if stack else ()


def _places(old: tuple[Frame, ...], new: tuple[Frame, ...]) -> tuple[str, str]:
    """Where the job's own code stood and stands; the innermost frames where that is one line, else where they part."""
    outer = zip(reversed(old), reversed(new), strict=False)
    pairs = [(site(old), site(new)), (old[0], new[0]), *outer]
    both = [(one, other) for one, other in pairs if one and other]
    apart = ((one, other) for one, other in both if comparable([one]) != comparable([other]))
    before, after = next(apart, (old[0], new[0]))
    return before.label, after.label
