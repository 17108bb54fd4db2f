"""The events that agents send to a hub: small, versioned and bounded. Pure.

Every text is one printable line without secrets and every list has a greatest length, so that one event never has more than
`MAX_EVENT` bytes. Unknown fields are ignored on reading: a newer agent may send to an older hub. Times are unix seconds.
"""

import hashlib
from typing import Annotated, Literal

import msgspec

SCHEMA = 1
"""Of every event. A hub refuses events with a greater number: their meaning may differ."""

MAX_EVENT = 16_384  # bytes of one event as JSON
MAX_CULPRITS, MAX_GPUS, MAX_USES, MAX_LINES = 8, 32, 16, 8
LAST_TIME = 1e11  # unix seconds: no clock is as far ahead

Word = Annotated[str, msgspec.Meta(max_length=64)]
Name = Annotated[str, msgspec.Meta(max_length=200)]
Line = Annotated[str, msgspec.Meta(max_length=600)]
# `$` alone allows a line's end after it
NODE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$(?!\n)"
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=NODE_NAME)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=LAST_TIME)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Ratio = Annotated[float, msgspec.Meta(ge=-1, le=1e6)]
UserId = Annotated[int, msgspec.Meta(ge=-1, le=1 << 32)]
Index = Annotated[int, msgspec.Meta(ge=0, le=1024)]


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of all events that agents send to the hub. `id` stays the same however often an event is sent: see `with_id`."""

    id: Annotated[str, msgspec.Meta(max_length=32)] = ""
    schema: Annotated[int, msgspec.Meta(ge=1)] = SCHEMA
    node: NodeName  # whose agent has found it
    subject: Name  # what it is about, unique on its node: "incident/20261121T055041Z-1a2b3c"
    revision: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] = 1  # of its subject: 1, 2, 3 …
    at: Moment  # since when it is so
    job: Name = ""  # name of the job, where it concerns one
    run: Name = ""
    uid: UserId = -1  # whose job it is; -1: the node's, which only operators see


class FleetGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU in a node. `serial` stays with it for life; "" where the driver does not give it."""

    uuid: Name
    serial: Word = ""
    index: Index | None = None
    model: Name = ""


