"""An incident while it is open: begun by a stall, a slowdown or the end of a rank, completed by captures, closed when the job recovers or ends.

Pure.
"""

from typing import Literal

import msgspec

from mldebug.cluster.messages import AnnouncedExit, Whole
from mldebug.core.model import (
    Confidence,
    Diagnosis,
    Gap,
    Job,
    Judgement,
    NodeCapture,
    Noun,
    QueriedNodes,
    Role,
    Verdict,
)
from mldebug.core.report_model import CaptureView, Comparison, Report, Stall, TimelineEvent
from mldebug.core.text import rfc3339
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.judgement import judgement_of, with_gaps, without_processes
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.timeline import with_exits
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.goodput.straggler import Slowness
from mldebug.incidents.report.build import State, Trigger, build_report
from mldebug.incidents.report.changes import comparison, later_words
from mldebug.incidents.uncaptured import judge_uncaptured, stand_in
from mldebug.stall.sentences import seconds

MAX_ATTEMPTS = 1000
MAX_GAPS = 8
TRIGGERS: dict[str, Trigger] = {"stall": "stall", "abnormal_end": "exit", "slowdown": "slowdown"}


class Incident(Noun, frozen=True, kw_only=True):
    """One stall, one bad end or one slowdown of one run, with its evidence and timeline.

    Times are unix seconds.
    """

    id: str
    key: str  # run, attempt, last step: two agents that watch the same stall have the same
    job_id: str
    job: Job | None = (
        None  # as it was when the incident was opened: all that a report has where no capture comes
    )
    detected_at: float
    stalled_since: float | None = None
    timeout: float = 0.0
    why: str = ""
    collective_timeout: float | None = None  # seconds, as the hook reports it
    sentence: str = ""
    state: State = "open"
    over_at: float | None = None  # when it recovered or ended
    timeline: tuple[TimelineEvent, ...] = ()
    captures: tuple[NodeCapture, ...] = ()
    gaps: tuple[Gap, ...] = ()  # why captures are missing
    kind: Literal["stall", "abnormal_end", "slowdown"] = "stall"
    slowness: Slowness | None = None  # of a slowdown: what the samples of its ranks show
    # of the newest attempt that failed; "ending" on disk
    exit: AttemptExit | None = msgspec.field(default=None, name="ending")
    failed: tuple[int, ...] = ()  # attempts that failed the same way, in order
    alike: int = 0  # runs of the same script and user that failed the same way within an hour, this one among them
    runs: int = 0  # all runs of that script in that time
    versions: dict[str, str] = {}
    # of all nodes at one moment, ours among them; "across" on disk
    node_captures: tuple[NodeCapture, ...] = msgspec.field(default=(), name="across")
    # the nodes that were asked for them; "asked" on disk
    queried: QueriedNodes | None = msgspec.field(default=None, name="asked")
    shared: bool = False  # several nodes have it under this id: it is counted where their report is
    whole: Whole | None = None  # the diagnosis from all nodes, as the coordinator sent it
    counted: bool = False  # among the incidents of this node
    cause: Diagnosis | None = None  # of ranks that ended badly on another node before


def add_timeline(incident: Incident, at: float, what: str) -> Incident:
    """Add one event to the incident's timeline. `at`: unix time."""
    event = TimelineEvent(at=rfc3339(at), what=what)
    return msgspec.structs.replace(incident, timeline=(*incident.timeline, event))


def add_capture(incident: Incident, capture: NodeCapture) -> Incident:
    """Add a capture. Only the first and the newest are kept, so that they can be compared."""
    kept = (*incident.captures[:1], capture)
    incident = msgspec.structs.replace(incident, captures=kept)
    note = "captured all ranks"
    if moved := _moved(incident):
        note = f"captured all ranks again, {later_words(moved)}: {moved.summary}"
    return add_timeline(incident, capture.taken_at, note)


def add_gap(incident: Incident, at: float, gap: Gap) -> Incident:
    """Add the reason why there is no capture. `at`: unix time.

    A reason that is there already is not added again; the last `MAX_GAPS` are kept.
    """
    if gap in incident.gaps:
        return incident
    gaps = (*incident.gaps, gap)[-MAX_GAPS:]
    return add_timeline(
        msgspec.structs.replace(incident, gaps=gaps), at, f"no capture: {gap.reason}"
    )


