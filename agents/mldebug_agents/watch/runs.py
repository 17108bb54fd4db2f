"""One run under watch, and how people see it."""

import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

import msgspec

from mldebug.cluster.run_identity import job_key, run_id
from mldebug.core.model import (
    Diagnosis,
    Gap,
    HookState,
    Job,
    Judgement,
    NodeCapture,
    Role,
    shared_fields,
)
from mldebug.diagnosis.classify.rank_states import classified
from mldebug.goodput.straggler import Slowness
from mldebug.incidents.incident import Incident
from mldebug.jobs.heartbeat import hook_summary
from mldebug.stall.decision import StallWatch
from mldebug.stall.sentences import signal_words
from mldebug.stall.signals import RankLook, RunLook, Stage, StallDecision
from mldebug.status.snapshot import RunState
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.judging import judge

NO_TRAINING = (
    *("pytest", "py.test", "unittest", "ipykernel", "ipykernel_launcher"),
    *("jupyter", "jupyter-lab", "jupyter-notebook", "jupyterhub-singleuser"),
)
STEPS = 2  # records of a lone process: a single line may look like one by chance
SERVERS = ("inet_csk_accept", "inet_csk_wait_for_connect", "ep_poll", "do_epoll_wait")
"""Where a main thread waits for its next client: in accept(), or in an event loop."""


class Run:
    """One run under watch: its decision logic, its last look and decision, and its open incident.

    Others read its attributes; only its methods change them. Belongs to the main loop's thread.
    """

    def __init__(self, job: Job, watch: StallWatch) -> None:
        self.job = job
        self.watch = watch
        self.decision: StallDecision | None = None
        self.last_look: JobLook | None = None
        self.hook_states: dict[int, HookState] = {}  # by rank: the last of each in this attempt
        self.unjudged = ""  # why it raises no alert, as a sentence
        self.classes: dict[int, str] = {}
        self.roles: dict[int, Role] = {}
        self.frames: dict[int, str] = {}
        # taken at the confirmation, kept whatever the ranks do
        self.capture: NodeCapture | None = None
        self.missed: tuple[Gap, ...] = ()  # why none was, for an incident that opens later
        self.slowness: Slowness | None = None  # what the last row of stack samples showed
        self.incident: Incident | None = None
        self.judgement: Judgement | None = None

    def update(self, look: JobLook) -> None:
        """Keep the newest reading of the run (`look`).

        The last hook state of a rank that is gone, and which ranks were slow, is kept until another attempt (start of the job) begins.
        """
        if self.last_look is not None and self.last_look.job.attempt != look.job.attempt:
            self.hook_states, self.slowness = {}, None
            self.classes, self.roles, self.frames = {}, {}, {}
        self.job, self.last_look = look.job, look
        self.hook_states |= _hook_states(look)
        # a busy node has time for some of its ranks: what the others did last is still known
        self.classes |= {rank: found.name for rank, found in look.classes.items()}
        self.roles |= {rank: found.role for rank, found in look.classes.items()}
        self.frames = {**self.frames, **look.frames}

    @property
    def is_alone(self) -> bool:
        """Whether all its ranks were on this node at the last look: no other node knows more of it."""
        return self.last_look is not None and not self.last_look.look.elsewhere

    def set_job(self, job: Job) -> None:
        """Replace the job, for a run that has no ranks to look at yet."""
        self.job = job

    def resume(self, watch: StallWatch) -> None:
        """Replace the decision logic by one that continues from an earlier agent's memory."""
        self.watch = watch

    def exclude(self, patterns: tuple[str, ...]) -> None:
        """Set `unjudged`: the reason why this run raises no alert, "" if it may raise one. `patterns`: shell patterns of
        job names for which no alert is ever raised.
        """
        self.unjudged = unjudged(self.last_look, patterns) if self.last_look is not None else ""

    def decide(self, decision: StallDecision) -> None:
        """Keep the newest decision about this run."""
        self.decision = decision

    def clear_suspicion(self) -> None:
        """Drop stack samples, the kept capture and the reasons why captures are missing, because the run makes steps again."""
        self.classes, self.roles, self.frames = {}, {}, {}
        self.take_evidence()

    def set_slowness(self, found: Slowness) -> None:
        """Keep the result of comparing the ranks' stack samples: which ranks slow the others down."""
        self.slowness = found

    def learn(self, capture: NodeCapture) -> None:
        """Tell the stall watch what a capture shows: which ranks wait, and whether a rank's Flight Recorder is still to come.
        A capture of an earlier attempt (start of the job) is passed over.
        """
        if capture.job.attempt == self.job.attempt:
            self.watch.await_answer(bool(capture.awaited))
            self.watch.take_classes(_waits_by_native(capture))

    # --- its incident ------------------------------------------------------------------------------

    def keep_capture(self, capture: NodeCapture) -> None:
        """Keep a capture for the incident that is open, or opens later."""
        self.capture = capture

    def add_missed(self, gap: Gap) -> None:
        """Keep the reason why a capture failed, for an incident that opens later. The same reason is kept once."""
        self.missed = tuple(dict.fromkeys((*self.missed, gap)))

    def take_evidence(self) -> tuple[NodeCapture | None, tuple[Gap, ...]]:
        """Return the kept capture and the reasons why others failed, and drop both."""
        capture, missed, self.capture, self.missed = self.capture, self.missed, None, ()
        return capture, missed

    def set_incident(self, incident: Incident, judgement: Judgement | None = None) -> Incident:
        """Keep this state of the run's open incident, and return it.

        `judgement` replaces the kept one where it is given.
        """
        self.incident, self.judgement = incident, judgement or self.judgement
        return incident

    def judge(self, incident: Incident) -> Judgement:
        """Judge the run's open incident as it is now, keep incident and judgement, and return the judgement. Where the CPU time
        for judging
        is used up, the judgement before is kept; where a rank has exited since, `unknown` takes its place.
        """
        before = self.incident
        holds = before is not None and before.kind == incident.kind and before.exit == incident.exit
        self.incident, self.judgement = incident, judge(incident, self.judgement if holds else None)
        return self.judgement

    def forget_incident(self) -> None:
        """Drop the run's incident, its judgement, and what was captured for it, because the incident is closed."""
        self.incident = self.judgement = None
        self.take_evidence()


