"""Concludes from the Flight Recorders of a job what kind of hang it is, and which rank the others wait for.

The first evidence is a call that a rank made differently from the majority of its group. Without one, every pending call is followed to
the ranks that it waits for, and on from those to a rank that waits for nobody. Where the votes are split, or ranks wait in a circle, no
culprit is named. Gloo records no members of its groups: the default group has all ranks; of another group only its callers are known.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import NamedTuple

import msgspec

from mldebug.capture.flight_recorder import sentences
from mldebug.capture.flight_recorder.dump import NO_BACKEND
from mldebug.capture.flight_recorder.old_forms import DEFAULT
from mldebug.capture.flight_recorder.votes import Vote, oldest_pending, views, vote
from mldebug.capture.flight_recorder.waits_for import Claim, WaitChains, claims
from mldebug.core.model import FlightGroup, FlightRecord
from mldebug.core.ranksets import fold_ranks

KINDS = (
    "healthy", "missing_rank", "no_dump", "mismatch", "stream_behind", "frozen", "split", "order_inversion", "unknown",
)  # fmt: skip
MAX_EVIDENCE = 8


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion of the analysis, for people and scripts. `group` and `seq`: process group and sequence number of the call on
    which it rests; null without one.
    """

    kind: str  # of KINDS
    culprits: tuple[int, ...] = ()
    group: str | None = None
    seq: int | None = None
    explanation: str
    evidence: tuple[str, ...] = ()  # who waits for whom, a sentence each
    circle: tuple[int, ...] = ()  # each waits for the next, the last for the first


class AnalysisResult(NamedTuple):
    """The conclusion with its evidence. `claim`: the call that does not end and shows it; `vote`: how each member made that call."""

    kind: str  # of KINDS
    explanation: str
    claim: Claim | None = None
    culprits: tuple[int, ...] = ()
    vote: Vote | None = None
    circle: tuple[int, ...] = ()


def analyse(
    records: Mapping[int, FlightRecord], unreadable: Mapping[int, str] | None = None
) -> Conclusion:
    """Judge the Flight Recorder records of a job, given by rank; a rank without a record counts as one without a dump. Members
    that a record does not list are inferred from the others.

    `unreadable`: ranks whose dump exists and cannot be read, with the reason.
    """
    analysis = Analysis(filled(records), unreadable)
    found = analysis.found
    call = found.claim or found.vote
    return Conclusion(
        kind=found.kind,
        culprits=tuple(sorted(found.culprits)),
        group=sentences.group(call.view) if call else None,
        seq=call.sequence if call else None,
        explanation=found.explanation,
        evidence=tuple(
            sentences.waits(one, unreadable or ()) for one in analysis.telling[:MAX_EVIDENCE]
        ),
        circle=found.circle,
    )


