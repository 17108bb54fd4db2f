"""An incident while it is open: begun by a stall, a slowdown or the end of a rank, completed by captures, closed when the job recovers or ends.

Pure.
"""

from typing import Literal

import msgspec

from mldebug.cluster.messages import AnnouncedExit, Whole
from mldebug.core.model import Diagnosis, Gap, Job, MeasuredData, NodeCapture, QueriedNodes
from mldebug.core.report_model import Comparison, GoodputView, IncidentState, TimelineEvent
from mldebug.core.text import rfc3339
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.goodput.straggler import Slowness
from mldebug.incidents.report.changes import comparison, later_words

MAX_ATTEMPTS = 1000
MAX_GAPS = 8


class Incident(MeasuredData, frozen=True, kw_only=True):
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
    state: IncidentState = "open"
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
    goodput: GoodputView | None = None  # of one with which an attempt ended
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
    if change := changes_between_captures(incident):
        note = f"captured all ranks again, {later_words(change)}: {change.summary}"
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


def close_incident(incident: Incident, state: IncidentState, at: float, what: str) -> Incident:
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


def add_whole(incident: Incident, whole: Whole, at: float) -> Incident:
    """Add the diagnosis that another node made from the captures of all nodes. `at`: unix time."""
    what = f"all nodes together: {whole.diagnosis.summary} (report {whole.report} on {whole.node})"
    return add_timeline(msgspec.structs.replace(incident, whole=whole), at, what)


def watched_job(incident: Incident) -> Job:
    """The job as it was when the incident was opened; of an incident stored without it, one with nothing but its id."""
    return incident.job or Job(id=incident.job_id, name=incident.job_id, launcher="unknown")


def changes_between_captures(incident: Incident) -> Comparison | None:
    """What moved between the first capture and the newest; None where there is one or none."""
    if len(incident.captures) < 2:
        return None
    return comparison(incident.captures[0], incident.captures[-1])