def _waits_by_native(capture: NodeCapture) -> dict[int, RankLook]:
    """By rank, those that wait for other ranks or for their GPU as a native stack shows, their own or that of a rank at the same
    place in the code: samples of Python frames alone do not show it.
    """
    return {
        one.rank: RankLook(
            rank=one.rank,
            role=one.is_.role,
            class_name=one.is_.name,
            operation=one.is_.operation,
            doing=one.is_.doing,
        )
        for one in classified((capture,))
        if one.is_.role is Role.WAITING and one.is_.direct
    }


def unjudged(look: JobLook, exclude: tuple[str, ...]) -> str:
    """Why this job raises no alert when it makes no steps, as a sentence; "" for a job that is judged.

    `exclude`: shell patterns of job names that are not judged.
    """
    if any(fnmatchcase(look.job.name, pattern) for pattern in exclude):
        return "not judged: its name stands in stall.exclude"
    if reason := no_training(look):
        return f"not judged: {reason}"
    return "not judged: one process that waits for clients" if _serves(look) else ""


def no_training(look: JobLook) -> str:
    """Why a job of one process is not taken for a training, so that it may idle and end without an
    alert; "" where it is one.

    A lone process without a launcher counts once it has reported a few steps.
    """
    job = look.job
    script = next((rank.script for rank in job.ranks), "")
    if job.world_size == 1 and script in NO_TRAINING:
        return f"{script} is no training"
    has_steps = look.step is not None and look.log_counts.records >= STEPS
    has_steps = has_steps or any(beat.beats >= STEPS for beat in look.beats.values())
    return "" if has_steps or job.launcher != "single" else "one process that has told no steps"


