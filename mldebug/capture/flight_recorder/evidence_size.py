"""How many bytes Flight Recorders take as evidence. Pure.

A dump names one stack, or the members of one group, once, and refers to it from many calls; evidence writes them out each time. So a small
file could become a hundred times its size in a report, in the agent's memory and on the way to other nodes.
"""

from collections.abc import Iterable

import msgspec

from mldebug.core.model import FlightRecord, Frame, Gap, NodeCapture

MAX_RECORD = (
    4 << 20
)  # bytes of one rank's; 8 calls of each of 64 groups with 32 frames of 150 characters have 3.4 MB
MAX_TOGETHER = 64 << 20  # bytes of all ranks of one capture
ENTRY, FRAME = 160, 70  # bytes that a call and a frame take beside their texts


def evidence_size(record: FlightRecord) -> int:
    """Its bytes as JSON, about."""
    calls = [call for group in record.groups for call in group.calls]
    stacks = (*(call.frames for call in calls), *(one.frames for one in record.transfers))
    members = [
        *(one.members for one in record.groups),
        *(one.members for one in record.transfers),
        *(one.members for one in record.pairs),
        *(one.members for one in record.timed),
    ]
    timed = sum(len(one.calls) for one in record.timed)
    return (
        sum(map(len, members)) + ENTRY * (len(calls) + len(members) + timed) + _frames_size(stacks)
    )


def _frames_size(stacks: Iterable[tuple[Frame, ...]]) -> int:
    known: dict[int, int] = {}  # most stacks are one and the same
    total = 0
    for stack in stacks:
        if id(stack) not in known:
            known[id(stack)] = sum(
                FRAME + len(one.file) + len(one.function) + len(one.path) for one in stack
            )
        total += known[id(stack)]
    return total


def checked(record: FlightRecord, most: int = MAX_RECORD) -> FlightRecord:
    """The record. Raises ValueError where it would take more than `most` bytes as evidence."""
    if (size := evidence_size(record)) > most:
        raise ValueError(f"it would take {size:,} bytes of evidence, more than {most:,}")
    return record


def within(taken: NodeCapture, most: int = MAX_TOGETHER) -> NodeCapture:
    """The capture with Flight Recorders of at most `most` bytes in all: the largest are left out, each of which is a gap."""
    sizes = {one.identity.rank: evidence_size(one.flight) for one in taken.ranks if one.flight}
    left_out: set[int] = set()
    total = sum(sizes.values())
    for rank in sorted(sizes, key=lambda one: -sizes[one]):
        if total <= most:
            break
        left_out.add(rank)
        total -= sizes[rank]
    if not left_out:
        return taken
    why = f"all of them would take more than {most:,} bytes of evidence"
    gaps = (Gap(what="Flight Recorder", reason=why, rank=rank) for rank in sorted(left_out))
    ranks = (msgspec.structs.replace(one, flight=None) if one.identity.rank in left_out else one for one in taken.ranks)  # fmt: skip
    return msgspec.structs.replace(taken, ranks=tuple(ranks), gaps=(*taken.gaps, *gaps))
