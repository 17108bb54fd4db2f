"""What the Flight Recorders of a job prove: what kind of hang it is, and which rank the others wait for.

Direct evidence first: a call that a majority of its group made in another way. Else every pending call is followed to those
it waits for, and on to those whom they wait for, until somebody waits for nobody. A tie is a split, and a circle is told as
one; neither has a name.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

import msgspec

from mldebug.flight import wording
from mldebug.flight.claims import Chains, Claim, claims, waits_only_here
from mldebug.flight.guesses import filled
from mldebug.flight.votes import View, Vote, views, vote
from mldebug.model import FlightRecord

KINDS = (
    "healthy", "missing_rank", "no_dump", "mismatch", "stream_behind", "frozen", "split", "order_inversion", "unknown",
)  # fmt: skip
MAX_EVIDENCE = 8


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion. `group` and `seq` name the call that tells it; null where there is none."""

    kind: str  # of KINDS
    culprits: tuple[int, ...] = ()
    group: str | None = None
    seq: int | None = None
    explanation: str
    evidence: tuple[str, ...] = ()  # who waits for whom, a sentence each
    circle: tuple[int, ...] = ()  # each waits for the next, the last for the first


def analyse(records: Mapping[int, FlightRecord]) -> Answer:
    """Judge the records of a job by rank; whose record is not there has no dump."""
    return _Analysis(filled(records)).answer()


