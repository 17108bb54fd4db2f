"""One run under watch, and how people see it."""

from mldebug.incident import Incident
from mldebug.model import Job, Judgement, NodeCapture
from mldebug.snapshot import RunState
from mldebug.stall.signals import Decision
from mldebug.stall.watch import StallWatch
from mldebug_agents.watch import JobLook


class Run:
    """One run under watch: its decision logic, and what was seen last."""

    def __init__(self, job: Job, watch: StallWatch) -> None:
        self.job = job
        self.watch = watch
        self.decision: Decision | None = None
        self.seen: JobLook | None = None
        self.classes: dict[int, str] = {}
        self.capture: NodeCapture | None = (
            None  # taken at the confirmation, kept whatever the ranks do
        )
        self.incident: Incident | None = None
        self.judgement: Judgement | None = None


def may_stall(seen: JobLook) -> bool:
    """A lone process that never told a step may be a notebook or a server: idling is its work."""
    return seen.job.launcher != "single" or seen.step is not None


def run_state(run: Run) -> RunState:
    """One run as people see it."""
    decision, seen, job = run.decision, run.seen, run.job
    return RunState(
        id=job.id,
        name=job.name,
        launcher=job.launcher,
        attempt=job.attempt,
        user=job.user,
        world_size=job.world_size,
        ranks={rank.rank: rank.pid for rank in job.ranks},
        lost=tuple(lost.rank for lost in job.lost),
        classes=dict(run.classes),
        stage=str(decision.stage) if decision else "watching",
        sentence=decision.sentence if decision else "",
        quiet_seconds=round(decision.quiet, 1) if decision else 0.0,
        timeout_seconds=decision.timeout if decision else 0.0,
        why_timeout=decision.why_timeout if decision else "",
        step=seen.step if seen else None,
        loss=seen.loss if seen else None,
        step_seconds=seen.step_seconds if seen else None,
        log=seen.log if seen else "",
        incident=run.incident.id if run.incident else "",
        verdict=str(run.judgement.diagnosis.verdict) if run.judgement else "",
        report=run.judgement.diagnosis.summary if run.judgement else "",
    )
