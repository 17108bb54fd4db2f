"""The judgement of an incident without a capture: what the agent knew from watching, and no rank named.

Pure.
"""

from mldebug.core.model import (
    Classification,
    ClassifiedRank,
    Confidence,
    Diagnosis,
    Gap,
    Judgement,
    NodeCapture,
    Role,
    Verdict,
)
from mldebug.core.report_model import IncidentState
from mldebug.diagnosis.classify.rank_states import make_group
from mldebug.incidents.incident import Incident, watched_job

WHAT = "a capture of all ranks"
BEFORE: dict[IncidentState, str] = {
    "open": "the capture has not come back yet",
    "recovered": "the capture did not come back before the job moved again",
    "ended": "the capture did not come back before the job ended",
}
UNCAPTURED = Classification(
    name="unknown", role=Role.UNCLEAR, doing="was not captured", why=("no capture came back",)
)


def stand_in(incident: Incident) -> NodeCapture:
    """An empty capture with the reasons why there is none, to stand where one is needed; a slowdown needs none, and no reasons."""
    job = watched_job(incident)
    node = next((rank.node for rank in job.ranks if rank.node), "")
    if incident.slowness is not None:
        return NodeCapture(node=node, taken_at=incident.detected_at, job=job)
    known, state = incident.gaps, incident.state
    late = () if known and state == "open" else (Gap(what=WHAT, reason=BEFORE[state]),)
    node = node or next(iter(job.nodes), "")
    return NodeCapture(node=node, taken_at=incident.detected_at, job=job, gaps=(*known, *late))


def judge_uncaptured(
    bare: NodeCapture, sentence: str, lasted: str, lacks: str = "no capture shows who is to blame"
) -> Judgement:
    """The judgement of a stall of which no capture exists: the verdict is `unknown`.

    `bare`: the empty capture; `sentence`: what the agent saw of the stall; `lasted`: how long it
    lasted; `lacks`: why nobody is named.
    """
    summary = sentence or "the job stalled"
    evidence = (lasted, *(f"{gap.what}: {gap.reason}" for gap in bare.gaps))
    ranks = tuple(
        ClassifiedRank(rank=one.rank, node=one.node, pid=one.pid, is_=UNCAPTURED)
        for one in bare.job.ranks
    )
    return Judgement(
        diagnosis=Diagnosis(
            verdict=Verdict.UNKNOWN,
            culprits=(),
            confidence=Confidence.LOW,
            summary=f"{summary[:1].upper()}{summary[1:]}; {lacks}",
            evidence=tuple(line for line in evidence if line),
            next_steps=tuple(dict.fromkeys(gap.way_out for gap in bare.gaps if gap.way_out)),
        ),
        ranks=ranks,
        groups=(make_group((), list(ranks)),) if ranks else (),
        group_of=dict.fromkeys((one.rank for one in ranks), 0),
    )
