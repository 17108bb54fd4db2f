"""What one node shows of itself to a person who looks at several: its runs, ranks and GPUs in few words, small enough to be sent often."""

from mldebug.core.model.base import MeasuredData

MAX_RUNS, MAX_RANKS, MAX_GPUS, MAX_LINES = 64, 1024, 64, 16  # of one node; of one run


class RankBrief(MeasuredData, frozen=True, kw_only=True):
    """One rank. `state`: moving, waiting, inert, busy, exited, unclear … (a `Role`, or "moving"), or "announced", where nothing more is known; `waits`: the share of its time, 0 to
    1, in which it waits for others; `gpu`: index of its GPU. None: not known.
    """

    rank: int
    state: str = "moving"
    step: int | None = None
    waits: float | None = None
    gpu: int | None = None
    culprit: bool = False  # the open incident names it
    slow: bool = False  # it slows the others down
    doing: str = ""  # its phase, its last frame, or how it ended


class RunBrief(MeasuredData, frozen=True, kw_only=True):
    """The part of a run on one node. `key`: the same on all nodes of the run; `age`: seconds since its start, 0.0 where it is not known."""

    key: tuple[str, ...]
    id: str
    name: str
    launcher: str = ""
    user: str = ""
    world_size: int = 1
    attempt: int = 0
    age: float = 0.0
    ranks: tuple[RankBrief, ...] = ()
    absent: int = 0  # ranks that should be on this node and are not
    watched: bool = False  # by an agent, which alone knows what follows
    step: int | None = None
    step_seconds: float | None = None
    loss: float | None = None
    stage: str = ""
    sentence: str = ""  # why it is quiet, or not
    slowness: str = ""  # which ranks slow it down, in a sentence
    data_wait: str = ""  # how long it waits for data, in words; "": not worth a word
    incident: str = ""  # id of the open one, which is that of its report
    report: str = ""  # the sentence of the open incident


class GpuBrief(MeasuredData, frozen=True, kw_only=True):
    """One GPU at one moment: ratios 0 to 1, bytes, watts, degrees Celsius; None where it does not say. `state`: healthy, degraded,
    unhealthy, missing, unknown.
    """

    index: int
    name: str = ""
    busy: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    watts: float | None = None
    limit_watts: float | None = None
    celsius: float | None = None
    user: str = ""  # `rank 3`, `pid 4711`; "": nobody
    state: str = "unknown"


class NodeBrief(MeasuredData, frozen=True, kw_only=True):
    """One node at one moment. `age`: seconds since its agent last looked, by its own clock; `agent_seconds`: since when an agent
    watches it, None where none answers, which `agent_trouble` explains.
    """

    node: str
    age: float = 0.0
    agent_seconds: float | None = None
    agent_trouble: str = ""
    cluster: str = ""  # who coordinates, in a sentence
    runs: tuple[RunBrief, ...] = ()
    gpus: tuple[GpuBrief, ...] = ()
    gpu_note: str = ""  # why there are none
    alerts: tuple[str, ...] = ()  # what is wrong with node, agent, GPUs, channels
    storage_alerts: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()  # a line for each filesystem
    gaps: tuple[str, ...] = ()  # what could not be looked at
