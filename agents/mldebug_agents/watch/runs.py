"""One run under watch, and how people see it."""

import time
from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from mldebug.core.model import Gap, HookState, Job, Judgement, NodeCapture, Role
from mldebug.incidents.incident import Incident
from mldebug.jobs.heartbeat import hook_summary
from mldebug.jobs.logs.records import LogCounts
from mldebug.stall.signals import Stage, StallDecision
from mldebug.stall.watch import StallWatch
from mldebug.status.snapshot import RunState
from mldebug_agents.watch.job_watch import JobLook

NO_TRAINING = (
    *("pytest", "py.test", "unittest", "ipykernel", "ipykernel_launcher"),
    *("jupyter", "jupyter-lab", "jupyter-notebook", "jupyterhub-singleuser"),
)
STEPS = 2  # records of a lone process: a single line may look like one by chance
SERVERS = ("inet_csk_accept", "inet_csk_wait_for_connect", "ep_poll", "do_epoll_wait")
"""Where a main thread waits for its next client: in accept(), or in an event loop."""


class Run:
    """One run under watch: its decision logic, and what was seen last."""

    def __init__(self, job: Job, watch: StallWatch) -> None:
        self.job = job
        self.watch = watch
        self.decision: StallDecision | None = None
        self.seen: JobLook | None = None
        self.said: dict[int, HookState] = {}  # by rank: what its hook said last in this attempt
        self.unjudged = ""
        self.classes: dict[int, str] = {}
        self.roles: dict[int, Role] = {}
        self.frames: dict[int, str] = {}
        self.capture: NodeCapture | None = (
            None  # taken at the confirmation, kept whatever the ranks do
        )
        self.missed: tuple[Gap, ...] = ()  # why none was, for an incident that opens later
        self.incident: Incident | None = None
        self.judgement: Judgement | None = None

    def see(self, seen: JobLook) -> None:
        """Take one look; what a rank has said stays when it is gone, until another attempt begins."""
        if self.seen is not None and self.seen.job.attempt != seen.job.attempt:
            self.said = {}
        self.job, self.seen = seen.job, seen
        self.said |= _said(seen)


def unjudged(seen: JobLook, exclude: tuple[str, ...]) -> str:
    """Why nobody is told when this job is quiet; "" for a job that is judged."""
    if any(fnmatchcase(seen.job.name, pattern) for pattern in exclude):
        return "not judged: its name stands in stall.exclude"
    if reason := no_training(seen):
        return f"not judged: {reason}"
    return "not judged: one process that waits for clients" if _serves(seen) else ""


def no_training(seen: JobLook) -> str:
    """Why a lone process does not count as a training job: it may idle, and end, as it likes. "" for one that counts."""
    job = seen.job
    script = next((rank.script for rank in job.ranks), "")
    if job.world_size == 1 and script in NO_TRAINING:
        return f"{script} is no training"
    has_steps = seen.step is not None and seen.log_counts.records >= STEPS
    has_steps = has_steps or any(beat.beats >= STEPS for beat in seen.beats.values())
    return "" if has_steps or job.launcher != "single" else "one process that has told no steps"


def _serves(seen: JobLook) -> bool:
    """Does a lone process offer what it has trained? A step that equals its total says less: so does every epoch."""
    waits = (rank.wchan.startswith(SERVERS) for rank in seen.look.ranks)
    return seen.job.world_size == 1 and any(waits)


def found_state(job: Job) -> RunState:
    """One run as far as discovery alone knows it."""
    return RunState(
        id=job.id,
        name=job.name,
        launcher=job.launcher,
        attempt=job.attempt,
        user=job.user,
        uid=job.uid,
        world_size=job.world_size,
        ranks={rank.rank: rank.pid for rank in job.ranks},
        lost=tuple(lost.rank for lost in job.lost),
    )


def run_state(run: Run, exits: Mapping[int, str]) -> RunState:
    """One run as people see it; `exits` are the words for how its ranks ended."""
    decision, seen = run.decision, run.seen
    return msgspec.structs.replace(
        found_state(run.job),
        exits=dict(exits),
        classes=dict(run.classes),
        roles=dict(run.roles),
        frames={rank: frame for rank, frame in run.frames.items() if frame},
        stage=str(decision.stage) if decision else "watching",
        sentence=run.unjudged or (decision.sentence if decision else ""),
        quiet_seconds=round(decision.quiet, 1) if decision else 0.0,
        timeout_seconds=decision.timeout if decision else 0.0,
        why_timeout=decision.why_timeout if decision else "",
        traps=seen.traps if seen else (),
        step=seen.step if seen else None,
        loss=seen.loss if seen else None,
        said=_said(seen),
        traced=seen.traced if seen else {},
        step_seconds=seen.step_seconds if seen else None,
        step_times=seen.step_times if seen else None,
        progress_at=_progress_at(decision, seen),
        log=seen.log if seen else "",
        log_counts=seen.log_counts if seen else LogCounts(),
        incident=run.incident.id if run.incident else "",
        incident_kind=run.incident.kind if run.incident else "",
        incident_since=_since(run.incident),
        verdict=str(run.judgement.diagnosis.verdict) if run.judgement else "",
        report=run.judgement.diagnosis.summary if run.judgement else "",
        culprits=_culprits(run.judgement),
    )


def _said(seen: JobLook | None) -> dict[int, HookState]:
    """As it was at the look: the snapshot is some seconds younger."""
    now = time.monotonic()
    return {rank: hook_summary(beat, now) for rank, beat in seen.beats.items()} if seen else {}


def _progress_at(decision: StallDecision | None, seen: JobLook | None) -> float | None:
    """Unix time of the last progress: a look has a monotonic clock, and is some seconds old already."""
    if decision is None or seen is None:
        return None
    if not decision.timeout and decision.stage is not Stage.RECOVERED:
        return None  # no rank lives: nothing is quiet, and nothing moves
    age = time.monotonic() - seen.look.at
    return round(time.time() - age - decision.quiet, 3)


def _culprits(judgement: Judgement | None) -> tuple[int, ...]:
    found = judgement.diagnosis.culprits if judgement else ()
    return tuple(dict.fromkeys(one.rank for one in found if one.rank is not None))


def _since(incident: Incident | None) -> float | None:
    if incident is None:
        return None
    since = incident.stalled_since
    return round(incident.detected_at if since is None else since, 3)