class Analysis:
    """Concludes from the Flight Recorder records of a job, given by rank, what kind of hang it is and which ranks the others wait for."""

    def __init__(
        self, records: Mapping[int, FlightRecord], unreadable: Mapping[int, str] | None = None
    ) -> None:
        self._records = records
        self._unreadable = unreadable or {}
        self._views = views(records)
        self._chains = WaitChains(claims(self._views, records))

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The calls in which ranks wait for others, those with most waiting ranks first."""
        return self._chains.claims

    @property
    def unfinished(self) -> Mapping[int, Claim]:
        """By rank, the call that it is still in although at least half of the group's members have left it."""
        return self._chains.unfinished

    @property
    def telling(self) -> tuple[Claim, ...]:
        """The calls that do not end, sorted for a report: first those on which the result rests, last those that only wait behind
        an older call.
        """
        shown = {id(one) for one in (self.found.claim, *self._chains.unfinished.values())}
        return tuple(
            sorted(
                self.claims,
                key=lambda one: (id(one) not in shown, bool(one.held) and not one.on),
            )
        )

    @cached_property
    def found(self) -> AnalysisResult:
        """The result: that of the first rule that applies, in a fixed order of rules."""
        rules: tuple[Callable[[], AnalysisResult | None], ...] = (
            self._disagreement, self._sinks, self._unfinished, self._victims, self._circle, self._absent, self._frozen,
            self._waits, self._history,
        )  # fmt: skip
        return next((found for rule in rules if (found := rule())), None) or self._quiet()

    # --- who made another call -----------------------------------------------------------------------

    def _disagreement(self) -> AnalysisResult | None:
        """A pending call of which the group has made different ones; the earliest, and one without a majority last."""
        calls = (claim for claim in self.claims if not claim.transfer)
        votes = ((claim, vote(claim.view, claim.sequence)) for claim in calls)
        odd = ((claim, result) for claim, result in votes if result.differs or result.split)
        first = min(
            odd, key=lambda one: (one[1].split, one[0].created_at, one[0].sequence), default=None
        )
        return _differs(first[1], first[0]) if first else None

    def _history(self) -> AnalysisResult | None:
        """Nobody waits, and yet a call that all records still hold was not the same for all."""
        for view in self._views:
            if len(view.by_rank) < 2:
                continue
            first = max(
                min(c.sequence for c in g.calls) if g.calls else 0 for g in view.by_rank.values()
            )
            last = min(group.enqueued for group in view.by_rank.values())
            numbers = {c.sequence for g in view.by_rank.values() for c in g.calls}
            for sequence in sorted(one for one in numbers if max(1, first) <= one <= last):
                result = vote(view, sequence)
                if result.differs or result.split:
                    return _differs(result)
        return None

    # --- who is behind -------------------------------------------------------------------------------

    def _sinks(self) -> AnalysisResult | None:
        """The ranks for whom all others wait in the end."""
        for kind in ("missing_rank", "stream_behind"):
            if kind in self._by_kind:
                return self._behind(kind, self._by_kind[kind])
        return None

    def _victims(self) -> AnalysisResult | None:
        """A rank at the end of all chains that may be held up itself."""
        for claim, rank in self._by_kind.get("unknown", ()):
            return AnalysisResult("unknown", sentences.victim(claim, rank), claim)
        return None

    @cached_property
    def _by_kind(self) -> dict[str, list[tuple[Claim, int]]]:
        kinds: dict[str, list[tuple[Claim, int]]] = {}
        for rank in self._chains.sinks:
            claim = self._chains.on(rank)[0]
            kinds.setdefault(self._kind(rank, claim), []).append((claim, rank))
        return kinds

    def _behind(self, kind: str, found: list[tuple[Claim, int]]) -> AnalysisResult:
        claim = max((one for one, _ in found), key=lambda one: len(one.waiting))
        ranks = tuple(rank for _, rank in found)
        if kind == "stream_behind":
            return AnalysisResult(kind, sentences.behind(claim, ranks), claim, ranks)
        named = tuple(
            rank for rank in ranks if not all(one.outnumbered for one in self._chains.on(rank))
        )
        return AnalysisResult(kind, sentences.missing(claim, ranks), claim, named)

    def _kind(self, rank: int, claim: Claim) -> str:
        """What a rank is that others wait for: "" where its own wait is the one to explain."""
        own = [one for one in self._chains.of(rank) if one != claim]
        elsewhere = any(one.view is not claim.view for one in own)
        if elsewhere and not (claim.most and self._waits_only_for(rank, claim)):
            return ""
        if any(one.rooted for one in own):
            return "unknown"
        return "missing_rank" if rank in claim.late else "stream_behind"

    def _waits_only_for(self, rank: int, claim: Claim) -> bool:
        """Whatever group it waits in, for the members of this one alone: then it is no victim of others."""
        record = self._records[rank]
        others = (group for group in record.groups if group.members != claim.view.folded)
        return not record.sends and all(oldest_pending(one) is None for one in others)

    def _circle(self) -> AnalysisResult | None:
        circle = self._chains.circle()
        if not circle or self._chains.sinks:
            return None
        claim, odd = self._odd()
        links = [
            (one, self._chains.link(one, after))
            for one, after in zip(circle, circle[1:] + circle[:1], strict=True)
        ]
        words = sentences.circle(links, odd)
        return AnalysisResult("order_inversion", words, claim or links[0][1], odd, circle=circle)

    def _odd(self) -> tuple[Claim | None, tuple[int, ...]]:
        """Who takes the groups in another order than a majority that has the same groups."""
        for claim in self.claims:
            others = claim.late or claim.held
            alone = (self._waits_only_for(rank, claim) for rank in others)
            there = len(claim.waiting) - len(claim.held)
            if others and not claim.transfer and 2 * there > len(claim.members) and all(alone):
                return claim, others
        return None, ()

    # --- nobody is behind ------------------------------------------------------------------------------

    def _unfinished(self) -> AnalysisResult | None:
        """Calls that have ended on some ranks of their group and not on all: those who are still in them, where they are no majority."""
        named = self._chains.unfinished
        accusing = {id(claim) for claim in named.values()}
        first = [claim for claim in self.claims if id(claim) in accusing]
        few = first or [one for one in self._ends if one.ended_on_some]
        if not few:
            return None
        words = " ".join(map(sentences.unfinished, few[:MAX_EVIDENCE]))
        return AnalysisResult("stream_behind", words, few[0], tuple(sorted(named)))

    def _absent(self) -> AnalysisResult | None:
        """Ranks wait, and others have no dump; such a rank is named where little else is possible."""
        for claim in self._ends:
            if claim.forgot:
                unplaced = [rank for rank in claim.forgot if self._records[rank].unplaced]
                words = sentences.unplaced(claim, unplaced) if unplaced else sentences.forgotten(claim)  # fmt: skip
                return AnalysisResult("unknown", words, claim)
            if broken := {rank: self._unreadable[rank] for rank in claim.absent if rank in self._unreadable}:  # fmt: skip
                return AnalysisResult("unknown", sentences.unreadable(claim, broken), claim)
            if claim.absent:
                sure = claim.most or len(claim.absent) == 1
                named = claim.absent if sure else ()
                return AnalysisResult("no_dump", sentences.absent(claim, sure), claim, named)
        return None

    def _frozen(self) -> AnalysisResult | None:
        claim = next(iter(self._ends), None)
        return AnalysisResult("frozen", sentences.frozen(claim), claim) if claim else None

    def _waits(self) -> AnalysisResult | None:
        """Ranks wait, and none of the rules above tells for whom."""
        claim = next(iter(self.claims), None)
        return AnalysisResult("unknown", sentences.unclear(claim), claim) if claim else None

    def _quiet(self) -> AnalysisResult:
        """Nobody waits in any call."""
        count = len(self._records)
        if not self._views:
            return AnalysisResult("unknown", sentences.NOTHING)
        if self._missing:
            return AnalysisResult("no_dump", sentences.quiet_but(self._missing, count, self._unreadable))  # fmt: skip
        return AnalysisResult("healthy", sentences.healthy(self._views, count))

    @cached_property
    def _ends(self) -> tuple[Claim, ...]:
        """The claims that nobody with a dump surely holds up: the ends of all chains."""
        return tuple(claim for claim in self.claims if not claim.on and not claim.held)

    @cached_property
    def _missing(self) -> tuple[int, ...]:
        members = {rank for view in self._views for rank in view.members}
        return tuple(sorted(members - self._records.keys()))


