"""The class of every rank: from its own capture, and from those of ranks in the same position."""

import re
from collections.abc import Mapping

import msgspec

from mldebug.capture.frames import comparable, is_own, owner_of, principal, python_frames
from mldebug.capture.packages import Owner
from mldebug.core.model import (
    Classification,
    ClassifiedRank,
    Frame,
    Group,
    LostRank,
    NodeCapture,
    RankCapture,
    Role,
)
from mldebug.core.ranksets import fold_ranks
from mldebug.diagnosis.classify.awaited.file_locks import as_victim
from mldebug.diagnosis.classify.awaited.possible_holders import behind_locks
from mldebug.diagnosis.classify.awaited.tasks import without_task
from mldebug.diagnosis.classify.awaited.threads import on_thread, training_thread
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.rank_class import classify
from mldebug.diagnosis.classify.tables.python_calls import BACKWARD

MIN_INFERRED = 3
"""Fewest ranks in one unexplained position that count as waiting in native code."""
ON_ONE_LINE = "on the same line as most ranks, outside Python, without the GIL: taken as a wait"
INSIDE = "inside a framework or PyTorch, where a call waits for others, while another rank stands elsewhere: taken as a wait"
BACKWARD_OF_MOST = "inside backward, where DDP waits for the gradients of ranks that are in a collective elsewhere: taken as a wait"
AWAY = ("collective", "init", "store", "destroy")
"""Waits of the host for all others, outside of backward."""
OPEN = ("native_code", "idle", "backward", "compile", "autotune")
"""Classes that one look at a Python stack cannot tell from a wait."""

Position = tuple[tuple[str, ...], str, str]


def classified(captures: tuple[NodeCapture, ...]) -> list[ClassifiedRank]:
    """All ranks with their classes: those that were captured, and those that have ended."""
    return inferred_waits(_share_native([*_captured(captures), *_lost(captures)]))


def _captured(captures: tuple[NodeCapture, ...]) -> list[ClassifiedRank]:
    trains = training_thread([rank for one in captures for rank in one.ranks], classify)
    return [
        ClassifiedRank(
            rank=rank.identity.rank,
            node=capture.node,
            pid=rank.identity.pid,
            is_=as_victim(_class_of(rank, trains), rank.identity.rank),
            capture=rank,
        )
        for capture in captures
        for rank in capture.ranks
    ]


def _class_of(rank: RankCapture, trains: str) -> Classification:
    """The class of a rank, or that of its thread that trains."""
    alone = on_thread(rank, trains) if trains else rank
    found = classify(alone)
    if alone is rank:
        return found
    thread = next(one.name for one in rank.process.stacks if one.tid == alone.process.stacks[0].tid)
    shown = re.sub(r"-\d+-\d+$", "", thread)  # of a pool: the process and a counter
    doing = f"{found.doing}, in its thread {shown}"
    return msgspec.structs.replace(found, doing=doing, thread=thread)


def _lost(captures: tuple[NodeCapture, ...]) -> list[ClassifiedRank]:
    return [
        ClassifiedRank(rank=lost.rank, node=capture.node, pid=lost.pid, is_=_lost_class(lost))
        for capture in captures
        for lost in capture.job.lost
    ]


def _lost_class(lost: LostRank) -> Classification:
    lived = lost.pid is not None or lost.leftovers
    why = [lost.reason]
    if lost.leftovers:
        why.append(
            f"its children {', '.join(map(str, lost.leftovers[:5]))} still live and hold its connections"
        )
    return Classification(
        name="exited" if lived else "missing",
        role=Role.EXITED if lived else Role.MISSING,
        doing=f"has exited ({lost.reason})" if lived else "has no process on this node",
        direct=True,
        why=tuple(why),
    )