def has_evidence(incident: Incident) -> bool:
    """Whether there is anything to judge by: a capture, an exit, or measurements of a slowdown."""
    captured = bool(incident.captures or incident.node_captures)
    return captured or incident.exit is not None or incident.slowness is not None


def is_unreported(incident: Incident) -> bool:
    """Whether a stall has no report of its own or of another node, and no captures of several nodes: the capture was held back, or left to another node."""
    reported = incident.counted or incident.whole is not None
    return incident.kind == "stall" and not reported and not incident.node_captures


def close_incident(incident: Incident, state: State, at: float, what: str) -> Incident:
    """Close the incident as `recovered` or `ended` at unix time `at`. `what`: a sentence for its timeline."""
    return add_timeline(msgspec.structs.replace(incident, state=state, over_at=at), at, what)


def add_exit(incident: Incident, attempt: AttemptExit, at: float, what: str) -> Incident:
    """Add a failed attempt (one start of the job): it becomes `exit`, the captures are dropped, and the incident is open
    again. Where `exit` is of this same attempt already, the record of it with more ranks is kept, and nothing else
    changes but the timeline.

    `at`: unix time; `what`: for the timeline.
    """
    before, number = incident.exit, attempt.job.attempt
    if before is not None and before.job.id == attempt.job.id:
        fuller = attempt if len(attempt.identities) >= len(before.identities) else before
        return add_timeline(msgspec.structs.replace(incident, exit=fuller), at, what)
    failed = (*incident.failed, *_attempts(incident.failed, attempt))
    for missed in failed[len(incident.failed) :]:
        if missed != number:
            incident = add_timeline(incident, at, f"attempt {missed} has failed as well")
    again = what
    if before is not None:
        is_next = (
            number > before.job.attempt
        )  # else it is of another run: a task of the same job array
        again = f"{f'attempt {number}' if is_next else 'another run'} failed the same way: {what}"
    return add_timeline(
        msgspec.structs.replace(
            incident, exit=attempt, failed=failed[-MAX_ATTEMPTS:], captures=(), state="open"
        ),
        at,
        again,
    )


def _attempts(failed: tuple[int, ...], attempt: AttemptExit) -> range:
    """The numbers of this attempt, of those before it that were too short to be watched, and of those after it that the
    launcher's output lists."""
    number = attempt.job.attempt
    first = failed[-1] + 1 if failed else number
    pids = {rank.pid for rank in attempt.identities}
    listed = [failure.pid for failure in attempt.words.failures if failure.pid is not None]
    later = 0
    for place, pid in enumerate(listed):
        if pid in pids:
            later = len(listed) - place - 1
    return range(max(first, number - MAX_ATTEMPTS), number + later + 1)


def judge(incident: Incident) -> Judgement:
    """Judge an incident by all its evidence: by the slowdown, the exits, the captures of all nodes, or else this node's
    captures.

    Of this node's captures the first is judged; the newest where the first names nobody.
    """
    if incident.slowness is not None:
        return judge_slowdown(_job(incident), incident.slowness)
    if incident.exit is not None:
        ended = _judge_exit(incident, incident.exit)
        if not incident.node_captures:
            return _or_who_is_missed(incident, incident.exit, ended)
        return after(ended.diagnosis, diagnose(incident.node_captures, incident.queried))
    if incident.node_captures and (
        incident.whole is None or incident.whole.nodes < len(incident.node_captures)
    ):
        return after(incident.cause, diagnose(incident.node_captures, incident.queried))
    found = (
        diagnose(incident.node_captures, incident.queried)
        if incident.node_captures
        else _judge_here(incident)
    )
    if incident.whole is None:
        return found
    return msgspec.structs.replace(found, diagnosis=incident.whole.diagnosis)


def judge_unread(incident: Incident, why: Gap, known: Judgement | None = None) -> Judgement:
    """The judgement of an incident whose evidence could not be judged, and `why`: `known`, what was concluded from less of it
    before, or else `unknown`. What all nodes together have shown needs no judging here.
    """
    found = _unread(incident, why) if known is None else _still(known, why)
    whole = incident.whole
    if incident.exit is not None or whole is None or whole.nodes < len(incident.node_captures):
        return found
    return msgspec.structs.replace(found, diagnosis=whole.diagnosis)


