"""What the Flight Recorders of all ranks say about a hang in which every rank waits: which ranks are out of step.

`mldebug.capture.flight_recorder.analysis` says what they prove; here it is compared with the
stacks. A rank is named only where a majority of its own process group proves it out of step, and
where it does not wait in something that no recorder holds (a receive on gloo, the store, the start
of a group): such a rank may be a victim. Otherwise the finding lists the waits, as a circle where
they form one.
"""

from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from mldebug.capture.flight_recorder.access import AccessKind
from mldebug.capture.flight_recorder.analysis import AnalysisResult
from mldebug.capture.flight_recorder.votes import TO_ALL, Vote, oldest_pending
from mldebug.capture.flight_recorder.waits_for import Claim
from mldebug.core.model import (
    ClassifiedRank,
    Collective,
    Confidence,
    Finding,
    FlightRecord,
    Role,
    Verdict,
)
from mldebug.core.ranksets import shorten_ranks
from mldebug.diagnosis.classify.case import Case, ranks_text
from mldebug.diagnosis.classify.evidence import blame, show_source

UNRECORDED = frozenset(("point_to_point", "init", "store", "destroy"))
"""Classes of waits for others that are in no recorder, or not on every backend."""
FROM_FILES = frozenset((AccessKind.DUMP, AccessKind.FIFO))
RECORDED = frozenset(("collective", "backward_wait", "device_sync"))
OUT_OF_STEP = frozenset(("missing_rank", "stream_behind", "order_inversion"))
MAX_LINES = 4
SOURCE = "Flight Recorder"


class OutOfStepRank(NamedTuple):
    """One rank that is out of step with the others, in three phrases."""

    rank: int
    reason: str  # "is one collective behind in group 0 (all_reduce 5 of 6)"
    own: str  # "it waits in all_reduce 5"
    others: str  # "ranks 0-1,3 in all_reduce 6"


