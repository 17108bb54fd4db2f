"""The messages between agents: how far their runs are, which ones stall, and what is to be captured.

Pure, and versioned.

Unknown fields are ignored; a message with another number after the slash of `SCHEMA` is refused
with a sentence. Clocks of nodes are never compared: times are ages in seconds, by the sender's
clock.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from mldebug import __version__
from mldebug.capture.validation import wrong_ranks
from mldebug.cluster.run_identity import RunKey
from mldebug.cluster.wire import MAX_BYTES, another_mldebug
from mldebug.core.errors import EvidenceError, UsageError
from mldebug.core.model import Diagnosis, Gap, GpuBrief, MeasuredData
from mldebug.core.ranksets import rank_intervals
from mldebug.core.redact import clean
from mldebug.goodput.shared_samples import (
    NodeSamples,
    SampleCall,
    SharedFinding,
    believed_finding,
    believed_samples,
)

SCHEMA = "mldebug.peer/1"
MAX_MESSAGE = 1 << 20  # bytes
MAX_RUNS = 256  # of one node
MAX_LIST = 8192  # characters of a list of nodes
MAX_GPUS = 64  # of one node
MAX_RELAYED = 16  # nodes that one node speaks for
MAX_OBJECTS, MAX_VALUES = 400_000, 4_000_000  # of one message: a view of 8,192 nodes has a third
MAX_WELCOME = 8 * MAX_MESSAGE  # bytes of the answer, which may hold what was found of many runs
MAX_GAPS = 4  # of one run
MAX_PRESENT = 4096  # nodes that are listed as present
MAX_LINES = 256  # culprits, or sentences, of one diagnosis
MAX_SIGNALS = 16  # of one run
MAX_SPANS = (
    8192  # intervals of ranks in one message: a run whose ranks are dealt out in turn has 4,096
)
MAX_PACE = 60.0  # seconds
MAX_COUNT = 1 << 53  # of steps, as a float holds exactly
# What users of a node may ask its agent about all nodes
CLUSTER_PATH, DUMP_PATH = "/api/v1/cluster", "/api/v1/dump"
MAX_VIEW = 32 * MAX_MESSAGE
MAX_REPORT, MAX_REPORT_VALUES = 8 * MAX_BYTES, 1_000_000  # that of 8,192 ranks has a third of these
DUMP_DEADLINE = 60.0  # seconds for a capture on all nodes of a job
_NUMBER = re.compile(r"mldebug\.peer/([0-9]{1,9})")

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
# Figures of a GPU, each with what it stays below
_GPU_FIGURES = {"busy": 1.01, "memory_used": 1 << 50, "memory_total": 1 << 50, "watts": 1e5, "limit_watts": 1e5, "celsius": 1e3}  # fmt: skip
_INCIDENT = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}", re.ASCII)

M = TypeVar("M", bound="PeerMessage")
T = TypeVar("T")


class PeerMessage(MeasuredData, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all messages between agents."""

    schema: str = SCHEMA
    version: str = __version__


class Signal(MeasuredData, frozen=True, kw_only=True):
    """A sign that a job moves, such as its step number, as nodes report it to each other: seconds since the value was reached (`age`)
    in place of a time, since clocks differ. `kind` and `value` as in `mldebug.stall.signals.Progress`.
    """

    kind: str
    value: float
    age: float
    stale: float = msgspec.field(
        default=0.0, name="told"
    )  # seconds since its node announced it: of that time nothing is known


class AnnouncedExit(MeasuredData, frozen=True, kw_only=True):
    """The bad end of a run's ranks on the sending node: its diagnosis, the id of its report, and seconds since it (`age`)."""

    incident: str  # id of its report
    diagnosis: Diagnosis
    age: float = 0.0  # seconds


class RunNews(MeasuredData, frozen=True, kw_only=True):
    """What a node announces of one run that it has ranks of: its progress, its stage, its incident, a bad end."""

    key: RunKey  # mldebug.cluster.run_identity: the same on all nodes of the run
    name: str = ""
    attempt: int = 0
    world_size: int = 1
    age: float = 0.0  # seconds since its first rank has started; 0.0: not known
    ranks: str = ""  # folded
    step: int | None = None
    stage: str = "watching"
    sentence: str = ""
    signals: tuple[Signal, ...] = ()  # of its own
    incident: str = ""  # id of the stall that this node has noticed, or was told of
    published: bool = msgspec.field(
        default=False, name="told"
    )  # that id stands in a report, or other nodes know it
    end: AnnouncedExit | None = None  # ranks of it have ended badly here
    node_list: str = ""  # mldebug.core.model.Job
    launchers: int = 0  # without a rank, that wait for nodes
    gaps: tuple[Gap, ...] = ()  # what of this was left out
    samples: NodeSamples | None = None  # how its ranks waited in the stretch that was called last
    slower: bool = False  # its steps take a tenth longer than they used to
    row: str = ""  # of the finding on slow ranks that it has got