def _serves(look: JobLook) -> bool:
    """Does a lone process offer what it has trained? A step that equals its total says less: so does every epoch."""
    waits = (rank.wchan.startswith(SERVERS) for rank in look.look.ranks)
    return look.job.world_size == 1 and any(waits)


def found_state(job: Job, node: str) -> RunState:
    """The snapshot's state of a job that was found on this node but not looked at yet."""
    return RunState(
        **shared_fields(job, RunState),
        id_across_nodes=run_id(job_key(job, node)),
        ranks={rank.rank: rank.pid for rank in job.ranks},
        lost=tuple(lost.rank for lost in job.lost),
    )


def run_state(run: Run, exits: Mapping[int, str], node: str) -> RunState:
    """The state of a run for the snapshot of this node. `exits`: how each rank that ended did so, in words, by rank."""
    decision = run.decision or StallDecision(stage=Stage.WATCHING, sentence="")
    look = run.last_look or JobLook(job=run.job, look=RunLook(at=time.monotonic()))
    return msgspec.structs.replace(
        found_state(run.job, node),
        **_look_fields(run, look),
        **_decision_fields(run, decision),
        **_incident_fields(run),
        progress_at=_progress_at(decision, look),
        exits=dict(exits),
        slowness=run.slowness,
    )


def _look_fields(run: Run, look: JobLook) -> dict[str, Any]:
    """What the last look showed, and the last stack sample, which may be older."""
    return shared_fields(look, RunState) | {
        "classes": dict(run.classes),
        "roles": dict(run.roles),
        "frames": {rank: frame for rank, frame in run.frames.items() if frame},
        "hooks": _hook_states(look),
        "scalars": {name: value for name, value in look.scalars.items() if isfinite(value)},
        "lives_by": signal_words(look.look, look.step_format) if look.look.ranks else "",
    }


def _decision_fields(run: Run, decision: StallDecision) -> dict[str, Any]:
    return {
        "stage": str(decision.stage),
        "sentence": run.unjudged or decision.sentence,
        "quiet_seconds": round(decision.quiet, 1),
        "timeout_seconds": decision.timeout,
        "why_timeout": decision.why_timeout,
    }


def _incident_fields(run: Run) -> dict[str, Any]:
    """The open incident, and its verdict as far as it was judged; nothing without one."""
    found: dict[str, Any] = {}
    if run.incident is not None:
        found |= {
            "incident": run.incident.id,
            "incident_kind": run.incident.kind,
            "incident_since": _since(run.incident),
        }
    if run.judgement is not None:
        diagnosis = run.judgement.diagnosis
        found |= {
            "verdict": str(diagnosis.verdict),
            "report": diagnosis.summary,
            "culprits": _culprits(diagnosis),
        }
    return found


def _hook_states(look: JobLook) -> dict[int, HookState]:
    """Of each rank with a hook, with ages as of now: the look is some seconds old."""
    now = time.monotonic()
    return {rank: hook_summary(beat, now) for rank, beat in look.beats.items()}


def _progress_at(decision: StallDecision, look: JobLook) -> float | None:
    """Unix time of the last progress: a look has a monotonic clock, and is some seconds old already."""
    if not decision.timeout and decision.stage is not Stage.RECOVERED:
        return None  # not decided yet, or no rank lives: nothing is quiet, and nothing moves
    age = time.monotonic() - look.look.at
    return round(time.time() - age - decision.quiet, 3)


def _culprits(diagnosis: Diagnosis) -> tuple[int, ...]:
    blamed = (culprit.rank for culprit in diagnosis.culprits)
    return tuple(dict.fromkeys(rank for rank in blamed if rank is not None))


def _since(incident: Incident) -> float:
    since = incident.stalled_since
    return round(incident.detected_at if since is None else since, 3)
