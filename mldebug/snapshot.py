"""What the agent knows at this moment, as one immutable value: `status`, the API and the metrics read only this."""

import msgspec

from mldebug.model import Gap, Noun, Remark


class RunState(Noun, frozen=True, kw_only=True):
    """One run on this node."""

    id: str
    name: str
    launcher: str
    attempt: int = 0
    user: str = ""
    world_size: int = 1
    ranks: dict[int, int] = {}  # rank -> pid
    lost: tuple[int, ...] = ()
    classes: dict[
        int, str
    ] = {}  # rank -> class, of the last stack sample; empty while nobody is suspected
    stage: str = "watching"
    sentence: str = ""  # why it is quiet, or not
    quiet_seconds: float = 0.0
    timeout_seconds: float = 0.0
    why_timeout: str = ""
    step: int | None = None
    loss: float | None = None
    step_seconds: float | None = None
    log: str = ""
    incident: str = ""  # id of the open one
    verdict: str = ""
    report: str = ""  # the sentence of the open incident


class SourceState(Noun, frozen=True, kw_only=True):
    """How one source of the agent does."""

    name: str
    success: bool = True
    seconds: float = 0.0  # of the last round
    stuck: bool = False
    error: str = ""


class Snapshot(Noun, frozen=True, kw_only=True):
    """All of it."""

    node: str
    at: float  # unix
    started_at: float
    runs: tuple[RunState, ...] = ()
    sources: tuple[SourceState, ...] = ()
    incidents: dict[str, int] = {}  # "kind/verdict" -> how many since the agent started
    last_report: dict[str, str] = {}  # "kind/verdict" -> id of the newest report
    reports_lost: int = 0
    remarks: tuple[Remark, ...] = ()
    gaps: tuple[Gap, ...] = ()
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    version: str = ""


def encode(snapshot: Snapshot) -> bytes:
    """As the API and `mldebug status --json` give it."""
    return msgspec.json.encode(snapshot)