class Relayed(MeasuredData, frozen=True, kw_only=True):
    """The announcement of a node that cannot reach the coordinator, passed on by one that can."""

    node: str
    agent: str
    port: int
    address: str  # where the follower has heard it from
    runs: tuple[RunNews, ...] = ()
    gpus: tuple[GpuBrief, ...] = ()
    age: float = 0.0  # seconds


class Announcement(PeerMessage, frozen=True, kw_only=True):
    """What a node sends to its coordinator regularly: all its runs and GPUs, and those of nodes that cannot reach the coordinator."""

    node: str
    agent: str  # of this start of the agent, at random
    port: int  # where it can be asked
    circle: str = ""  # which of its circles of nodes these runs are of: others are announced apart
    runs: tuple[RunNews, ...] = ()
    gpus: tuple[GpuBrief, ...] = ()
    relayed: tuple[Relayed, ...] = ()


class Whole(MeasuredData, frozen=True, kw_only=True):
    """The diagnosis from the captures of all nodes, sent to nodes that know only their own part."""

    report: str  # id
    node: str  # where the report over all nodes is
    nodes: int = 0  # captured
    diagnosis: Diagnosis


class RunWord(MeasuredData, frozen=True, kw_only=True):
    """The coordinator's message to a node about one run: progress on other nodes, the open stall, and for how many seconds to put off
    reading the stacks of all ranks.
    """

    key: RunKey
    signals: tuple[Signal, ...] = ()  # of other nodes, of one node for each kind
    incident: str = ""  # of the open stall of this run
    caused: bool = False  # it is the id of a bad end that came before: it goes before any other
    over: str = ""  # why that stall is none any more: "" while it is open
    present: tuple[str, ...] = ()  # nodes with a launcher of a run that waits for nodes
    hold: float = 0.0  # seconds for which it is not captured at most: another node moves
    whole: Whole | None = None
    sample: SampleCall | None = None  # its ranks are to be sampled then
    slowness: SharedFinding | None = None  # which ranks slow it down, where the node does not know


class WordsFor(MeasuredData, frozen=True, kw_only=True):
    """The coordinator's messages to a node that cannot reach it; the node that relayed its announcement passes them on."""

    node: str
    runs: tuple[RunWord, ...] = ()


class Welcome(PeerMessage, frozen=True, kw_only=True):
    """The coordinator's answer to an announcement."""

    node: str
    agent: str
    pace: float = 0.0  # seconds until the next announcement at least, where nothing happens
    follows: str = ""  # host of whoever coordinates, where it is not the one that answers
    port: int = 0  # of the same
    runs: tuple[RunWord, ...] = ()
    relayed: tuple[WordsFor, ...] = ()  # for those whom the announcement relays


class CaptureOrder(PeerMessage, frozen=True, kw_only=True):
    """The order to capture a run now, as part of an incident."""

    key: RunKey
    attempt: int
    incident: str
    sentence: str = ""  # who has noticed what
    caused: bool = False  # as in `RunWord`


class DumpOrder(PeerMessage, frozen=True, kw_only=True):
    """A person's request to capture a run on all its nodes now."""

    job: str  # its id, the begin of it, or its name
    uid: int | None = None  # of a run of this user alone; None: of anybody's
    trigger: Literal["manual", "alert"] = "manual"


class PeerView(MeasuredData, frozen=True, kw_only=True):
    """What the coordinator knows of one node: address, version, seconds since its last announcement, its runs and GPUs."""

    node: str
    address: str = ""
    version: str = ""
    # since it was last heard of; None: never; "seen" on the wire
    seconds_ago: float | None = msgspec.field(default=None, name="seen")
    runs: tuple[RunNews, ...] = ()
    gpus: tuple[GpuBrief, ...] = ()


class ClusterView(PeerMessage, frozen=True, kw_only=True):
    """All nodes, as `mldebug status --cluster` shows them."""

    coordinator: str
    silent_after: float = 15.0  # seconds after which a node counts as not heard of
    peers: tuple[PeerView, ...] = msgspec.field(default=(), name="members")  # on the wire
    refused: dict[str, str] = {}  # who is not believed, and why
    silent: dict[str, str] = {}  # coordinators of other runs that have not answered, and why