class FlightRecorders:
    """The Flight Recorder records of all ranks of one case, and the conclusions that they allow."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._claims = case.analysis.claims

    @cached_property
    def alike(self) -> Claim | None:
        """The collective in which all ranks of its process group wait, with no rank behind in any group; None where the recorders do not show this."""
        found = self._case.analysis.found
        return found.claim if found.kind == "frozen" and _is_whole(found.claim) else None

    def judge(self) -> Finding | None:
        """A finding about ranks that are out of step; None where the recorders show none, where some rank does not wait, or where a wait ended."""
        if self._case.moved or not all(map(self._waits, self._case.ranks)):
            return None
        found = self._case.analysis.found
        claim = found.claim
        if claim is None or (claim.transfer and not found.circle):
            return None
        odd = tuple(self._odd(found, claim))
        if odd:
            return self._named(claim, odd, sure=found.kind != "stream_behind")
        return self._nobody(found, claim) if _is_reported(found, claim) else None

    def _waits(self, rank: ClassifiedRank) -> bool:
        """By its stack, else by its Flight Recorder."""
        role = rank.is_.role
        return role is Role.WAITING or (role is Role.UNCLEAR and self._pends(rank.rank))

    def _pends(self, rank: int) -> bool:
        record = self._case.flight_records.get(rank, FlightRecord())
        return any(oldest_pending(group) is not None for group in record.groups)

    def _agrees(self, rank: ClassifiedRank) -> bool:
        """Does its stack wait where its recorder has a call that is not done?"""
        return rank.is_.name in RECORDED and not _unrecorded(rank) and self._pends(rank.rank)

    # --- who is out of step ------------------------------------------------------------------------

    def _odd(self, found: AnalysisResult, claim: Claim) -> Iterator[OutOfStepRank]:
        if found.vote is not None and 2 * len(_others(claim, ())) > len(claim.members):
            yield from _other_calls(found.vote, claim)
        elif found.kind == "stream_behind" and claim.ended_on_some:
            yield from map(self._unfinished, found.culprits)
        elif found.kind in OUT_OF_STEP and claim.most:
            for rank in found.culprits:
                if rank in claim.on and self._may_be_named(claim, rank):
                    yield self._late(claim, rank)

    def _unfinished(self, rank: int) -> OutOfStepRank:
        """A call that has ended for half of its group or more: all have come, so those who are still in it hold it up."""
        claim = self._case.analysis.unfinished[rank]
        title, theirs = claim.view.title, ranks_text(claim.finished)
        verb = _verb(claim.finished, "has", "have")
        others = f"which {theirs} {verb} finished"
        return OutOfStepRank(rank, f"is still in {claim.what} of {title}", "", others)

    def _may_be_named(self, claim: Claim, rank: int) -> bool:
        return self._explained(claim, rank) and not self._case.flight_records[rank].sends

    def _explained(self, claim: Claim, number: int) -> bool:
        """Is it known in what a rank that is behind waits? What runs on its GPU is all in the recorder of NCCL."""
        rank = self._rank(number)
        if _unrecorded(rank):
            return False
        on_gpu = rank.is_.name == "device_sync" and claim.view.backend == "nccl"
        return on_gpu or self._pends(number)

    def _late(self, claim: Claim, rank: int) -> OutOfStepRank:
        title, waiting = claim.view.title, _others(claim, (rank,))
        others, own = ranks_text(waiting), claim.view.pending.get(rank)
        if own is not None and own.sequence < claim.sequence:
            count = claim.sequence - own.sequence
            reason = f"is {_collectives(count)} behind in {title} ({own.op} {own.sequence} of {claim.sequence})"
            return OutOfStepRank(
                rank, reason, f"it waits in {_numbered(own)}", f"{others} in {claim.what}"
            )
        if rank in claim.slow:
            reason = f"has called {claim.what} of {title}, and its GPU has not come to it"
            return OutOfStepRank(rank, reason, "", f"{others} {_verb(waiting, 'is', 'are')} in it")
        verb = _verb(waiting, "waits", "wait")
        reason = f"has not called {claim.what} of {title}, in which {others} {verb}"
        return OutOfStepRank(rank, reason, self._instead(claim, rank), "")

    def _instead(self, claim: Claim, rank: int) -> str:
        """In a group of the same members, if in any: then it takes the groups in another order."""
        for other in self._claims:
            if rank in other.waiting and other.view is not claim.view:
                return f"it waits in {other.what} of {other.view.title} instead"
        return f"it {self._rank(rank).is_.doing}"

    def _named(self, claim: Claim, found: tuple[OutOfStepRank, ...], *, sure: bool) -> Finding:
        reasons = {one.rank: one.reason for one in found}
        odd = tuple(self._rank(number) for number in reasons)
        first = self._rank((_others(claim, reasons) or claim.finished)[0])
        finding = blame(
            self._case,
            Verdict.COLLECTIVE_MISMATCH,
            odd,
            (show_source(odd[0]), show_source(first)),
            confidence=self._confidence(claim, odd) if sure else Confidence.MEDIUM,
        )
        culprits = tuple(
            msgspec.structs.replace(one, reason=reasons[one.rank])
            for one in finding.culprits
            if one.rank is not None
        )
        return msgspec.structs.replace(finding, culprits=culprits, summary=self._summary(found))

    def _confidence(self, claim: Claim, odd: tuple[ClassifiedRank, ...]) -> Confidence:
        """Sequence numbers of all members are direct evidence, if the ranks were watched and did not move, and each of
        them waits in a recorded call by its stack, too. Not those in a file: another job may write one of its name."""
        watched = all(one.capture and one.capture.process.movement for one in odd)
        members = self._case.complete and not (claim.absent or claim.forgot)
        filed = any(
            self._case.flight_records[rank].way in FROM_FILES for rank in claim.view.by_rank
        )
        proved = watched and members and not filed and all(map(self._agrees, self._case.ranks))
        return Confidence.HIGH if proved else Confidence.MEDIUM

    def _summary(self, found: tuple[OutOfStepRank, ...]) -> str:
        """Ranks with one reason and place in one sentence."""
        alike: dict[OutOfStepRank, list[int]] = {}
        for one in found:
            alike.setdefault(self._placed(one), []).append(one.rank)
        sentences = [_sentence(one, ranks) for one, ranks in alike.items()]
        return "; ".join(sentences[:MAX_LINES])

    def _placed(self, one: OutOfStepRank) -> OutOfStepRank:
        """With its place in the code, and without its number."""
        site = self._rank(one.rank).is_.site
        at = f" at {site}" if site and site not in one.own else ""
        if one.own:
            return one._replace(rank=-1, own=one.own + at)
        return one._replace(rank=-1, reason=one.reason + at)

    # --- nobody ------------------------------------------------------------------------------------

    def _nobody(self, found: AnalysisResult, claim: Claim) -> Finding:
        """Who waits for whom; a circle is sure to be one, but not where it began."""
        waits = "; ".join(map(self._wait_words, self._claims[:MAX_LINES]))
        waits = waits if found.vote is None else _split_words(found.vote)
        head = "ranks wait for each other in a circle" if found.circle else "all ranks wait"
        summary = f"{head}: {waits}; no majority tells who left the common path"
        unknown = () if found.circle or found.vote else self._unexplained(found, claim)
        confidence = Confidence.MEDIUM if found.circle else Confidence.LOW
        finding = blame(self._case, Verdict.COLLECTIVE_MISMATCH, (), (), confidence=confidence)
        return msgspec.structs.replace(
            finding,
            summary="; ".join(unknown) or summary,
            next_steps=tuple(show_source(self._rank(one.waiting[0])) for one in self._claims[:2]),
        )

    def _unexplained(self, found: AnalysisResult, claim: Claim) -> tuple[str, ...]:
        """Who is behind, in a wait that no recorder holds: more likely a victim than not."""
        ranks = (rank for rank in found.culprits if not self._case.flight_records[rank].sends)
        return tuple(self._unexplained_words(claim, rank) for rank in ranks)[:MAX_LINES]

    def _unexplained_words(self, claim: Claim, number: int) -> str:
        waiting = _others(claim, (number,))
        lacks = "has not called" if number in claim.late else "is not in"
        theirs = f"{claim.what} of {claim.view.title}, in which {ranks_text(waiting)} {_verb(waiting, 'waits', 'wait')}"
        doing = self._rank(number).is_.doing
        return f"rank {number} {doing} and {lacks} {theirs}; whom it waits for no recorder tells"

    def evidence(self) -> tuple[str, ...]:
        """Evidence sentences for any verdict: which ranks wait in which call and for whom, and how the recorders were read."""
        lines = [f"{SOURCE}: {self._wait_words(one)}" for one in self._claims[:MAX_LINES]]
        return (*lines, *self._access_methods())

    def _access_methods(self) -> Iterator[str]:
        """How the records were read that did not come from the hook."""
        by_method: dict[str, list[int]] = {}
        for rank, record in self._case.flight_records.items():
            if record.way:
                by_method.setdefault(record.way, []).append(rank)
        for way, ranks in by_method.items():
            yield f"{SOURCE} of {ranks_text(ranks)}: by the {way}"

    def _wait_words(self, claim: Claim) -> str:
        """With the members of a group that is not the whole job."""
        view = claim.view
        whole = len(view.members) == self._case.job.world_size
        members = "" if whole else f" (ranks {shorten_ranks(view.folded)})"
        verb = _verb(claim.waiting, "waits", "wait")
        head = f"{ranks_text(claim.waiting)} {verb} in {claim.what} of {view.title}{members}"
        if not claim.late:
            return head
        met = "met" if claim.transfer else "called"
        return (
            f"{head}, which {ranks_text(claim.late)} {_verb(claim.late, 'has', 'have')} not {met}"
        )

    def _rank(self, number: int) -> ClassifiedRank:
        return self._by_rank[number]

    @cached_property
    def _by_rank(self) -> dict[int, ClassifiedRank]:
        return {rank.rank: rank for rank in self._case.ranks}


def _unrecorded(rank: ClassifiedRank) -> bool:
    return rank.is_.name in UNRECORDED or rank.is_.operation == "monitored_barrier"


def _sentence(one: OutOfStepRank, ranks: list[int]) -> str:
    reason, own = (_many(one.reason), _many(one.own)) if len(ranks) > 1 else (one.reason, one.own)
    rest = ", ".join(part for part in (own, one.others) if part)
    return f"{ranks_text(ranks)} {reason}: {rest}"


def _is_whole(claim: Claim | None) -> bool:
    return claim is not None and not claim.transfer and set(claim.waiting) == claim.members


def _is_reported(found: AnalysisResult, claim: Claim) -> bool:
    """Whether the recorders show that some rank is out of step, without showing which."""
    return bool(found.vote or found.circle or (claim.most and claim.on))


def _others(claim: Claim, odd: Container[int]) -> tuple[int, ...]:
    """Who waits in it, but for these."""
    pending = sorted(claim.view.pending.items())
    return tuple(
        rank for rank, call in pending if call.sequence == claim.sequence and rank not in odd
    )


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


def _other_calls(vote: Vote, claim: Claim) -> Iterator[OutOfStepRank]:
    waiting, title = _others(claim, vote.differs), vote.view.title
    others = f"{ranks_text(waiting)} {_verb(waiting, 'calls', 'call')}"
    for rank, call in sorted(vote.differs.items()):
        assert vote.model is not None  # noqa: S101 - they differ from it
        reason = f"calls {_numbered(call)} of {title} with {_size(call)}"
        rest = f"{others} it with {_size(vote.model)}"
        if call.op != vote.model.op:
            reason = f"calls {call.op} as collective {call.sequence} of {title}"
            rest = f"{others} {vote.model.op}"
        yield OutOfStepRank(rank, reason, "", rest)


def _size(call: Collective) -> str:
    into = f" into {call.outputs}" if call.op in TO_ALL and call.outputs is not None else ""
    return f"{call.elements} elements{f' of {call.dtypes}' if call.dtypes else ''}{into}"


def _numbered(call: Collective) -> str:
    return f"{call.op} {call.sequence}"


def _collectives(count: int) -> str:
    return "one collective" if count == 1 else f"{count} collectives"


def _split_words(vote: Vote) -> str:
    by_call: dict[str, list[int]] = {}
    for rank, call in vote.calls.items():
        by_call.setdefault(f"{call.op} of {_size(call)}", []).append(rank)
    sides = ", ".join(f"{ranks_text(ranks)} {words}" for words, ranks in by_call.items())
    return f"collective {vote.sequence} of {vote.view.title} is not the same for all ({sides})"


_MANY = {"is": "are", "has": "have", "does": "do"}


def _many(phrase: str) -> str:
    """The phrase for several ranks."""
    if phrase.startswith("it "):
        return f"they {_many(phrase.removeprefix('it '))}"
    verb, _, rest = phrase.partition(" ")
    return f"{_MANY.get(verb, verb.removesuffix('s'))} {rest}".strip()
