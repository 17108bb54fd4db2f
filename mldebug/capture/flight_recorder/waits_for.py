"""Which rank waits for which, by Flight Recorders alone: each call that does not end is a `Claim` on the ranks that have not
joined it.

A program enqueues calls long before they run, so a rank may have many pending, in several groups. Its oldest one is what holds it
up: its GPU may not have come to a later call, although the rank has called it (`held`).
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from mldebug.capture.flight_recorder.entries import MAX_SENDS, PAIR
from mldebug.capture.flight_recorder.votes import View, members_of
from mldebug.core.model import Collective, FlightGroup, FlightRecord, Frame, Transfer

ROOTED = frozenset(("broadcast", "broadcast_oop", "reduce", "reduce_oop", "gather", "scatter"))
"""Operations whose members leave at different times: a rank that still waits in an earlier one may be a victim."""


class Claim(NamedTuple):
    """One call that does not end: the ranks that wait in it, and the members of its group that have not joined it.

    `late`: members that have not called it. `slow`: members that have, but whose GPU has not come to it. `absent`: members
    without a dump. `forgot`: members whose record holds no call of the group any more. `finished`: members for which it is done.
    `held`: members that have called it, but wait in an older call of another group.
    """

    view: View
    what: str  # "all_reduce 4", "recv 2 from rank 3"
    sequence: int
    members: frozenset[int]
    waiting: tuple[int, ...]
    late: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    forgot: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    peer: int = -1  # of a transfer
    met: bool = False  # has that peer the other half of it pending?
    created_at: float = 0.0
    frames: tuple[Frame, ...] = ()
    rooted: bool = False
    transfer: bool = False

    @property
    def on(self) -> tuple[int, ...]:
        """The ranks that certainly hold this call up: `late` and `slow`."""
        return (*self.late, *self.slow)

    @property
    def timed(self) -> bool:
        """Whether the records show whose GPU has reached the call; those of NCCL do only with TORCH_NCCL_ENABLE_TIMING=1."""
        states = {call.state for call in self.view.pending.values()}
        return self.view.backend != "nccl" or "started" in states

    @property
    def ended_on_some(self) -> bool:
        """Whether the call has ended for some members although no member can leave it before all have come. Then those still in
        it hold it up.
        """
        return bool(self.finished) and not self.rooted

    def accuses(self, rank: int) -> bool:
        """Whether this waiting rank is itself to blame, because at least half of the group has left the call. A transfer must
        also be the rank's oldest call, since what was sent may lie in a buffer.
        """
        few = 2 * len(self.waiting) <= len(self.members)
        return self.ended_on_some and few and not (self.transfer and rank in self.held)

    def called_at(self, rank: int) -> float:
        """When this waiting rank made the call, unix seconds."""
        call = self.view.pending.get(rank)
        return call.created_at if call else self.created_at

    @property
    def most(self) -> bool:
        """Whether more than half of the group's members wait in this call."""
        return 2 * len(self.waiting) > len(self.members)

    @property
    def outnumbered(self) -> bool:
        """Whether fewer ranks wait in this collective than have not called it; then the waiting ones may have made one call too
        many.
        """
        return not self.transfer and len(self.waiting) < len(self.late)


def claims(views: Iterable[View], records: Mapping[int, FlightRecord]) -> tuple[Claim, ...]:
    """All calls in which ranks wait for others, those with most waiting ranks first."""
    found = [claim for view in views for claim in _collectives(view, records)]
    found += _transfers(records)
    found = list(_with_held(found))
    return tuple(sorted(found, key=lambda one: (-len(one.waiting), one.created_at, one.waiting)))


def _with_held(found: list[Claim]) -> Iterable[Claim]:
    """Each with who waits in an older call than this one; a transfer also where its peer does."""
    oldest: dict[int, float] = {}
    for claim in found:
        for rank in claim.waiting:
            oldest[rank] = min(claim.called_at(rank), oldest.get(rank, float("inf")))
    reached = {
        (rank, claim.peer)
        for claim in found
        for rank in claim.waiting
        if claim.transfer and claim.called_at(rank) <= oldest[rank]
    }
    for claim in found:
        held = {rank for rank in claim.waiting if claim.called_at(rank) > oldest[rank]}
        if claim.met and (claim.peer, claim.waiting[0]) not in reached:
            held.add(claim.peer)
        yield claim._replace(held=tuple(sorted(held)))