def _unread(incident: Incident, why: Gap) -> Judgement:
    job = incident.job or (incident.exit.job if incident.exit is not None else None)
    bare = _stand_in(msgspec.structs.replace(incident, job=job, slowness=None))
    bare = msgspec.structs.replace(bare, gaps=(why,))
    return judge_uncaptured(
        bare,
        incident.sentence or incident.why,
        _lasted(incident),
        "its evidence was not judged",
    )


def _still(known: Judgement, why: Gap) -> Judgement:
    begin = f"{why.what}: "
    evidence = (line for line in known.diagnosis.evidence if not line.startswith(begin))
    diagnosis = msgspec.structs.replace(
        known.diagnosis, evidence=(*evidence, f"{begin}{why.reason}")
    )
    return msgspec.structs.replace(known, diagnosis=diagnosis)


def add_node_captures(
    incident: Incident,
    captures: tuple[NodeCapture, ...],
    queried: QueriedNodes,
    at: float,
    what: str,
) -> Incident:
    """Add captures that several nodes took at one moment.

    Captures of more nodes that are there already stay instead. `at`: unix time; `what`: for the
    timeline.
    """
    if len(captures) < len(incident.node_captures):
        return add_timeline(
            incident, at, f"again: {what}; the one of {len(incident.node_captures)} nodes stays"
        )
    return add_timeline(
        msgspec.structs.replace(incident, node_captures=captures, queried=queried), at, what
    )


def add_cause(incident: Incident, cause: AnnouncedExit, at: float) -> Incident:
    """Add the diagnosis of ranks that had failed before on another node, as the cause of this incident. `at`: unix time."""
    has_cause = incident.cause is not None
    incident = msgspec.structs.replace(incident, cause=cause.diagnosis)
    what = f"before, on another node: {cause.diagnosis.summary} (report {cause.incident})"
    return incident if has_cause else add_timeline(incident, at, what)


def after(cause: Diagnosis | None, found: Judgement) -> Judgement:
    """The judgement of ranks that live, where others failed before.

    The diagnosis `cause` gives the verdict; the rest is added to its text. None: unchanged.
    """
    if cause is None:
        return found
    later = found.diagnosis
    summary = f"{cause.summary}; since then: {later.summary}" if later.summary else cause.summary
    evidence = (*cause.evidence, *later.evidence)
    steps = (*cause.next_steps, *later.next_steps)
    whole = msgspec.structs.replace(cause, summary=summary, evidence=evidence, next_steps=steps)
    return msgspec.structs.replace(found, diagnosis=whole)


def add_whole(incident: Incident, whole: Whole, at: float) -> Incident:
    """Add the diagnosis that another node made from the captures of all nodes. `at`: unix time."""
    what = f"all nodes together: {whole.diagnosis.summary} (report {whole.report} on {whole.node})"
    return add_timeline(msgspec.structs.replace(incident, whole=whole), at, what)


def _judge_here(incident: Incident) -> Judgement:
    if not incident.captures:
        return judge_uncaptured(_stand_in(incident), incident.sentence, _lasted(incident))
    first = diagnose(incident.captures[:1])
    if first.diagnosis.culprits or len(incident.captures) < 2:
        return first
    later = diagnose(incident.captures[-1:])
    return later if later.diagnosis.culprits else first


def _judge_exit(incident: Incident, attempt: AttemptExit) -> Judgement:
    """An abnormal end, with the capture of those that outlived the first; of a crash loop with the number of attempts."""
    judgement = judgement_of(attempt, judge_exit(attempt), next(iter(incident.captures[-1:]), None))
    summary = judgement.diagnosis.summary
    if len(incident.failed) >= 2:
        attempts = ", ".join(map(str, incident.failed[-8:]))
        summary += f"; {len(incident.failed)} attempts failed this way ({attempts})"
    if incident.alike >= 2:
        summary += f"; {incident.alike} of {incident.runs} runs of this script failed the same way within an hour"
    return msgspec.structs.replace(
        judgement, diagnosis=msgspec.structs.replace(judgement.diagnosis, summary=summary)
    )


