"""What the Flight Recorders of all ranks say of a hang in which everybody waits: who is out of step, in words.

Named is a rank that a majority of its own process group proves to be behind, or to have called something else, and that
waits for nobody outside of this group: such a rank may be a victim itself. So may one whose own wait no recorder holds (a
receive on gloo, the store, the start of a group). Then the waits are told as they are, as a circle where they are one.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import msgspec

from mldebug.flight.claims import ROOTED
from mldebug.flight.votes import (
    Hang,
    View,
    Wait,
    circle,
    hangs,
    oldest_pending,
    views,
    waits,
    waits_elsewhere,
)
from mldebug.flight.ways import Kind
from mldebug.folding import shorten_ranks
from mldebug.judging.case import Case, blame, ranks_text, show_source
from mldebug.model import (
    ClassifiedRank,
    Collective,
    Confidence,
    Finding,
    FlightRecord,
    Role,
    Verdict,
)

UNRECORDED = frozenset(("point_to_point", "init", "store", "destroy"))
"""Classes of waits for others that are in no recorder, or not on every backend."""
FROM_FILES = frozenset((Kind.DUMP, Kind.FIFO))
RECORDED = frozenset(("collective", "backward_wait", "device_sync"))
MAX_LINES = 4
SOURCE = "Flight Recorder"


class Odd(NamedTuple):
    """One rank that is out of step, in three phrases."""

    rank: int
    reason: str  # "is one collective behind in group 0 (all_reduce 5 of 6)"
    own: str  # "it waits in all_reduce 5"
    others: str  # "ranks 0-1,3 in all_reduce 6"


class Flights:
    """The Flight Recorders of one case, with what they prove."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._views = views(case.flights)
        self.hangs = hangs(self._views)

    @cached_property
    def alike(self) -> Hang | None:
        """The collective in which all members of its group wait, with no group that says otherwise."""
        if any(hang.behind or hang.differs or hang.split for hang in self.hangs):
            return None
        if any(wait.missing for wait in waits(self._views)):
            return None
        return next((hang for hang in self.hangs if hang.alike), None)

    def judge(self) -> Finding | None:
        """Name who is out of step; None where the recorders do not tell, or somebody does not even wait."""
        if self._case.moved or not all(map(self._waits, self._case.ranks)):
            return None
        named = [(hang, found) for hang in self.hangs if (found := tuple(self._odd(hang)))]
        if len({frozenset(one.rank for one in found) for _, found in named}) == 1:
            return self._named(*named[0])
        odd = any(hang.behind or hang.differs or hang.split for hang in self.hangs)
        return self._nobody() if odd or circle(waits(self._views)) else None

    def _waits(self, rank: ClassifiedRank) -> bool:
        """By its stack, or by its Flight Recorder where the stack does not tell."""
        role = rank.is_.role
        return role is Role.WAITING or (role is Role.UNCLEAR and self._pends(rank.rank))

    def _pends(self, rank: int) -> bool:
        record = self._case.flights.get(rank, FlightRecord())
        return any(oldest_pending(group) is not None for group in record.groups)

    def _agrees(self, rank: ClassifiedRank) -> bool:
        """Does its stack wait where its recorder has a call that is not done?"""
        return rank.is_.name in RECORDED and not _unrecorded(rank) and self._pends(rank.rank)

    # --- who is out of step ------------------------------------------------------------------------

    def _odd(self, hang: Hang) -> Iterator[Odd]:
        if hang.split:
            return
        elsewhere = waits_elsewhere(self._case.flights, hang.view)
        for rank, call in sorted(hang.differs.items()):
            yield _other_call(hang, rank, call)
        for rank, earlier in sorted(hang.behind.items()):
            victim = earlier is not None and earlier.op in ROOTED
            if rank in hang.differs or elsewhere(rank) or victim:
                continue
            if self._explained(hang, rank):
                yield self._late(hang, rank, earlier)

    def _explained(self, hang: Hang, number: int) -> bool:
        """Is it known in what a rank that is behind waits? What runs on its GPU is all in the recorder of NCCL."""
        rank = self._rank(number)
        if _unrecorded(rank):
            return False
        on_gpu = rank.is_.name == "device_sync" and hang.view.backend == "nccl"
        return on_gpu or self._pends(number)

    def _late(self, hang: Hang, rank: int, earlier: Collective | None) -> Odd:
        title, theirs = hang.view.title, _numbered(hang.call)
        others = ranks_text(hang.waiting)
        if earlier is not None:
            count = hang.call.sequence - earlier.sequence
            reason = f"is {_collectives(count)} behind in {title} ({earlier.op} {earlier.sequence} of {hang.call.sequence})"
            return Odd(rank, reason, f"it waits in {_numbered(earlier)}", f"{others} in {theirs}")
        verb = "waits" if len(hang.waiting) == 1 else "wait"
        reason = f"has not called {theirs} of {title}, in which {others} {verb}"
        return Odd(rank, reason, self._instead(hang.view, rank), "")

    def _instead(self, view: View, rank: int) -> str:
        """In a group of the same members, if in any: then it takes the groups in another order."""
        for other in self._views:
            call = other.pending.get(rank)
            if other is not view and call is not None:
                return f"it waits in {_numbered(call)} of {other.title} instead"
        return f"it {self._rank(rank).is_.doing}"

    def _named(self, hang: Hang, found: tuple[Odd, ...]) -> Finding:
        odd = tuple(self._rank(one.rank) for one in found)
        first = self._rank(hang.waiting[0])
        finding = blame(
            self._case,
            Verdict.COLLECTIVE_MISMATCH,
            odd,
            (show_source(odd[0]), show_source(first)),
            confidence=self._confidence(hang, odd),
        )
        reasons = {one.rank: one.reason for one in found}
        culprits = tuple(
            msgspec.structs.replace(one, reason=reasons[one.rank])
            for one in finding.culprits
            if one.rank is not None
        )
        return msgspec.structs.replace(
            finding,
            culprits=culprits,
            summary=self._summary(found),
        )

    def _confidence(self, hang: Hang, odd: tuple[ClassifiedRank, ...]) -> Confidence:
        """Sequence numbers of all members are direct evidence, if the ranks were watched and did not move, and each of
        them waits in a recorded call by its stack, too. Not those in a file: another job may write one of its name."""
        watched = all(one.capture and one.capture.process.movement for one in odd)
        members = self._case.complete and hang.complete
        filed = any(self._case.flights[rank].way in FROM_FILES for rank in hang.view.by_rank)
        proved = watched and members and not filed and all(map(self._agrees, self._case.ranks))
        return Confidence.HIGH if proved else Confidence.MEDIUM

    def _summary(self, found: tuple[Odd, ...]) -> str:
        """Ranks with one reason and place in one sentence."""
        alike: dict[Odd, list[int]] = {}
        for one in found:
            alike.setdefault(self._placed(one), []).append(one.rank)
        told = [_sentence(one, ranks) for one, ranks in alike.items()]
        return "; ".join(told[:MAX_LINES])

    def _placed(self, one: Odd) -> Odd:
        """With its place in the code, and without its number."""
        site = self._rank(one.rank).is_.site
        at = f" at {site}" if site and site not in one.own else ""
        if one.own:
            return one._replace(rank=-1, own=one.own + at)
        return one._replace(rank=-1, reason=one.reason + at)

    # --- nobody ------------------------------------------------------------------------------------

    def _nobody(self) -> Finding:
        """Who waits for whom; a circle is sure to be one, but not where it began."""
        found = waits(self._views)
        closed = circle(found)
        split = next((hang for hang in self.hangs if hang.split), None)
        told = "; ".join(self._wait_words(wait) for wait in found[:MAX_LINES])
        told = told if split is None else _split_words(split)
        head = "ranks wait for each other in a circle" if closed else "all ranks wait"
        unknown = () if closed or split else self._unexplained()
        confidence = Confidence.MEDIUM if closed else Confidence.LOW
        finding = blame(self._case, Verdict.COLLECTIVE_MISMATCH, (), (), confidence=confidence)
        return msgspec.structs.replace(
            finding,
            summary="; ".join(unknown)
            or f"{head}: {told}; no majority tells who left the common path",
            next_steps=tuple(show_source(self._rank(wait.ranks[0])) for wait in found[:2]),
        )

    def _unexplained(self) -> tuple[str, ...]:
        """Who is behind, in a wait that no recorder holds: more likely a victim than not."""
        told = []
        for hang in self.hangs:
            elsewhere = waits_elsewhere(self._case.flights, hang.view)
            for number in sorted(hang.behind.keys() - hang.differs.keys()):
                if not self._explained(hang, number) and not elsewhere(number):
                    told.append(self._unexplained_words(hang, number))
        return tuple(told[:MAX_LINES])

    def _unexplained_words(self, hang: Hang, number: int) -> str:
        verb = "waits" if len(hang.waiting) == 1 else "wait"
        lacks = "has not called" if hang.behind[number] is None else "is not in"
        theirs = f"{_numbered(hang.call)} of {hang.view.title}, in which {ranks_text(hang.waiting)} {verb}"
        doing = self._rank(number).is_.doing
        return f"rank {number} {doing} and {lacks} {theirs}; whom it waits for no recorder tells"

    def evidence(self) -> tuple[str, ...]:
        """Who waits in what, and for whom: a few sentences for any verdict."""
        told = [f"{SOURCE}: {self._wait_words(wait)}" for wait in waits(self._views)[:MAX_LINES]]
        return (*told, *self._ways())

    def _ways(self) -> Iterator[str]:
        """How those were had that the hook did not tell."""
        by_way: dict[str, list[int]] = {}
        for rank, record in self._case.flights.items():
            if record.way:
                by_way.setdefault(record.way, []).append(rank)
        for way, ranks in by_way.items():
            yield f"{SOURCE} of {ranks_text(ranks)}: by the {way}"

    def _wait_words(self, wait: Wait) -> str:
        """With the members of a group that is not the whole job."""
        view = wait.view
        whole = len(view.members) == self._case.job.world_size
        members = "" if whole else f" (ranks {shorten_ranks(view.folded)})"
        verb = "waits" if len(wait.ranks) == 1 else "wait"
        head = f"{ranks_text(wait.ranks)} {verb} in {_numbered(wait.call)} of {view.title}{members}"
        if not wait.missing:
            return head
        has = "has" if len(wait.missing) == 1 else "have"
        return f"{head}, which {ranks_text(wait.missing)} {has} not called"

    def _rank(self, number: int) -> ClassifiedRank:
        return self._by_rank[number]

    @cached_property
    def _by_rank(self) -> dict[int, ClassifiedRank]:
        return {rank.rank: rank for rank in self._case.ranks}