def _collectives(view: View, records: Mapping[int, FlightRecord]) -> Iterable[Claim]:
    """Of one group; who calls something else at the same number makes a claim of its own."""
    by_call: dict[tuple[int, str], list[int]] = {}
    for rank, call in sorted(view.pending.items()):
        by_call.setdefault((call.sequence, call.op), []).append(rank)
    for ranks in by_call.values():
        yield _collective(view, tuple(ranks), records)


def _collective(view: View, waiting: tuple[int, ...], records: Mapping[int, FlightRecord]) -> Claim:
    call = view.pending[waiting[0]]
    rooted = call.op in ROOTED
    finished = tuple(rank for rank in view.by_rank if _has_finished(view, rank, call.sequence))
    joined = bool(finished) and not rooted  # it ends for nobody before all have come
    unreported = () if joined else sorted(view.members - view.by_rank.keys())
    idle = [rank for rank in unreported if rank in records and _has_called_nothing(records[rank])]
    late = [rank for rank, one in view.by_rank.items() if one.enqueued < call.sequence] + idle
    return Claim(
        view=view,
        what=f"{call.op} {call.sequence}",
        sequence=call.sequence,
        members=view.members,
        waiting=waiting,
        late=() if joined else tuple(sorted(late)),
        slow=() if joined else _slow(view, call.sequence),
        absent=tuple(rank for rank in unreported if rank not in records),
        forgot=tuple(rank for rank in unreported if rank in records and rank not in idle),
        finished=finished,
        created_at=call.created_at,
        frames=call.frames,
        rooted=rooted,
    )


def _has_called_nothing(record: FlightRecord) -> bool:
    """Not where the recorder holds sends alone: it may have dropped the collectives before them."""
    return not (record.groups or record.counts or record.unplaced or record.entries)


def _has_finished(view: View, rank: int, sequence: int) -> bool:
    call = view.call(rank, sequence)
    return call.done if call is not None else view.by_rank[rank].completed >= sequence


def _slow(view: View, sequence: int) -> tuple[int, ...]:
    """Who has called it and is not as far with it as those who wait: in an earlier call, or not started where most have."""
    earlier = {
        rank
        for rank, call in view.pending.items()
        if call.sequence < sequence <= view.by_rank[rank].enqueued
    }
    there = {rank: call.state for rank, call in view.pending.items() if call.sequence == sequence}
    started = [rank for rank, state in there.items() if state == "started"]
    if 2 * len(started) > len(view.members):
        earlier |= {rank for rank, state in there.items() if state == "scheduled"}
    return tuple(sorted(earlier))


# --- sends and receives --------------------------------------------------------------------------


def _transfers(records: Mapping[int, FlightRecord]) -> Iterable[Claim]:
    for rank, record in sorted(records.items()):
        for one in record.transfers:
            numbered = sorted(members_of(one.members))
            if rank in numbered and one.peer < len(numbered):
                yield from _transfer(rank, numbered, one, records)


def _transfer(
    rank: int, numbered: list[int], one: Transfer, records: Mapping[int, FlightRecord]
) -> Iterable[Claim]:
    """Yields no claim where the peer may have joined, but has more transfers pending than its record holds."""
    peer, own = numbered[one.peer], numbered.index(rank)
    theirs = records[peer].transfers if peer in records else ()
    wanted = "recv" if one.op == "send" else "send"
    met = any((it.op, it.peer, it.group) == (wanted, own, one.group) for it in theirs)
    passed = len(numbered) == PAIR and _has_passed(one, records, rank, peer)
    if not met and not passed and len(theirs) >= MAX_SENDS:
        return
    yield Claim(
        view=View(
            FlightGroup(name=one.group, description=one.description, members=one.members), {}
        ),
        what=f"{one.op} {one.sequence} {'to' if one.op == 'send' else 'from'} rank {peer}",
        sequence=one.sequence,
        members=frozenset((rank, peer)),
        waiting=(rank,),
        late=(peer,) if peer in records and not (met or passed) else (),
        finished=(peer,) if passed else (),
        absent=() if peer in records else (peer,),
        peer=peer,
        met=met and not passed,
        created_at=one.created_at,
        frames=one.frames,
        transfer=True,
    )


