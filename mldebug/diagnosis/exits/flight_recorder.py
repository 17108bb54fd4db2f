"""What the ranks' own dumps of their Flight Recorders tell of an end: evidence, which names nobody by itself.

PyTorch writes them when a collective has taken too long, and then ends the process.
"""

import msgspec

from mldebug.capture.flight_recorder.analysis import Analysis
from mldebug.capture.flight_recorder.waits_for import Claim
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.diagnosis.exits.model import Ending
from mldebug.diagnosis.exits.outcome import Outcome

MAX_LINES = 4
RECENT = 120.0  # seconds
SOURCE = "Flight Recorder, dumped before the end"


def with_flights(outcome: Outcome, ending: Ending) -> Outcome:
    """The outcome, with who waited for whom as further evidence: never a name, and nothing of an earlier hang."""
    found = Analysis(ending.flights).claims[:MAX_LINES] if _of_this_end(ending) else ()
    if outcome.finding is None or not found:
        return outcome
    words = tuple(f"{SOURCE}: {_words(wait)}" for wait in found)
    told = msgspec.structs.replace(outcome.finding, evidence=(*outcome.finding.evidence, *words))
    return msgspec.structs.replace(outcome, finding=told)


def _of_this_end(ending: Ending) -> bool:
    """Had a call of these dumps taken too long, and that at most two minutes before the first rank ended?

    PyTorch ends a process when it has dumped. A dump of before, which the job survived, or of a neighbour with the same path says
    nothing of this end. Where nobody saw when the ranks ended, the limit alone counts.
    """
    ended = min((one.at for one in ending.exits if one.at > 0), default=0.0)
    limits = [
        call.created_at + call.timeout
        for record in ending.flights.values()
        for group in record.groups
        for call in group.calls
        if not call.done and call.timeout > 0 and call.created_at > 0
    ]
    return any(not ended or 0 <= ended - limit <= RECENT for limit in limits)


def _words(claim: Claim) -> str:
    """`ranks 0,2 waited in all_reduce 6 of group 0, which rank 1 had not called`."""
    head = f"{_ranks(claim.waiting)} waited in {claim.what} of {claim.view.title}"
    met = "met" if claim.transfer else "called"
    return f"{head}, which {_ranks(claim.late)} had not {met}" if claim.late else head


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {shorten_ranks(fold_ranks(ranks))}"
