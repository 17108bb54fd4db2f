"""How one rank spends its time: in which share of stack samples it waits for other ranks, for data, and where it works.

| it stands in | counts as |
|---|---|
| a collective, a store, a device synchronisation | waiting |
| a line of its own that takes a value off the GPU: `loss.item()` | waiting |
| `loss.backward()` off the CPU: reductions of gradients end inside | waiting |
| a DataLoader's queue | loading |
| any other line | working at that line |

A value is taken off the GPU by C++ functions, so that the innermost Python frame is the line itself. They return when all that the GPU
was given before is done, collectives included.

Pure; made of what `py-spy record` counts, which stops no process.
"""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from typing import NamedTuple

import msgspec

from mldebug.capture.folded_stacks import CountedStack
from mldebug.capture.frames import inner, owner_of, principal, python_frames, site
from mldebug.capture.packages import Owner
from mldebug.core.model import MAIN_THREAD, Frame, Role, ThreadStack
from mldebug.diagnosis.classify.tables.matching import match_calls
from mldebug.diagnosis.classify.tables.python_calls import BACKWARD
from mldebug.goodput.evidence import RankEvidence, RankShares

MOST_FETCHES = 8  # lines of one rank that are read
_FETCH = re.compile(r"\.(?:item|tolist|cpu|numpy)\(\s*\)|\bsynchronize\(|\.to\(\s*[\"']cpu[\"']")
PLACES = 8  # lines of the job that are kept for one rank
WAITING, LOADING, BACKWARDS, EXCHANGE = "waiting", "loading", "backward", "exchange"
ON_GPU = "gpu"

_WAITS = {"point_to_point": EXCHANGE, "device_sync": ON_GPU}


class CodeLine(NamedTuple):
    """A line of a source file, as the process names the file."""

    path: str
    line: int


def usual_lines(stacks: Sequence[CountedStack]) -> tuple[CodeLine, ...]:
    """The lines of code at which stack samples of a rank ended most often: at most 8, the most frequent first. Counted are samples whose innermost frame
    is in the job's own code, not in a library; a line in less than a twentieth of all samples is left out.
    """
    found: Counter[CodeLine] = Counter()
    for one in stacks:
        frames = python_frames(one.stack.frames)
        if frames and frames[0].path and owner_of(frames[0]) is Owner.JOB:
            found[CodeLine(frames[0].path, frames[0].line)] += one.count
    least = sum(one.count for one in stacks) / 20
    return tuple(line for line, count in found.most_common(MOST_FETCHES) if count >= least)


def is_fetch(source: str) -> bool:
    """Whether this line of source code takes a value off the GPU, and so waits for it. `print(loss)` and `if loss > 3` do so, too, but
    their text does not show it.
    """
    return _FETCH.search(source.partition("#")[0]) is not None


def rank_shares(
    rank: int,
    pid: int,
    stacks: Sequence[CountedStack],
    on_cpu: Sequence[CountedStack],
    delayed: float = 0.0,
    evidence: RankEvidence = RankEvidence(),  # noqa: B008 - a value
    fetches: Collection[CodeLine] = (),
) -> RankShares | None:
    """How a rank spent its time (waiting, loading data, working), from samples of its stacks: all of them (`stacks`), and those in
    which the thread was on a CPU (`on_cpu`), taken at the same rate for the same time.

    `pid`: of its process. `delayed`: share of the time in which it was ready to run and no CPU was free. `evidence`: what else was
    measured of it, kept as it is. `fetches`: lines of the job's code that get the next batch. None where no thread does what can
    be taken for the process's main work.
    """
    tid = _speaker(stacks, pid)
    every, active = _by_kind(stacks, tid, fetches), _by_kind(on_cpu, tid, fetches)
    total = sum(every.values())
    if tid is None or not total:
        return None
    backward, exchanging, on_gpu = (_of(every, kind) for kind in (BACKWARDS, EXCHANGE, ON_GPU))
    idle_backward = max(0, backward - _of(active, BACKWARDS))
    waiting = _of(every, WAITING) + exchanging + on_gpu
    spinning = sum(_of(active, kind) for kind in (WAITING, EXCHANGE, ON_GPU))
    at_work = Counter({one.place: n for one, n in every.items() if not one.kind})
    at_work["loss.backward()"] += backward - idle_backward
    kept = {place: n for place, n in at_work.most_common(PLACES) if n}
    return RankShares(
        rank=rank,
        samples=total,
        waiting=(waiting + idle_backward) / total,
        idle_waiting=(max(0, waiting - spinning) + idle_backward) / total,
        loading=_of(every, LOADING) / total,
        exchanging=exchanging / total,
        on_gpu=on_gpu / total,
        places={place: n / total for place, n in kept.items()},
        asleep={
            place: max(0, n - active[_Standing("", place)]) / total
            for place, n in kept.items()
            if _Standing("", place) in every
        },
        lines=_usual_lines(stacks, tid, kept),
        delayed=delayed,
        evidence=evidence,
    )


