"""Which rank is out of step: a vote among the members of one process group on operation, sequence number and size of a call.

A majority is more than half of all members, whether their records could be read or not, so a missing record can change nothing. A
tie is a split and names nobody. Calls of different process groups are never compared.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import msgspec

from mldebug.capture.flight_recorder.raw_calls import BATCHES
from mldebug.core.errors import UsageError
from mldebug.core.model import Collective, FlightGroup, FlightRecord
from mldebug.core.ranksets import unfold

SAME_SIZE = frozenset(
    (
        *("all_reduce", "allreduce_coalesced", "broadcast", "reduce"),
        *("all_gather_base", "allgather_base", "all_gather_single"),
        *("all_gather_into_tensor", "all_gather_into_tensor_coalesced"),
        *("reduce_scatter_base", "reduce_scatter_single"),
        *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
        *BATCHES,
    )
)
"""Operations that every member calls with as many elements of one type; others may differ legitimately.

Gathers into one tensor and scatters of one (FSDP) have a name for each backend and PyTorch: NCCL's are `_all_gather_base` and
`_reduce_scatter_base`. Gloo records a gather into one tensor as `all_gather`, which a list of tensors may be as well.
"""
TO_ALL = frozenset(("all_to_all", "alltoall", "all_to_all_single", "all_to_all_v_single"))
GATHERS = frozenset(("all_gather", "allgather"))
SCATTERS = frozenset(("reduce_scatter",))
"""Operations whose members may have parts of different sizes, which have to fit together."""

MAX_VIEWS = 4096
NEAR = 1000  # calls by which members of one group may differ; numbers further apart are of different groups

K = TypeVar("K", bound=Hashable)


class View:
    """One process group of torch.distributed: its ranks, and by rank the calls of the group in that rank's Flight Recorder."""

    def __init__(self, group: FlightGroup, by_rank: dict[int, FlightGroup]) -> None:
        self.name, self.backend, self.description = group.name, group.backend, group.description
        self.folded = group.members
        self.by_rank = by_rank

    @cached_property
    def members(self) -> frozenset[int]:
        """The ranks of the group, by their numbers in the whole job."""
        return members_of(self.folded)

    @cached_property
    def pending(self) -> dict[int, Collective]:
        """By rank, the oldest call of the group that is not done; ranks without one are left out."""
        found = {rank: oldest_pending(group) for rank, group in self.by_rank.items()}
        return {rank: call for rank, call in found.items() if call is not None}

    @property
    def title(self) -> str:
        """The group in words: `group dp`, or its number where the job gave it no name."""
        nameless = self.description in ("", "undefined", "default_pg")
        return f"group {self.name if nameless else self.description}"

    def call(self, rank: int, sequence: int) -> Collective | None:
        """The call with this sequence number of a rank; None where the rank has not made it, or its recorder no longer keeps it."""
        return self._calls[rank].get(sequence)

    def one_size(self, sequence: int) -> bool:
        """Whether all records that have a size for this call agree in size and data types. (Of a scatter only the root records a
        size.)
        """
        calls = (self.call(rank, sequence) for rank in self.by_rank)
        shapes = {
            (call.elements, call.dtypes) for call in calls if call and call.elements is not None
        }
        return len(shapes) <= 1

    @cached_property
    def _calls(self) -> dict[int, dict[int, Collective]]:
        return {
            rank: {call.sequence: call for call in reversed(group.calls)}
            for rank, group in self.by_rank.items()
        }


def oldest_pending(group: FlightGroup) -> Collective | None:
    """The call of this group with the lowest sequence number that is not done; None where all are done."""
    return min(
        (call for call in group.calls if not call.done), key=lambda c: c.sequence, default=None
    )


def views(records: Mapping[int, FlightRecord]) -> tuple[View, ...]:
    """One `View` of every process group whose members are known. A group in which a rank outside of its members has called something is
    left out; that it knows of the group is no harm.
    """
    found: dict[tuple[str, str, str], dict[int, FlightGroup]] = {}
    for rank, record in records.items():
        for group in record.groups:
            key = group.backend, group.name, group.members
            if not group.enqueued and not group.calls and rank not in members_of(group.members):
                continue
            if group.members and (key in found or len(found) < MAX_VIEWS):
                found.setdefault(key, {})[rank] = group
    for (_, name, folded), by_rank in found.items():
        by_rank.update(_counted(name, members_of(folded), by_rank, records))
    all_of_them = (View(next(iter(by_rank.values())), by_rank) for by_rank in found.values())
    return tuple(view for view in all_of_them if view.by_rank.keys() <= view.members)


def _counted(
    name: str,
    members: frozenset[int],
    by_rank: Mapping[int, FlightGroup],
    records: Mapping[int, FlightRecord],
) -> dict[int, FlightGroup]:
    """Members whose dumps leave out finished calls and hold none of this group: how far they are, by their `pg_status`.

    It numbers groups as their process does, so only a number counts that all who name this group have in common, and not where it may be
    that of a send or receive, which the status counts as well. A group that has called nothing is not in it.
    """
    have = [records[rank] for rank in by_rank]
    numbers = {count.number for one in have for count in one.counts if count.name == name}
    if len(numbers) != 1 or any(one.group == name for record in have for one in record.transfers):
        return {}
    usual, found = next(iter(by_rank.values())), {}
    for rank in members & records.keys() - by_rank.keys():
        counts = records[rank].counts
        its = [count for count in counts if count.number in numbers]
        far = [one for one in its if one.name or abs(one.enqueued - usual.enqueued) > NEAR]
        if counts and not far:
            enqueued, completed = (its[0].enqueued, its[0].completed) if its else (0, 0)
            found[rank] = msgspec.structs.replace(
                usual, enqueued=enqueued, completed=completed, calls=()
            )
    return found