def read(data: bytes, kind: type[M]) -> M:
    """Decode a message of this type from JSON. Raises EvidenceError, which says why, for another schema or malformed data."""
    check_count(data)
    try:
        head = msgspec.json.decode(data, type=PeerMessage)
        _check(head)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EvidenceError(f"malformed: {clean(str(error), 200)}") from error


def check_count(data: bytes, most: int = MAX_VALUES) -> None:
    """Raise EvidenceError for more objects than a message can have, or more than `most` values: decoded, each takes many times its bytes."""
    large = len(data) > MAX_MESSAGE
    if large and (data.count(b"{") > MAX_OBJECTS or data.count(b",") > most):
        raise EvidenceError(f"it holds more than {MAX_OBJECTS:,} objects or {most:,} values")


def believed(announcement: Announcement) -> Announcement:
    """The announcement of another node with its texts cleaned and shortened, and its lists cut. Raises EvidenceError where a name, a number or a rank is not valid."""
    if not _NODE.fullmatch(announcement.node) or not 0 < announcement.port < 65_536:
        raise EvidenceError(f"{clean(announcement.node, 60)!r}:{announcement.port} is no node")
    named = _first_of_each(announcement.relayed[:MAX_RELAYED], lambda one: one.node)
    every = (announcement.runs, *(one.runs for one in named))
    some = (news for runs in every for news in runs[:MAX_RUNS])
    if sum(news.ranks.count(",") + 1 for news in some) > MAX_SPANS:
        raise EvidenceError(f"it shows ranks in more than {MAX_SPANS:,} intervals")
    runs = _believed_runs(announcement.runs)
    words = {
        name: clean(getattr(announcement, name), 40) for name in ("agent", "version", "circle")
    }
    relayed = tuple(map(_believed_relay, named))
    gpus = _believed_gpus(announcement.gpus)
    return msgspec.structs.replace(announcement, runs=runs, gpus=gpus, relayed=relayed, **words)


def _believed_relay(relayed: Relayed) -> Relayed:
    port_fits, age_fits = 0 < relayed.port < 65_536, 0.0 <= relayed.age < math.inf
    if not _NODE.fullmatch(relayed.node) or not port_fits or not age_fits:
        raise EvidenceError(
            f"it relays {clean(relayed.node, 60)!r}:{relayed.port}, which is no node"
        )
    runs = _believed_runs(relayed.runs)
    words = {name: clean(getattr(relayed, name), 60) for name in ("agent", "address")}
    return msgspec.structs.replace(relayed, runs=runs, gpus=_believed_gpus(relayed.gpus), **words)


def _believed_gpus(gpus: Sequence[GpuBrief]) -> tuple[GpuBrief, ...]:
    """Each GPU once; a figure that cannot be is left out. Raises EvidenceError for an index that is none."""
    if any(not 0 <= one.index < MAX_GPUS for one in gpus[:MAX_GPUS]):
        raise EvidenceError("it shows a GPU with an index that is none")
    return tuple(map(_believed_gpu, _first_of_each(gpus[:MAX_GPUS], lambda one: one.index)))


def _believed_gpu(gpu: GpuBrief) -> GpuBrief:
    figures = {
        name: value if value is not None and 0 <= value < most else None
        for name, most in _GPU_FIGURES.items()
        for value in [getattr(gpu, name)]
    }
    words = {name: clean(getattr(gpu, name), 60) for name in ("name", "user", "state")}
    return msgspec.structs.replace(gpu, **figures, **words)


def _believed_runs(runs: Sequence[RunNews]) -> tuple[RunNews, ...]:
    """At most `MAX_RUNS`, each attempt of a run once: each costs its coordinator a look at all nodes of that run."""
    once = _first_of_each(runs[:MAX_RUNS], lambda news: (news.key, news.attempt))
    return tuple(map(_believed_run, once))


def _first_of_each(some: Iterable[T], key: Callable[[T], object]) -> tuple[T, ...]:
    found: dict[object, T] = {}
    for one in some:
        found.setdefault(key(one), one)
    return tuple(found.values())


