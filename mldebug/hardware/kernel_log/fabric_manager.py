"""What the log of NVIDIA's Fabric Manager tells, as events beside those of the kernel: errors of NVSwitches (SXids), and why it gave up.

The Fabric Manager sets up the NVSwitches of a node; without it no program can use NVLink there. A line of its log, of which the time
is that of its node's clock in its node's time zone:

    [Jul 09 2024 18:14:07] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61

Pure. Written after lines that people posted, not tried beside an NVSwitch that is broken.
"""

import calendar
import re
from collections.abc import Iterable, Iterator

from mldebug.core.model import MeasuredData
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.hardware.kernel_log.model import MAX_TEXT, KernelEvent, KernelEventKind, Origin

CONFIGS = ("usr/share/nvidia/nvswitch/fabricmanager.cfg", "etc/nvidia-fabricmanager/fabricmanager.cfg")  # fmt: skip
LOG = "/var/log/fabricmanager.log"  # where its settings name none
MAX_PATH = 256  # characters, as its own guide says
MAX_LINE = 1024  # characters of a line that are looked at
ZONE, WIDEST = 900, 14 * 3600  # seconds: time zones are quarters of an hour apart, and no wider
DAEMON = "nvidia-fabricmanager"

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LINE = re.compile(
    rf"\[(?P<month>{'|'.join(_MONTHS)}) {{1,2}}(?P<day>\d{{1,2}}) (?P<year>\d{{4}}) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\]"
    r" \[[A-Z]{1,10}\] (?:\[tid \d{1,10}\] )?(?P<words>.*)"
)
_SXID = re.compile(
    r"detected NVSwitch (?P<non>non-)?fatal error (?P<sxid>\d{1,6}) on (?:fid|[Nn]ode ?[Ii]d) \d{1,5} on NVSwitch pci bus id (?P<device>[0-9a-fA-F:.]{5,20})"
    r"(?: physical id \d{1,5})?(?: port (?P<port>\d{1,3}))?(?![0-9a-fA-F:.])"
)
_WORDS = (
    (KernelEventKind.FABRIC_INCOMPLETE, re.compile(r"detected number of NVSwitches don't match with any supported system topology")),
    (KernelEventKind.FABRIC_MISMATCH, re.compile(r"fabric manager NVIDIA GPU driver interface version \S{1,32} do(?:n't|esn't| not|es not) match with driver version")),
    (KernelEventKind.FABRIC_MULTICAST, re.compile(r"failed to find the GPU handle \d{1,20} in the multicast team ")),
    # of a stale one, or one that is not fatal, it says so in between
    (KernelEventKind.FABRIC_LINK_ERROR, re.compile(r"Fabric Manager detected GPU NVL Fatal error on\b")),
    (KernelEventKind.FABRIC_OK, re.compile(r"Successfully configured all the available (?:GPUs and )?NVSwitches to route ")),
)  # fmt: skip


class FabricLine(MeasuredData, frozen=True, kw_only=True):
    """One line of the log. `stamp`: its time as it stands there, as if it was UTC, in unix seconds."""

    stamp: float
    words: str


def log_path(config: str) -> str | None:
    """The path of the log, by the text of the Fabric Manager's settings; None where it writes into the syslog, or no path that can be followed."""
    pairs = (line.partition("=") for line in config.splitlines())
    found = {name.strip(): value.strip().strip('"') for name, _, value in pairs}
    path = found.get("LOG_FILE_NAME", LOG)
    usable = path.startswith("/") and len(path) <= MAX_PATH and ".." not in path.split("/")
    return path if usable and path.isprintable() and found.get("LOG_USE_SYSLOG", "0") != "1" else None  # fmt: skip


def parse_fabric_line(text: str) -> FabricLine | None:
    """Parse one line; None for what is none, as the further lines of a record are."""
    match = _LINE.fullmatch(text[:MAX_LINE])
    if match is None:
        return None
    day, *clock = (int(match[name]) for name in ("day", "hour", "minute", "second"))
    if not 1 <= day <= 31:
        return None
    month = _MONTHS.index(match["month"]) + 1
    stamp = calendar.timegm((int(match["year"]), month, day, *clock))
    return FabricLine(stamp=float(stamp), words=match["words"])


def zone_shift(newest: float, written_at: float) -> float:
    """How many seconds to add to the times of a log, of which the newest is `newest`, so that they are unix time.

    `written_at`: unix time at which the file was written last. Its zone is not known otherwise: a container has one of its own. The clock's
    own error is kept: only whole quarters of an hour are a zone.
    """
    shift = round((written_at - newest) / ZONE) * ZONE
    return float(shift) if abs(shift) <= WIDEST else 0.0


def fabric_event(line: FabricLine, at: float) -> KernelEvent | None:
    """The event of a line, at unix time `at`; None for a line without one, as most are."""
    sxid = _SXID.match(line.words)
    if sxid is not None:
        return KernelEvent(
            kind=KernelEventKind.SXID,
            at=at,
            text=line.words[:MAX_TEXT],
            origin=Origin.FABRIC_MANAGER,
            device=bus_id(sxid["device"]),
            xid=int(sxid["sxid"]),
            severity="nonfatal" if sxid["non"] else "fatal",
            link=int(sxid["port"]) if sxid["port"] else None,
        )
    kind = next((kind for kind, pattern in _WORDS if pattern.match(line.words)), None)
    if kind is None:
        return None
    return KernelEvent(kind=kind, at=at, text=line.words[:MAX_TEXT], origin=Origin.FABRIC_MANAGER, alias=DAEMON)  # fmt: skip


def fabric_events(lines: Iterable[FabricLine], shift: float, booted_at: float, now: float) -> Iterator[KernelEvent]:  # fmt: skip
    """Yield the events of these lines since the node was booted, none later than unix time `now`. `shift`: see `zone_shift`."""
    for line in lines:
        at = min(line.stamp + shift, now)
        if at >= booted_at and (event := fabric_event(line, at)) is not None:
            yield event