def _differs(result: Vote, claim: Claim | None = None) -> AnalysisResult:
    kind, words = ("split", sentences.split) if result.split else ("mismatch", sentences.mismatch)
    return AnalysisResult(kind, words(result), claim, tuple(result.differs), result)


def filled(records: Mapping[int, FlightRecord]) -> dict[int, FlightRecord]:
    """The records, sorted by rank, with missing members and backends of groups filled in: all ranks for the default group, the
    ranks that called it for another.
    """
    backends: dict[tuple[str, str], str] = {}
    callers: dict[tuple[str, str], list[int]] = {}
    for rank, record in sorted(records.items()):
        for group in record.groups:
            callers.setdefault((group.backend, group.name), []).append(rank)
            if group.backend != NO_BACKEND:
                backends.setdefault((group.name, group.members), group.backend)

    @cache
    def guess(backend: str, name: str, default: bool) -> str:
        return fold_ranks(_all(records) if default else callers[backend, name])

    def fill(group: FlightGroup) -> FlightGroup:
        if group.members and group.backend != NO_BACKEND:
            return group
        counted_by = backends.get((group.name, group.members), NO_BACKEND)
        backend = counted_by if group.backend == NO_BACKEND else group.backend
        default = group.description == DEFAULT
        members = group.members or guess(group.backend, group.name, default)
        return msgspec.structs.replace(group, backend=backend, members=members)

    return {
        rank: msgspec.structs.replace(one, groups=tuple(map(fill, one.groups)))
        for rank, one in sorted(records.items())
    }


def _all(records: Mapping[int, FlightRecord]) -> Iterable[int]:
    """The ranks of a job as its dumps are numbered; a wild number makes no members."""
    last = max(records)
    return range(last + 1) if last <= 4 * len(records) + 64 else records