def _share_native(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """What a native stack proved for one rank holds for ranks in the same position without one."""
    proved = {
        position(rank): rank
        for rank in ranks
        if rank.capture and rank.capture.process.native and rank.is_.direct
    }
    return [_adopt(rank, proved.get(position(rank))) for rank in ranks] if proved else ranks


def _adopt(rank: ClassifiedRank, model: ClassifiedRank | None) -> ClassifiedRank:
    if (
        model is None
        or model.rank == rank.rank
        or rank.capture is None
        or rank.is_.direct
        or rank.capture.process.native
    ):
        return rank
    why = (
        f"same stack and wait channel as rank {model.rank}, whose native stack was read",
        *rank.is_.why,
    )
    return msgspec.structs.replace(rank, is_=msgspec.structs.replace(model.is_, why=why))


def position(rank: ClassifiedRank) -> Position:
    """The position of a rank: its Python stack, and the state and wait channel of its main thread."""
    if rank.capture is None:
        return (), "", ""
    process = rank.capture.process
    stack = principal(process.stacks, process.pid) or principal(process.native, process.pid)
    frames = comparable(python_frames(stack.frames)) if stack else ()
    main = process.state.main if process.state else None
    return frames, main.state if main else "", main.wchan if main else ""


def inferred_waits(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """The ranks, some of them newly classified as waiting, because what other ranks do leaves no other explanation."""
    found = _on_one_line(_inside_backward(behind_locks(ranks)))
    return without_task(_inside_frameworks(found))


def _on_one_line(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """Many ranks on one line, in native code without the GIL, while all others wait: they wait there too.

    The published BLOOM hang is such a case: six ranks at `train (megatron/training.py:915)` without any frame that
    says why, two in `broadcast`. It is never `direct`, so the verdict stays at medium.
    """
    unclear = [rank for rank in ranks if rank.is_.name == "native_code"]
    positions = {position(rank) for rank in unclear}
    others = [rank for rank in ranks if rank.is_.name != "native_code"]
    if len(unclear) < max(MIN_INFERRED, len(ranks) // 2 + 1) or len(positions) != 1:
        return ranks
    if not others or any(rank.is_.role is not Role.WAITING for rank in others):
        return ranks
    if any(rank.capture and _may_compute(rank.capture) for rank in unclear):
        return ranks
    return [
        _as_wait(rank, ON_ONE_LINE) if rank.is_.name == "native_code" else rank for rank in ranks
    ]


def _may_compute(capture: RankCapture) -> bool:
    """Whether it may compute: its native stack shows no wait, or none was taken although its process was there."""
    return bool(capture.process.native) or capture.process.state is not None


def _inside_frameworks(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """Most ranks stand in calls of frameworks, one in code of its own: they wait for it, whatever the call is.

    A GPU's queue is full while a collective before does not end, so that any call may wait: a layer, a copy, backward.
    """
    inside = {rank.rank for rank in ranks if _is_inside(rank)}
    elsewhere = [r for r in ranks if r.rank not in inside and r.is_.role is not Role.WAITING]
    classified = [
        rank for rank in elsewhere if rank.capture is not None and rank.is_.name != "unclear"
    ]
    if (
        not inside
        or not classified
        or len(classified) < len(elsewhere)
        or 2 * len(elsewhere) >= len(ranks)
    ):
        return ranks
    return [_as_wait(rank, INSIDE) if rank.rank in inside else rank for rank in ranks]


def _inside_backward(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """Half of the ranks or more stand in backward, all others wait in calls of all ranks: they wait for each other.

    Backward waits for the gradients of a rank that has left the common path. A rank that waits for its GPU has come out of it, and does not count.
    """
    inside = {rank.rank for rank in ranks if _is_inside(rank) and _in_backward(rank)}
    others = [rank for rank in ranks if rank.rank not in inside]
    if (
        not others
        or 2 * len(inside) < len(ranks)
        or any(one.is_.name not in AWAY for one in others)
    ):
        return ranks
    return [_as_backward(rank) if rank.rank in inside else rank for rank in ranks]


def _as_backward(rank: ClassifiedRank) -> ClassifiedRank:
    found = msgspec.structs.replace(
        _as_wait(rank, BACKWARD_OF_MOST).is_,
        doing=f"waits in backward at {rank.is_.site}",
        operation="backward",
    )
    return msgspec.structs.replace(rank, is_=found)


def _in_backward(rank: ClassifiedRank) -> bool:
    process = rank.capture.process if rank.capture else None
    stack = principal(process.stacks, process.pid) if process else None
    frame = python_frames(stack.frames)[0] if stack else None
    return frame is not None and BACKWARD.file.fullmatch(frame.file) is not None and BACKWARD.function.fullmatch(frame.function) is not None  # fmt: skip


def _is_inside(rank: ClassifiedRank) -> bool:
    """Seen once, by its Python stack alone, in a call of a framework or PyTorch (not of Python's own library: a file, a server), without the interpreter's lock."""
    if rank.capture is None or rank.is_.direct or rank.is_.name not in OPEN:
        return False
    process = rank.capture.process
    if process.state is not None or process.movement is not None or process.native:
        return False
    stack = principal(process.stacks, process.pid)
    frames = python_frames(stack.frames) if stack and not stack.owns_gil else ()
    return bool(frames) and _is_of_framework(frames[0]) and any(map(is_own, frames))


def _is_of_framework(frame: Frame) -> bool:
    return owner_of(frame) in (Owner.INSTALLED, Owner.FRAMEWORK) or frame.file.startswith(("torch", "triton", "<string>"))  # fmt: skip


def _as_wait(rank: ClassifiedRank, reason: str) -> ClassifiedRank:
    waits = Classification(
        name="native_wait",
        role=Role.WAITING,
        doing=f"waits in native code in {rank.is_.site}",
        site=rank.is_.site,
        why=(*rank.is_.why, reason),
    )
    return msgspec.structs.replace(rank, is_=waits)


def still_waiting(capture: NodeCapture) -> tuple[int, ...] | None:
    """The ranks of this node that wait for others; None where the frames of any rank changed between samples, or were not sampled."""
    moves = [rank.process.movement for rank in capture.ranks]
    ranks = tuple(inferred_waits(_share_native(_captured((capture,)))))
    case = Case(capture.job, ranks, capture.quiet_seconds)
    if case.moved or not all(move is not None and move.same_frames for move in moves):
        return None
    return tuple(rank.rank for rank in case.waiting)


def wants_native(capture: NodeCapture) -> tuple[int, ...]:
    """Ranks whose native stack could decide the case: one for each position (see `position`) that leaves a class unclear.

    The caller must ask only ranks whose threads can all be interrupted.
    """
    sampled: dict[Position, int] = {}
    for rank in _captured((capture,)):
        if needs_native(rank.is_):
            sampled.setdefault(position(rank), rank.rank)
    return tuple(sorted(sampled.values()))


def needs_native(found: Classification) -> bool:
    """Whether Python frames and counters leave open what the process waits for or does, so that its native stack is needed."""
    return not found.direct and found.name in (
        "native_code",
        "backward",
        "backward_wait",
        "futex",
        "lock",
        "idle",
        "device_sync",
        "busy",
    )


def grouped(
    case: Case, frames: Mapping[int, tuple[str, ...]]
) -> tuple[tuple[Group, ...], dict[int, int]]:
    """The ranks in groups with the same class and stack, and the index of each rank's group.

    Groups that do not wait come first, then smaller ones.

    `frames`: by rank, the stack as labels of frames.
    """
    members: dict[tuple[str, Role, tuple[str, ...]], list[ClassifiedRank]] = {}
    for rank in case.ranks:
        members.setdefault((rank.is_.name, rank.is_.role, frames[rank.rank]), []).append(rank)
    ordered = sorted(
        members.items(),
        key=lambda item: (item[0][1] is Role.WAITING, len(item[1]), item[1][0].rank),
    )
    groups = tuple(make_group(key[2], ranks) for key, ranks in ordered)
    return groups, {rank.rank: index for index, (_, ranks) in enumerate(ordered) for rank in ranks}


def make_group(frames: tuple[str, ...], ranks: list[ClassifiedRank]) -> Group:
    """A group of these ranks, which have one class. What it does is the text of its first rank."""
    first = ranks[0]
    return Group(
        ranks=fold_ranks(rank.rank for rank in ranks),
        count=len(ranks),
        role=first.is_.role,
        class_=first.is_.name,
        doing=first.is_.doing,
        frames=frames,
    )