def in_proportion(stacks: Iterable[CountedStack], share: float) -> tuple[CountedStack, ...]:
    """The stacks with this share of their samples: those on a CPU, of a thread that is there nearly always, or nearly never."""
    part = [msgspec.structs.replace(one, count=round(one.count * share)) for one in stacks]
    return tuple(one for one in part if one.count)


def is_by_main_thread(stacks: Sequence[CountedStack], pid: int) -> bool:
    """Whether it is the main thread that shows what the process does."""
    tid = _speaker(stacks, pid)
    names = {one.stack.name for one in stacks if one.stack.tid == tid}
    return tid is not None and (MAIN_THREAD in names or tid == pid)


class _Standing(NamedTuple):
    """What a thread was found to do; `place`: the function of the job in which it works."""

    kind: str
    place: str = ""


Kinds = Counter[_Standing]


def _of(kinds: Kinds, wanted: str) -> int:
    return sum(count for one, count in kinds.items() if one.kind == wanted)


def _usual_lines(
    stacks: Iterable[CountedStack], tid: int, places: Container[str]
) -> dict[str, int]:
    lines: dict[str, Counter[int]] = {}
    for one in stacks:
        frame = site(python_frames(one.stack.frames)) if one.stack.tid == tid else None
        if frame is not None and _name(frame) in places:
            lines.setdefault(_name(frame), Counter())[frame.line] += one.count
    return {place: found.most_common(1)[0][0] for place, found in lines.items()}


def _name(frame: Frame) -> str:
    return frame.place if frame.function == "<module>" else f"{frame.function} ({frame.file})"


def _speaker(stacks: Sequence[CountedStack], pid: int) -> int | None:
    """The thread that shows what the process does, by the stack in which each stood most often."""
    usual: dict[int, CountedStack] = {}
    for one in stacks:
        known = usual.get(one.stack.tid)
        if known is None or one.count > known.count:
            usual[one.stack.tid] = one
    found = principal(tuple(one.stack for one in usual.values()), pid)
    return found.tid if found is not None else None


def _by_kind(
    stacks: Iterable[CountedStack], tid: int | None, fetches: Collection[CodeLine]
) -> Kinds:
    found: Kinds = Counter()
    for one in stacks:
        if one.stack.tid == tid:
            found[_kind(one.stack, fetches)] += one.count
    return found


def _kind(stack: ThreadStack, fetches: Collection[CodeLine]) -> _Standing:
    frames = python_frames(stack.frames)
    place = site(frames)
    if frames and CodeLine(frames[0].path, frames[0].line) in fetches:
        return _Standing(ON_GPU)
    region = inner(frames, place)
    match = match_calls(region)
    if match is not None and match[0].role is Role.WAITING:
        return _Standing(_WAITS.get(match[0].name, WAITING))
    if match is not None and match[0].name in ("dataloader", "dataloader_exit"):
        return _Standing(LOADING)
    if match is None and any(map(_is_backward, region)):
        return _Standing(BACKWARDS)
    shown = place or (frames[0] if frames else None)
    return _Standing("", _name(shown) if shown is not None else "native code")


def _is_backward(frame: Frame) -> bool:
    name = frame.function.rpartition(".")[2]
    return bool(BACKWARD.file.fullmatch(frame.file) and BACKWARD.function.fullmatch(name))