class _Analysis:
    def __init__(self, records: dict[int, FlightRecord]) -> None:
        self._records = records
        self._views = views(records)
        self._chains = Chains(claims(self._views, records))

    def answer(self) -> Answer:
        """By the first rule that has something to say."""
        rules: tuple[Callable[[], Answer | None], ...] = (
            self._disagreement, self._sinks, self._circle, self._unfinished, self._absent, self._frozen, self._history,
        )  # fmt: skip
        return next((found for rule in rules if (found := rule())), None) or self._quiet()

    def _tell(
        self,
        kind: str,
        explanation: str,
        claim: Claim | None = None,
        culprits: tuple[int, ...] = (),
    ) -> Answer:
        lines = (wording.waits(one) for one in self._chains.claims[:MAX_EVIDENCE])
        return Answer(
            kind=kind,
            culprits=tuple(sorted(culprits)),
            group=wording.group(claim.view) if claim else None,
            seq=claim.sequence if claim else None,
            explanation=explanation,
            evidence=tuple(lines),
        )

    # --- who made another call -----------------------------------------------------------------------

    def _disagreement(self) -> Answer | None:
        """A pending call of which the group has made different ones; the earliest."""
        found: list[tuple[float, int, View, Vote]] = []
        for claim in self._chains.claims:
            if not claim.transfer:
                told = vote(claim.view, claim.sequence)
                if told.differs or told.split:
                    found.append((claim.created_at, claim.sequence, claim.view, told))
        if not found:
            return None
        _, sequence, view, told = min(found, key=lambda one: (bool(one[3].split), *one[:2]))
        return self._differs(view, sequence, told)

    def _differs(self, view: View, sequence: int, told: Vote) -> Answer:
        ranks = tuple(sorted(told.differs))
        words = wording.split if told.split else wording.mismatch
        return Answer(
            kind="split" if told.split else "mismatch",
            culprits=ranks,
            group=wording.group(view),
            seq=sequence,
            explanation=words(view, sequence, told),
            evidence=tuple(wording.waits(one) for one in self._chains.claims[:MAX_EVIDENCE]),
        )

    def _history(self) -> Answer | None:
        """Nobody waits, and yet a call that all still remember was not the same for all."""
        for view in self._views:
            if len(view.by_rank) < 2:
                continue
            first = max(
                min(c.sequence for c in g.calls) if g.calls else 0 for g in view.by_rank.values()
            )
            last = min(group.enqueued for group in view.by_rank.values())
            for sequence in range(max(1, first), last + 1):
                told = vote(view, sequence)
                if told.differs or told.split:
                    return self._differs(view, sequence, told)
        return None

    # --- who is behind -------------------------------------------------------------------------------

    def _sinks(self) -> Answer | None:
        """The ranks for whom all others wait in the end."""
        kinds: dict[str, list[tuple[Claim, int]]] = {}
        for rank in self._chains.sinks:
            claim = self._chains.on(rank)[0]
            kinds.setdefault(self._kind(rank, claim), []).append((claim, rank))
        for kind in ("missing_rank", "stream_behind"):
            if kind in kinds:
                return self._behind(kind, kinds[kind])
        return self._victim(*kinds["unknown"][0]) if "unknown" in kinds else None

    def _behind(self, kind: str, found: list[tuple[Claim, int]]) -> Answer:
        claim = max((one for one, _ in found), key=lambda one: len(one.waiting))
        ranks = tuple(rank for _, rank in found)
        words = wording.missing if kind == "missing_rank" else wording.behind
        return self._tell(kind, words(claim, ranks), claim, ranks)

    def _kind(self, rank: int, claim: Claim) -> str:
        """What a rank is that others wait for: "" where its own wait is the one to explain."""
        own = [one for one in self._chains.of(rank) if one != claim]
        if any(one.view is not claim.view for one in own):
            return ""
        if any(one.rooted for one in own):
            return "unknown"
        return "missing_rank" if rank in claim.late else "stream_behind"

    def _victim(self, claim: Claim, rank: int) -> Answer:
        return self._tell("unknown", wording.victim(claim, rank), claim)

    def _circle(self) -> Answer | None:
        circle = self._chains.circle()
        if not circle or self._chains.sinks:
            return None
        claim, odd = self._odd()
        links = [
            (one, self._link(one, after))
            for one, after in zip(circle, circle[1:] + circle[:1], strict=True)
        ]
        answer = self._tell(
            "order_inversion", wording.circle(links, odd), claim or links[0][1], odd
        )
        return msgspec.structs.replace(answer, circle=circle)

    def _odd(self) -> tuple[Claim | None, tuple[int, ...]]:
        """Who takes the groups in another order than a majority that has the same groups."""
        for claim in self._chains.claims:
            alone = (waits_only_here(self._records, rank, claim.view.folded) for rank in claim.late)
            if claim.most and claim.late and not claim.transfer and all(alone):
                return claim, claim.late
        return None, ()

    def _link(self, rank: int, after: int) -> Claim:
        return next(claim for claim in self._chains.of(rank) if after in claim.on)

    # --- nobody is behind ------------------------------------------------------------------------------

    def _unfinished(self) -> Answer | None:
        """A call that has ended on most ranks of its group and not on all."""
        for claim in self._chains.claims:
            if (
                not claim.rooted
                and not claim.transfer
                and 2 * len(claim.finished) > len(claim.members)
            ):
                return self._tell("stream_behind", wording.unfinished(claim), claim, claim.waiting)
        return None

    def _absent(self) -> Answer | None:
        """Ranks wait, and of others nothing is known; one without a dump is named where little else is possible."""
        for claim in self._ends:
            if claim.forgot:
                return self._tell("unknown", wording.forgotten(claim), claim)
            if claim.absent:
                sure = claim.most or len(claim.absent) == 1
                return self._tell(
                    "no_dump", wording.absent(claim, sure), claim, claim.absent if sure else ()
                )
        return None

    def _frozen(self) -> Answer | None:
        claim = next(iter(self._ends), None)
        return self._tell("frozen", wording.frozen(claim), claim) if claim else None

    def _quiet(self) -> Answer:
        """Nobody waits in any call."""
        if not self._views:
            return self._tell("unknown", wording.NOTHING)
        if self._missing:
            return self._tell("no_dump", wording.quiet_but(self._missing, len(self._records)))
        return self._tell("healthy", wording.healthy(self._views, len(self._records)))

    @cached_property
    def _ends(self) -> tuple[Claim, ...]:
        """The claims that nobody with a dump surely holds up: the ends of all chains."""
        return tuple(claim for claim in self._chains.claims if not claim.on)

    @cached_property
    def _missing(self) -> tuple[int, ...]:
        members = {rank for view in self._views for rank in view.members}
        return tuple(sorted(members - self._records.keys()))