class Vote(NamedTuple):
    """One call of a group as its members made it. `model`: the call as more than half of the members made it; None where there is
    no such majority.
    """

    view: View
    sequence: int
    calls: dict[int, Collective]
    model: Collective | None
    differs: dict[int, Collective]  # from the model
    split: bool = False  # there were several, and none with a majority


def vote(view: View, sequence: int) -> Vote:
    """Compare how the members of a group made the call with this sequence number, of those whose record still has it."""
    made = {rank: view.call(rank, sequence) for rank in view.by_rank}
    calls = {rank: call for rank, call in made.items() if call is not None}
    skewed = calls.keys() == view.members and not _fit(tuple(calls.values()))
    compared = _Compared(
        dtypes=all(call.dtypes for call in calls.values()),
        elements=all(call.elements is not None for call in calls.values()),
        parts=skewed,
    )
    kinds = {rank: compared.kind(call) for rank, call in calls.items()}
    usual = majority(kinds.values(), len(view.members) / 2)
    model = next((calls[rank] for rank, kind in kinds.items() if kind == usual), None)
    differs = {rank: calls[rank] for rank, kind in kinds.items() if model and kind != usual}
    several = len(set(kinds.values())) > 1 or skewed
    return Vote(view, sequence, calls, model, differs, split=model is None and several)


class _Compared(NamedTuple):
    """What of a call is compared beside its operation: what all records tell. `parts`: also the sizes that may differ, which do not fit."""

    dtypes: bool
    elements: bool
    parts: bool

    def kind(self, call: Collective) -> tuple[object, ...]:
        """What is compared of a call: its operation, and element types and sizes as far as the fields say. Equal for calls that fit."""
        if self.parts:
            return call.op, call.elements, call.outputs
        same = call.op in SAME_SIZE
        elements = call.elements if same and self.elements else None
        return call.op, elements, call.dtypes if same and self.dtypes else ""


def _fit(calls: Sequence[Collective]) -> bool:
    """Whether the parts that all members send are as large as those that they expect, where the recorders tell sizes."""
    ops, dtypes = {call.op for call in calls}, {call.dtypes for call in calls}
    sent = [call.elements for call in calls if call.elements is not None]
    expected = [call.outputs for call in calls if call.outputs is not None]
    if len(ops) != 1 or len(dtypes) != 1 or not len(sent) == len(expected) == len(calls):
        return True
    if ops <= TO_ALL:
        return sum(sent) == sum(expected)
    if ops <= GATHERS:
        return set(expected) == {sum(sent)}
    return not ops <= SCATTERS or set(sent) == {sum(expected)}


def majority(votes: Iterable[K], half: float) -> K | None:
    """The value with more than `half` of the votes; None without such a majority."""
    counted = Counter(votes).most_common(1)
    return counted[0][0] if counted and counted[0][1] > half else None


def last_call(record: FlightRecord) -> tuple[FlightGroup, Collective] | None:
    """The oldest collective that a rank waits in, else the last that it made, with its group; None before its first collective."""
    calls = [(group, call) for group in record.groups for call in group.calls]
    pending = [call for call in calls if not call[1].done]
    if pending:
        return min(pending, key=lambda one: one[1].created_at)
    return max(calls, key=lambda one: one[1].created_at, default=None)


def collective_words(record: FlightRecord | None) -> str:
    """The call that a rank waits in, else the last one it made, as text: `all_reduce 41 of group dp`; "" where that is not known."""
    found = last_call(record) if record is not None else None
    if found is None:
        return ""
    group, call = found
    return f"{call.op} {call.sequence} of {View(group, {}).title}"


def settled(flights: Iterable[tuple[FlightRecord, float]]) -> bool:
    """Whether every collective was made before the capture of its rank began (unix time). If not, the job moves, and no rank is
    out of step.
    """
    return all(
        call.created_at <= began
        for record, began in flights
        for group in record.groups
        for call in group.calls
    )


def newest_call(record: FlightRecord) -> float:
    """When the rank made its last call, a collective or a transfer, in unix seconds; -inf without calls."""
    calls = (call.created_at for group in record.groups for call in group.calls)
    sends = (transfer.created_at for transfer in record.transfers)
    return max((*calls, *sends), default=float("-inf"))


def everybody(record: FlightRecord) -> str:
    """All ranks of the job as a folded set (`0-5,7`), from the members of the default group; "" where the record does not list
    them.
    """
    default = (group.members for group in record.groups if group.description == "default_pg")
    return next(filter(None, default), "")


@lru_cache(maxsize=64)
def members_of(folded: str) -> frozenset[int]:
    """The ranks in a folded set (`0-5,7`); empty where the text is damaged."""
    try:
        return frozenset(unfold(folded))
    except UsageError:  # stored evidence, damaged
        return frozenset()
