"""Reduce what a node sends: suspects and one rank of each group of equal ranks in full, of other ranks only what their class
rests on.

A rank is reduced only where its class stays exactly the same, so the verdict over all nodes does
not change.
"""

from collections.abc import Callable, Iterator

import msgspec

from mldebug.capture.frames import comparable, principal, python_frames
from mldebug.cluster.wire import MAX_BYTES, NodeReply
from mldebug.core.model import (
    Classification,
    FlightGroup,
    Gap,
    NodeCapture,
    ProcessCapture,
    RankCapture,
    Role,
    TraceTail,
)
from mldebug.diagnosis.classify.rank_class import classify

MAX_FULL = 16  # ranks of one node in full
ROOM = MAX_BYTES * 3 // 4  # of which a reply takes at most so much

Cut = Callable[[RankCapture], RankCapture]


def slim(reply: NodeReply) -> NodeReply:
    """The reply without parts that are not needed.

    If it is still too large, more is cut, at last whole captures; an entry of its `gaps` names what is left out.
    """
    reply = _of_all(reply, _slim_capture)
    for words, cut in _CUTS:
        if len(msgspec.json.encode(reply)) <= ROOM:
            return reply
        reply = _left_out(reply, words, cut)
    while reply.captures and len(msgspec.json.encode(reply)) > ROOM:
        reply = _without_last(reply)
    return reply


def _of_all(reply: NodeReply, change: Callable[[NodeCapture], NodeCapture]) -> NodeReply:
    return msgspec.structs.replace(reply, captures=tuple(map(change, reply.captures)))


# --- which ranks -----------------------------------------------------------------------------------


def _slim_capture(capture: NodeCapture) -> NodeCapture:
    found = [(rank, classify(rank)) for rank in capture.ranks]
    full = set(list(_wanted(found))[:MAX_FULL])
    ranks = tuple(rank if rank.identity.rank in full else _small(rank, is_) for rank, is_ in found)
    return msgspec.structs.replace(capture, ranks=ranks)


def _wanted(found: list[tuple[RankCapture, Classification]]) -> Iterator[int]:
    """The representatives first, then all who do not wait."""
    groups: dict[object, int] = {}
    for rank, is_ in found:
        stack = principal(rank.process.stacks, rank.process.pid)
        stand = comparable(python_frames(stack.frames)) if stack else ()
        groups.setdefault((is_.name, is_.role, stand), rank.identity.rank)
    yield from groups.values()
    known = set(groups.values())
    for rank, is_ in found:
        if is_.role is not Role.WAITING and rank.identity.rank not in known:
            yield rank.identity.rank


def _small(rank: RankCapture, is_: Classification) -> RankCapture:
    """The least that has the same class."""
    less = msgspec.structs.replace(
        _without_calls(rank), log=None, process=_small_process(rank.process)
    )
    none = msgspec.structs.replace(less, children=())
    small = msgspec.structs.replace(less, children=tuple(map(_small_process, rank.children)))
    whole = _without_calls(_without_logs(rank))
    return next((one for one in (none, small) if classify(one) == is_), whole)


def _small_process(process: ProcessCapture) -> ProcessCapture:
    state = process.state
    if state is not None:
        gpus = [file for file in state.files if file.kind == "gpu"][:1]
        main = (state.main,) if state.main else ()
        state = msgspec.structs.replace(state, files=tuple(gpus), threads=main)
    spoken, native = principal(process.stacks, process.pid), principal(process.native, process.pid)
    return msgspec.structs.replace(
        process,
        state=state,
        stacks=(spoken,) if spoken else (),
        native=(native,) if native else (),
    )


# --- how much of them ------------------------------------------------------------------------------


def _without_logs(rank: RankCapture) -> RankCapture:
    return msgspec.structs.replace(rank, log=None)


def _without_calls(rank: RankCapture) -> RankCapture:
    return msgspec.structs.replace(rank, trace=_last_alone(rank.trace))


def _last_alone(trace: TraceTail | None) -> TraceTail | None:
    """Where it was last, without the way there."""
    return msgspec.structs.replace(trace, lines=()) if trace is not None else None


def _without_origins(rank: RankCapture) -> RankCapture:
    """Flight Recorder tells of each call from where it was made."""
    if rank.flight is None:
        return rank
    groups = tuple(map(_without_frames, rank.flight.groups))
    transfers = tuple(msgspec.structs.replace(one, frames=()) for one in rank.flight.transfers)
    return msgspec.structs.replace(
        rank, flight=msgspec.structs.replace(rank.flight, groups=groups, transfers=transfers)
    )


def _without_frames(group: FlightGroup) -> FlightGroup:
    calls = tuple(msgspec.structs.replace(call, frames=()) for call in group.calls)
    return msgspec.structs.replace(group, calls=calls)


def _without_flight(rank: RankCapture) -> RankCapture:
    return msgspec.structs.replace(rank, flight=None)


def _all_small(rank: RankCapture) -> RankCapture:
    return _small(rank, classify(rank))


def _without_children(rank: RankCapture) -> RankCapture:
    return msgspec.structs.replace(rank, process=_small_process(rank.process), children=())


_CUTS: tuple[tuple[str, Cut], ...] = (
    ("log lines", _without_logs),
    ("traced calls", _without_calls),
    ("the places that collectives were called from", _without_origins),
    ("other threads and open files", _all_small),
    ("Flight Recorder", _without_flight),
    ("child processes", _without_children),
)


def _left_out(reply: NodeReply, words: str, cut: Cut) -> NodeReply:
    gap = Gap(what=words, reason=f"left out on {reply.node}: an answer has {ROOM >> 20} MiB")

    def change(capture: NodeCapture) -> NodeCapture:
        ranks = tuple(map(cut, capture.ranks))
        return msgspec.structs.replace(capture, ranks=ranks, gaps=(*capture.gaps, gap))

    return _of_all(reply, change)


def _without_last(reply: NodeReply) -> NodeReply:
    *kept, last = reply.captures
    reason = f"left out on {reply.node}: an answer has {ROOM >> 20} MiB"
    gap = Gap(what=f"the capture of {last.job.name}", reason=reason)
    return msgspec.structs.replace(reply, captures=tuple(kept), gaps=(*reply.gaps, gap))
