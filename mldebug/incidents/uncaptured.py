"""An incident of which no capture came: it is told all the same, with what the watch knew and nobody named. Pure."""

from mldebug.core.model import (
    Classification,
    ClassifiedRank,
    Confidence,
    Diagnosis,
    Gap,
    Job,
    Judgement,
    NodeCapture,
    Role,
    Verdict,
)
from mldebug.diagnosis.classify.rank_states import make_group
from mldebug.incidents.report.build import State

WHAT = "a capture of all ranks"
BEFORE: dict[State, str] = {
    "open": "the capture has not come back yet",
    "recovered": "the capture did not come back before the job moved again",
    "ended": "the capture did not come back before the job ended",
}
NOT_SEEN = Classification(
    name="unknown", role=Role.UNCLEAR, doing="was not captured", why=("no capture came back",)
)


def stand_in(job: Job, at: float, state: State, known: tuple[Gap, ...]) -> NodeCapture:
    """What stands for the capture. `known`: why there is none, as far as somebody knows."""
    node = next((rank.node for rank in job.ranks if rank.node), next(iter(job.nodes), ""))
    late = () if known and state == "open" else (Gap(what=WHAT, reason=BEFORE[state]),)
    return NodeCapture(node=node, taken_at=at, job=job, gaps=(*known, *late))


def judge_uncaptured(bare: NodeCapture, sentence: str, lasted: str) -> Judgement:
    """What the watch said, how long it went on, and that nobody saw more."""
    told = sentence or "the job stalled"
    evidence = (lasted, *(f"{gap.what}: {gap.reason}" for gap in bare.gaps))
    ranks = tuple(
        ClassifiedRank(rank=one.rank, node=one.node, pid=one.pid, is_=NOT_SEEN)
        for one in bare.job.ranks
    )
    return Judgement(
        diagnosis=Diagnosis(
            verdict=Verdict.UNKNOWN,
            culprits=(),
            confidence=Confidence.LOW,
            summary=f"{told[:1].upper()}{told[1:]}; no capture shows who is to blame",
            evidence=tuple(line for line in evidence if line),
            next_steps=tuple(dict.fromkeys(gap.way_out for gap in bare.gaps if gap.way_out)),
        ),
        ranks=ranks,
        groups=(make_group((), list(ranks)),) if ranks else (),
        group_of=dict.fromkeys((one.rank for one in ranks), 0),
    )
