"""The GPUs of this node: who computes on them, load, power, heat, errors and what to do; what is not well comes first."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from mldebug.core.model import Gap
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.units import duration_words
from mldebug.hardware.gpu.fingerprint import GpuState
from mldebug.hardware.gpu.sentences import state_words
from mldebug.hardware.health.sentences import complaints, headline
from mldebug.hardware.kernel_log.attribution import RankEvent, sentence
from mldebug.hardware.kernel_log.xids import ACTION_WORDS as XID_WORDS
from mldebug.hardware.kernel_log.xids import xid_row
from mldebug.status.gpu_lines import StatusLine, hardware_lines
from mldebug.status.gpu_table import missing, users
from mldebug.status.gpu_view import GpuOverview, fresh, of_agent
from mldebug.status.snapshot import Snapshot
from mldebug.web.gpu_cards import GpuCard, gpu_cards
from mldebug.web.page import PageRequest, WebPage

NO_GPU = "No GPU here: this node has no NVIDIA driver, and no card of amdgpu."
NOT_YET = "The GPUs have not been read yet."
MOST = 256  # GPUs
MOST_EVENTS = 64
DOING = {one.value: state_words(one) for one in GpuState if state_words(one)}


class GpuEventRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the kernel log or the driver, as texts for the page. `css_class`: CSS class, `"bad"` or `"quiet"`."""

    moment: str
    ago: str
    sentence: str
    advice: str
    css_class: str


class GpusPageData(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of the page "GPUs" shows."""

    lead: str
    bad: bool
    about: str  # models, driver, how old the read is
    nothing: str  # why there is no GPU to show
    notes: tuple[StatusLine, ...]
    who: tuple[str, ...]  # which job on which GPUs
    boards: tuple[GpuCard, ...]
    more: int
    events: tuple[GpuEventRow, ...]
    more_events: int
    gaps: tuple[Gap, ...]


class GpusPage:
    """The page "GPUs": what `mldebug gpus list` prints, and health, Xids and advice as `mldebug doctor --gpus` shows
    them below its checks, from the agent's last snapshot.
    """

    title = "GPUs"
    key = "c"
    reports = False

    def build(self, request: PageRequest) -> GpusPageData:
        """The page's data, from the last reading of the GPUs in the agent's snapshot."""
        snapshot = request.snapshot
        overview = of_agent(snapshot)
        found = gpu_cards(overview, _doing(snapshot) if fresh(snapshot) else {})
        events = [event for event in overview.events if _of_hardware(event)]
        return GpusPageData(
            lead=_lead(overview, found),
            bad=any(one.css_class == "bad" for one in found) or overview.gpu_gap is not None,
            about="; ".join(_about(overview)),
            nothing=_nothing(snapshot, overview) if not found else "",
            notes=tuple(_notes(snapshot, overview)),
            who=tuple(
                users(overview.users, {uuid: one.index for uuid, one in overview.names().items()})
            ),
            boards=found[:MOST],
            more=max(0, len(found) - MOST),
            events=tuple(_event(one, snapshot.at) for one in events[::-1][:MOST_EVENTS]),
            more_events=max(0, len(events) - MOST_EVENTS),
            gaps=tuple(_gaps(overview)),
        )


def _lead(overview: GpuOverview, found: tuple[GpuCard, ...]) -> str:
    """As the first line of `mldebug gpus list`."""
    if not found:
        return "No GPU to show"
    gone = len(missing(overview))
    words = headline(
        [one.uuid for one in overview.gpus.gpus] if overview.gpus else [], overview.health
    )
    return f"{words}{f'; {gone} missing' if gone else ''}"


def _about(overview: GpuOverview) -> Iterator[str]:
    gpus = overview.gpus.gpus if overview.gpus else ()
    if names := sorted({clean(one.name, 60) for one in gpus if one.name}):
        yield ", ".join(names)
    if overview.gpus and overview.gpus.driver_version:
        yield f"driver {clean(overview.gpus.driver_version, 40)}"
    if overview.gpus:
        yield f"read {max(0.0, overview.at - overview.gpus.at):.0f} s ago"


def _nothing(snapshot: Snapshot, overview: GpuOverview) -> str:
    """None could be shown: because nobody looked, the read failed, or there is none."""
    if overview.released_until is not None:
        return "The agent has let go of the GPUs: nobody reads them."
    if overview.gpu_gap is not None:
        return f"The GPUs could not be read: {clean(overview.gpu_gap.reason, 300)}"
    source = next((one for one in snapshot.sources if one.name == "gpus"), None)
    if source is not None and source.stuck:
        return "The GPUs could not be read: the driver does not answer."
    return NO_GPU if source is not None and source.last_success is not None else NOT_YET


def _notes(snapshot: Snapshot, overview: GpuOverview) -> Iterator[StatusLine]:
    """Of the node: what no card says."""
    if overview.released_until is not None:
        yield from hardware_lines(snapshot, snapshot.at)
        return
    node = [one for one in overview.health if not one.uuid]
    yield from (
        StatusLine(clean(one.text, 400), True, one.at)
        for one in complaints(node, overview.names(), overview.at)
    )


# --- the kernel's log ----------------------------------------------------------------------------


def _of_hardware(one: RankEvent) -> bool:
    """Xids, and what else happened to a GPU or a switch."""
    return one.burst.root.xid is not None or one.burst.root.kind.value.startswith("gpu")


def _event(one: RankEvent, now: float) -> GpuEventRow:
    at, root = one.burst.last_at, one.burst.root
    row = xid_row(root.xid) if root.xid is not None and root.kind.value == "xid" else None
    return GpuEventRow(
        moment=f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC",
        ago=duration_words(int(now - at)),
        sentence=clean(sentence(one), 400),
        advice=clean(row.advice or XID_WORDS[row.action], 300) if row else "",
        css_class="bad" if one.burst.tier.value == "fatal" else "quiet",
    )


def _doing(snapshot: Snapshot) -> dict[str, str]:
    """What the fingerprint says, by GPU; of several ranks on one, each once."""
    found: dict[str, list[str]] = {}
    for run in snapshot.runs:
        for gpu_state in run.gpu_states:
            if gpu_state.state in DOING and not gpu_state.sliced:
                found.setdefault(gpu_state.uuid, []).append(DOING[gpu_state.state])
    return {uuid: ", ".join(dict.fromkeys(words)) for uuid, words in found.items()}


def _gaps(overview: GpuOverview) -> Iterator[Gap]:
    every = (overview.gpu_gap, overview.kernel_gap, *(overview.gpus.gaps if overview.gpus else ()))
    for one in dict.fromkeys(every):
        if one is not None:
            yield Gap(what=clean(one.what, 100), reason=clean(one.reason, 300), way_out=clean(one.way_out, 200))  # fmt: skip


def create(options: NoOptions) -> WebPage:
    """Build the web page `gpus`: the GPUs of this node: who computes on them, load, power, heat, errors and what to do; what is not well comes first."""
    return GpusPage()