class FleetCulprit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A culprit of an incident, on any node of the job."""

    kind: Word  # rank, node, gpu, mount, link, worker
    node: Name
    rank: Count | None = None
    reason: Line = ""


class IncidentEvent(FleetEvent, frozen=True, kw_only=True, tag="incident"):
    """An incident (a stall, an abnormal end or a slowdown) was opened, has another verdict or culprit than before, or is over."""

    state: Literal["opened", "changed", "ended"]
    incident: Name  # its id, which its report bears too
    incident_kind: Literal["stall", "abnormal_end", "slowdown"]
    sentence: Line = ""
    verdict: Word = ""
    confidence: Word = ""
    culprits: Annotated[tuple[FleetCulprit, ...], msgspec.Meta(max_length=MAX_CULPRITS)] = ()
    since: Moment
    ended: Moment | None = None
    outcome: Word = ""  # how it ended: recovered, ended


class HardwareFaultEvent(FleetEvent, frozen=True, kw_only=True, tag="hardware_fault"):
    """A component of a node or of one of its GPUs is degraded or unhealthy, in another way than before, or well again."""

    state: Literal["began", "changed", "ended"]
    component: Word
    severity: Word  # warning: degraded; critical: unhealthy
    reason_code: Word = ""
    sentence: Line = ""
    action: Word = ""  # what a person has to do, of `SuggestedAction`
    gpu: FleetGpu | None = None  # None: it is the node's
    since: Moment
    ended: Moment | None = None


class NodeHealthEvent(FleetEvent, frozen=True, kw_only=True, tag="node_health"):
    """A node at one moment: which GPUs are built in, and which components are not healthy. Sent when that changes, and each hour."""

    version: Word = ""  # of its agent
    gpus: Annotated[tuple[FleetGpu, ...], msgspec.Meta(max_length=MAX_GPUS)] = ()
    components: Annotated[dict[Word, Word], msgspec.Meta(max_length=MAX_GPUS)] = {}  # component -> worst state, of those that are not healthy  # fmt: skip


GpuSeconds = Annotated[dict[Word, Seconds], msgspec.Meta(max_length=MAX_USES)]


class AttemptEvent(FleetEvent, frozen=True, kw_only=True, tag="attempt"):
    """One attempt of a run, on one node: it began, it goes on, or it is over. `gpu_seconds`: where its GPU time went, by use."""

    attempt: Count = 0
    user: Name = ""
    script: Name = ""
    began: Moment
    ended: Moment | None = None  # None: it goes on
    outcome: Word = ""  # well, failed, unknown; "": it goes on
    gpu_seconds: GpuSeconds = {}
    sentence: Line = ""
    stragglers: Annotated[tuple[Line, ...], msgspec.Meta(max_length=MAX_LINES)] = ()


class JobEvent(FleetEvent, frozen=True, kw_only=True, tag="job"):
    """The sums of all runs and attempts of one job on one node: where its GPU time went, and what restarts have cost."""

    user: Name = ""
    script: Name = ""
    began: Moment
    runs: Count = 0  # that live
    restarts: Count = 0
    attempts: Count = 0
    steps_again: Count = 0  # steps that were done again after restarts
    gpu_seconds: GpuSeconds = {}
    productive_ratio: Ratio = 0.0
    sentence: Line = ""
    advice: Line = ""


class CheckpointEvent(FleetEvent, frozen=True, kw_only=True, tag="checkpoint"):
    """The newest checkpoint of one series of a run: whether a job could resume from it."""

    folder: Name
    series: Name
    name: Name
    state: Word  # complete, incomplete
    why: Line = ""
    step: Count | None = None
    began: Moment | None = None
    ended: Moment = 0.0
    size: Count = 0  # bytes


class ProbeEvent(FleetEvent, frozen=True, kw_only=True, tag="probe"):
    """The newest result of one series of measurements, and how it compares with the runs before."""

    op: Word
    bytes: Count
    device: Name = ""
    nodes: Name = ""  # folded names of those that took part
    trend: Word  # few_runs, steady, shifted, improved
    runs: Count = 0
    seconds: Seconds = 0.0  # of the newest run
    bandwidth: Seconds = 0.0  # of the newest run, bytes per second
    change: Ratio | None = None  # of the last runs against those before: -0.1 is 10 % slower


class NoteEvent(FleetEvent, frozen=True, kw_only=True, tag="note"):
    """What a person has written about an incident, at the hub: no agent sends it. Job, run and uid are those of the incident."""

    incident: Name
    author: Word
    text: Line


AnyEvent = (
    IncidentEvent
    | HardwareFaultEvent
    | NodeHealthEvent
    | AttemptEvent
    | JobEvent
    | CheckpointEvent
    | ProbeEvent
    | NoteEvent
)


def kind_of(event: FleetEvent) -> str:
    """The kind of an event, as it stands in its JSON: `incident`, `attempt` and so on."""
    return str(event.__struct_config__.tag)


def content(event: FleetEvent) -> bytes:
    """A digest of what an event says: equal where nothing has changed but the moment at which it was looked at."""
    bare = msgspec.structs.replace(event, id="", at=0.0, revision=1)
    return hashlib.sha256(msgspec.json.encode(bare)).digest()[:12]


def is_over(event: FleetEvent) -> bool:
    """Whether an event tells the end of its subject (an incident, a fault, an attempt): nothing comes after it."""
    return getattr(event, "ended", None) is not None and not isinstance(event, CheckpointEvent)


def with_id(event: AnyEvent) -> AnyEvent:
    """The event with its id, made from node, kind, subject, revision and content. Of two events with one id the second says
    nothing new, so a hub that gets an event twice stores it once. An end has the same id whatever was sent before it: an agent that has lost
    its memory may send it again.
    """
    revision = 0 if is_over(event) else event.revision
    identity = f"{event.node}\0{kind_of(event)}\0{event.subject}\0{revision}\0"
    digest = hashlib.sha256(identity.encode(errors="replace") + content(event)).hexdigest()
    return msgspec.structs.replace(event, id=digest[:32])