def _believed_run(news: RunNews) -> RunNews:
    check_incident(news.incident)
    try:
        spans = rank_intervals(news.ranks)
    except UsageError as error:
        raise EvidenceError(error.message) from error
    ranks = tuple(rank for span in spans for rank in span)
    if wrong := wrong_ranks(ranks, news.world_size):
        raise EvidenceError(f"it {wrong}")
    if not 0 <= news.attempt < MAX_COUNT:
        raise EvidenceError(f"it shows attempt {news.attempt}")
    step = news.step if news.step is None or abs(news.step) < MAX_COUNT else None  # of a job's log
    words = {"name": clean(news.name, 200), "sentence": clean(news.sentence, 500)}
    words["node_list"] = clean(news.node_list, MAX_LIST)
    stage, key = clean(news.stage, 20), tuple(clean(one, 300) for one in news.key[:8])
    end = None if news.end is None else _believed_end(news.end)
    gaps = tuple(
        Gap(what=clean(gap.what, 200), reason=clean(gap.reason, 300))
        for gap in news.gaps[:MAX_GAPS]
    )
    signals = tuple(
        msgspec.structs.replace(one, kind=clean(one.kind, 40))
        for one in (news.signals[:MAX_SIGNALS] if ranks else ())  # who has no rank sees none move
    )
    return msgspec.structs.replace(
        news, **words, stage=stage, key=key, end=end, gaps=gaps, signals=signals, step=step,
        age=max(0.0, news.age), samples=believed_samples(news.samples, spans), row=clean(news.row, 40),
    )  # fmt: skip


def believed_welcome(welcome: Welcome) -> Welcome:
    """The answer of another node with its texts cleaned and shortened. Raises EvidenceError where an incident id or the port is not valid."""
    words = {name: clean(getattr(welcome, name), 100) for name in ("node", "agent", "follows")}
    if welcome.follows and not 0 < welcome.port < 65_536:
        raise EvidenceError("it follows nobody that can be asked")
    relayed = tuple(
        msgspec.structs.replace(one, runs=tuple(map(_believed_word, one.runs[:MAX_RUNS])))
        for one in welcome.relayed[:MAX_RELAYED]
    )
    runs = tuple(map(_believed_word, welcome.runs[:MAX_RUNS]))
    pace = min(max(0.0, welcome.pace), MAX_PACE)
    return msgspec.structs.replace(welcome, runs=runs, relayed=relayed, pace=pace, **words)


def _believed_word(word: RunWord) -> RunWord:
    check_incident(word.incident)
    whole = word.whole
    if whole is not None:
        check_incident(whole.report)
        node = clean(whole.node, 100)
        whole = msgspec.structs.replace(whole, node=node, diagnosis=spoken(whole.diagnosis))
    present = tuple(clean(name, 100) for name in word.present[:MAX_PRESENT])
    sample = word.sample and msgspec.structs.replace(word.sample, call=clean(word.sample.call, 40))
    return msgspec.structs.replace(
        word, over=clean(word.over, 300), whole=whole, present=present, sample=sample,
        slowness=believed_finding(word.slowness),
    )  # fmt: skip


def _believed_end(end: AnnouncedExit) -> AnnouncedExit:
    check_incident(end.incident)
    if not end.incident or not 0.0 <= end.age < math.inf:
        raise EvidenceError("it tells of an end that cannot be")
    return msgspec.structs.replace(end, diagnosis=spoken(end.diagnosis))


def spoken(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of another node, made safe to show: texts cleaned and cut, lists shortened."""
    culprits = tuple(
        msgspec.structs.replace(one, node=clean(one.node, 100), reason=clean(one.reason, 500))
        for one in diagnosis.culprits[:MAX_LINES]
    )
    return msgspec.structs.replace(
        diagnosis,
        culprits=culprits,
        summary=clean(diagnosis.summary, 2000),
        evidence=tuple(clean(one, 1000) for one in diagnosis.evidence[:MAX_LINES]),
        next_steps=tuple(clean(one, 500) for one in diagnosis.next_steps[:MAX_LINES]),
    )


def check_incident(incident: str) -> None:
    """Raise EvidenceError for an invalid incident id: ids become names of folders. "" is allowed."""
    if incident and not _INCIDENT.fullmatch(incident):
        raise EvidenceError(f"{clean(incident, 60)!r} is no id of an incident")


def _check(head: PeerMessage) -> None:
    if _NUMBER.fullmatch(head.schema) is None:
        raise EvidenceError(f"no message of an agent ({clean(head.schema, 40)!r})")
    if head.schema != SCHEMA:
        other = another_mldebug(head.version, head.schema, SCHEMA)
        raise EvidenceError(
            f"it is {other}; this one ({__version__}) speaks {SCHEMA}: install the same on both"
        )