def _unrecorded(rank: ClassifiedRank) -> bool:
    return rank.is_.name in UNRECORDED or rank.is_.operation == "monitored_barrier"


def _sentence(one: Odd, ranks: list[int]) -> str:
    reason, own = (_many(one.reason), _many(one.own)) if len(ranks) > 1 else (one.reason, one.own)
    rest = ", ".join(part for part in (own, one.others) if part)
    return f"{ranks_text(ranks)} {reason}: {rest}"


def _other_call(hang: Hang, rank: int, call: Collective) -> Odd:
    title, others = hang.view.title, ranks_text(hang.waiting)
    call_ = "calls" if len(hang.waiting) == 1 else "call"
    if call.op != hang.call.op:
        reason = f"calls {call.op} as collective {call.sequence} of {title}"
        return Odd(rank, reason, "", f"{others} {call_} {hang.call.op}")
    reason = f"calls {_numbered(call)} of {title} with {_size(call)}"
    return Odd(rank, reason, "", f"{others} {call_} it with {_size(hang.call)}")


def _size(call: Collective) -> str:
    return f"{call.elements} elements{f' of {call.dtypes}' if call.dtypes else ''}"


def _numbered(call: Collective) -> str:
    return f"{call.op} {call.sequence}"


def _collectives(count: int) -> str:
    return "one collective" if count == 1 else f"{count} collectives"


def _split_words(hang: Hang) -> str:
    by_call: dict[str, list[int]] = {}
    for rank in hang.view.by_rank:
        call = hang.view.call(rank, hang.call.sequence)
        if call is not None:
            by_call.setdefault(f"{call.op} of {_size(call)}", []).append(rank)
    told = ", ".join(f"{ranks_text(ranks)} {words}" for words, ranks in by_call.items())
    return f"collective {hang.call.sequence} of {hang.view.title} is no common one ({told})"


_MANY = {"is": "are", "has": "have", "does": "do"}


def _many(phrase: str) -> str:
    """The phrase as said of several ranks."""
    if phrase.startswith("it "):
        return f"they {_many(phrase.removeprefix('it '))}"
    verb, _, rest = phrase.partition(" ")
    return f"{_MANY.get(verb, verb.removesuffix('s'))} {rest}".strip()