def _or_who_is_missed(incident: Incident, attempt: AttemptExit, ended: Judgement) -> Judgement:
    """Where the exits name nobody, and all who live on wait: the only rank that is gone, at `low`.

    One that waits may have left the common path, and the one that is gone may only have noticed it first.
    """
    if ended.diagnosis.culprits or not (attempt.living and incident.captures):
        return ended
    later = diagnose(incident.captures[-1:])
    gone = [rank for rank in later.ranks if rank.is_.role in (Role.EXITED, Role.MISSING)]
    wait = all(rank.is_.role is Role.WAITING for rank in later.ranks if rank not in gone)
    if later.diagnosis.verdict is not Verdict.RANK_EXITED or len(gone) != 1 or not wait:
        return ended
    found = msgspec.structs.replace(
        later.diagnosis,
        confidence=Confidence.LOW,
        evidence=(*ended.diagnosis.evidence, *later.diagnosis.evidence),
    )
    return msgspec.structs.replace(ended, diagnosis=found)


def write_report(incident: Incident, judgement: Judgement, reported_at: float) -> Report:
    """Build the incident's report, on the capture that the judgement rests on.

    `reported_at`: unix time.
    """
    capture, timeline = _judged_by(incident, judgement), incident.timeline
    if incident.exit is not None:
        blamed = {one.rank for one in judgement.diagnosis.culprits if one.rank is not None}
        timeline = with_exits(timeline, incident.exit, blamed, incident.detected_at)
    capture = msgspec.structs.replace(capture, gaps=(*capture.gaps, *incident.gaps))
    report = build_report(
        judgement,
        incident.node_captures or (capture,),
        kind=incident.kind,
        trigger=TRIGGERS[incident.kind],
        state=incident.state,
        detected_at=incident.detected_at,
        reported_at=reported_at,
        stall=Stall(
            timeout_seconds=incident.timeout,
            why=incident.why,
            collective_timeout_seconds=incident.collective_timeout,
        ),
        timeline=timeline,
        versions=capture.versions or incident.versions,
        report_id=incident.id,
        stalled_since=incident.stalled_since,
        queried=incident.queried,
        node=incident.queried.by or None if incident.queried else None,
    )
    if incident.node_captures and not incident.captures:
        return report
    views = _views(incident, judgement)
    return msgspec.structs.replace(report, captures=views, comparison=_moved(incident))


def _judged_by(incident: Incident, judgement: Judgement) -> NodeCapture:
    """The capture that the judgement rests on: of an end that of those that lived on, else what stands for one."""
    if incident.exit is not None:
        return _capture_of_exit(incident, incident.exit)
    first = next(iter(incident.captures), None) or _stand_in(incident)
    return next((one for one in incident.captures if one.taken_at == judgement.taken_at), first)


def _capture_of_exit(incident: Incident, attempt: AttemptExit) -> NodeCapture:
    if incident.captures:
        return with_gaps(incident.captures[-1], attempt)
    return without_processes(attempt, incident.detected_at, incident.versions)


def _stand_in(incident: Incident) -> NodeCapture:
    """What a report shows where no capture has come; for a slowdown none is needed."""
    job = _job(incident)
    if incident.slowness is not None:
        node = next((rank.node for rank in job.ranks if rank.node), "")
        return NodeCapture(node=node, taken_at=incident.detected_at, job=job)
    return stand_in(job, incident.detected_at, incident.state, incident.gaps)


def _job(incident: Incident) -> Job:
    return incident.job or Job(id=incident.job_id, name=incident.job_id, launcher="unknown")


def _lasted(incident: Incident) -> str:
    if incident.over_at is None:
        return ""
    stood = incident.over_at - (incident.stalled_since or incident.detected_at)
    after = incident.over_at - incident.detected_at
    return f"the stall lasted {seconds(round(stood, 1))}, of which {seconds(round(after, 1))} after it was told"


def _moved(incident: Incident) -> Comparison | None:
    if len(incident.captures) < 2:
        return None
    return comparison(incident.captures[0], incident.captures[-1])


def _views(incident: Incident, judgement: Judgement) -> tuple[CaptureView, ...]:
    """The moments; where there are two, which one the report rests on."""
    first = "when the stall was confirmed" if incident.kind == "stall" else "ranks that lived on"
    notes = [first, "once more, to see what moved"][: len(incident.captures)]
    if len(notes) > 1:
        judged = _judged_by(incident, judgement).taken_at
        at = 0 if judged == incident.captures[0].taken_at else 1
        notes[at] += " (this report rests on it)"
    return tuple(
        CaptureView(
            at=rfc3339(capture.taken_at),
            duration_seconds=capture.duration_seconds,
            ranks=len(capture.ranks),
            note=note,
        )
        for capture, note in zip(incident.captures, notes, strict=True)
    )
