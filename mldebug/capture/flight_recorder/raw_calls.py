"""Calls in PyTorch's spelling, as far as they are read, and the batches that NCCL makes of several.

What has not the expected shape is refused. A batch is several operations under one number, and an entry that ends them: a gather or scatter of
parts of different sizes is one broadcast or reduction for each member, ended by `ALLGATHER_coalesced` or `REDUCE_SCATTER_coalesced` (PyTorch
2.7 and newer record the parts). What a program has batched itself ends with `coalesced`.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from mldebug.core.ranksets import MAX_RANK

BATCHES = frozenset(("ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced"))

STATES = frozenset(("scheduled", "started", "completed"))

Whole = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
Name = Annotated[str, msgspec.Meta(max_length=400)]
Path = Annotated[str, msgspec.Meta(max_length=4096)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


def tells_completion(name: str) -> bool:
    """Whether the backend of a call of this `profiling_name` marks what has ended as completed: NCCL and its kin (XCCL, HCCL, RCCL, NCCLX) do.
    Gloo does not; it retires what has ended.
    """
    return "ccl" in name.partition(":")[0]


class RawFrame(msgspec.Struct, frozen=True):
    """A frame of the stack from which a call was made."""

    name: Path = ""
    filename: Path = ""
    line: Whole = 0


class RawCall(msgspec.Struct, frozen=True):
    """One collective call or transfer in a dump."""

    process_group: tuple[Name, Name] = ("", "")
    pg_id: Whole = -1
    record_id: Whole = -1
    collective_seq_id: Whole = -1
    p2p_seq_id: Whole = 0
    is_p2p: bool = False
    profiling_name: Name = ""
    input_sizes: tuple[tuple[Size, ...], ...] = ()
    output_sizes: tuple[tuple[Size, ...], ...] = ()
    input_dtypes: tuple[Name, ...] = ()
    state: Name | None = None
    retired: bool = False
    time_created_ns: int | None = None
    timeout_ms: int | None = None
    frames: tuple[RawFrame, ...] = ()  # innermost first

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return self.retired or self.state == "completed"

    @property
    def placed(self) -> bool:
        """Whether the dump says to which group the call belongs, as which of its calls, and how far it has come."""
        numbered = self.is_p2p or self.collective_seq_id >= 0
        named = bool(self.process_group[0] and self.profiling_name)
        return named and numbered and (self.done or self.state in STATES)

    @property
    def owner(self) -> tuple[str, str]:
        """The name and the backend of the group that the call belongs to."""
        return self.process_group[0], self.profiling_name.partition(":")[0]


def one_each(calls: Sequence[RawCall], members: int) -> list[RawCall]:
    """The collectives of one group in their order; a batch becomes one call with the parts of all its operations.

    `members`: number of members of the group. A batch with fewer parts than members is incomplete, so its sizes are left out.
    """
    batches: dict[int, list[RawCall]] = {}
    for call in calls:
        batches.setdefault(call.collective_seq_id, []).append(call)
    return [_joined(some, members) for some in batches.values()]


def _joined(calls: list[RawCall], members: int) -> RawCall:
    *parts, end = calls
    if end.profiling_name.rpartition(":")[2] in BATCHES:
        whole = bool(parts) and len(parts) == members
        sizes = tuple(size for part in parts for size in part.input_sizes) if whole else ()
        frames = end.frames or (parts[0].frames if parts else ())
        dtypes = parts[0].input_dtypes if whole else ()
        return replace(end, input_sizes=sizes, output_sizes=(), input_dtypes=dtypes, frames=frames)
    if not parts:
        return end
    first = parts[0]
    return replace(first, state=end.state, retired=end.retired, input_sizes=(), output_sizes=())