def _has_passed(one: Transfer, records: Mapping[int, FlightRecord], rank: int, peer: int) -> bool:
    """Is it done for the other of a group of two? By the last that is done there, by what pends there, or by its `pg_status`."""
    theirs, key = records.get(peer, FlightRecord()), (one.group, one.members)
    done = [it.done for it in theirs.pairs if (it.group, it.members) == key]
    pending = [it.sequence for it in theirs.transfers if (it.group, it.members) == key]
    if pending or done:
        return max(done, default=min(pending, default=0) - 1) >= one.sequence > 0
    both = (records[rank], theirs)
    if any(group.name == one.group for record in both for group in record.groups):
        return False  # the status may count its collectives
    numbers = {it.number for it in records[rank].counts if it.name == one.group}
    return any(
        it.number in numbers and not it.name and it.completed >= one.sequence > 0
        for it in theirs.counts
    )


# --- chains --------------------------------------------------------------------------------------


class WaitChains:
    """Follows from rank to rank who waits for whom, to find the ranks at the end of the chains."""

    def __init__(self, found: Iterable[Claim]) -> None:
        self.claims = tuple(found)
        self._of: dict[int, list[Claim]] = {}
        for claim in self.claims:
            for rank in claim.waiting:
                self._of.setdefault(rank, []).append(claim)
        self.unfinished = dict(self._unfinished())

    def _unfinished(self) -> Iterable[tuple[int, Claim]]:
        """By rank, the oldest call that has ended on half of its group or more, and not on this rank."""
        for rank, own in sorted(self._of.items()):
            ended = (one for one in own if one.accuses(rank))
            if first := min(ended, key=lambda one: one.called_at(rank), default=None):
                yield rank, first

    def of(self, rank: int) -> list[Claim]:
        """The calls in which this rank waits for other ranks; empty where it waits in none."""
        return self._of.get(rank, [])

    def next(self, rank: int) -> frozenset[int]:
        """The ranks that this rank certainly waits for. In its oldest call these include members that have called it, but wait in
        an older call of another group.
        """
        if rank in self.unfinished:
            return frozenset()
        found: set[int] = set()
        for claim in self.of(rank):
            found.update(claim.late if rank in claim.slow else claim.on)
            found.update(claim.held if rank not in claim.held else ())
        return frozenset(found - {rank})

    def link(self, rank: int, after: int) -> Claim:
        """A call in which `rank` waits for the rank `after`; there must be one."""
        own = self.of(rank)
        sure = (claim for claim in own if after in claim.on)
        return next(sure, None) or next(
            one for one in own if after in one.held and rank not in one.held
        )

    @cached_property
    def _telling(self) -> tuple[Claim, ...]:
        """The claims from which sinks follow: those to which the GPU of some rank has come; where there are none, all."""
        come = [
            claim
            for claim in self.claims
            if not set(claim.waiting) <= {*claim.held, *self.unfinished}
        ]
        return tuple(come) if come or self.unfinished else self.claims

    @property
    def sinks(self) -> tuple[int, ...]:
        """The ranks at the ends of the chains: others wait for them, and they do not certainly wait for anybody."""
        targets = {rank for claim in self._telling for rank in claim.on}
        return tuple(sorted(rank for rank in targets if not self.next(rank)))

    def on(self, rank: int) -> list[Claim]:
        """The calls that cannot end before this rank has joined them."""
        return [claim for claim in self._telling if rank in claim.on]

    def circle(self) -> tuple[int, ...]:
        """Ranks of which each waits for the next one and the last for the first; empty where there is no such circle."""
        start = min((rank for rank in self._of if self.next(rank)), default=None)
        path: list[int] = []
        while start is not None and start not in path:
            path.append(start)
            start = min((one for one in self.next(start) if self.next(one)), default=None)
        if start is None:
            return ()
        found = path[path.index(start) :]
        begin = found.index(min(found))
        return (*found[begin:], *found[:begin])


def where(rank: int, claim: Claim) -> Collective | None:
    """The last call that a rank has recorded in the group of this claim; None without one."""
    group = claim.view.by_rank.get(rank)
    return group.calls[-1] if group and group.calls else None
