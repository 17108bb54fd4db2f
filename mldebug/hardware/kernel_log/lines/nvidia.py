"""What the NVIDIA driver says: Xids in every spelling since 2012, GPUs that are lost or do not start, errors of NVSwitches (SXid), and checks of its own that fail."""

import re

from mldebug.hardware.kernel_log.lines.reader import (
    ADDRESS,
    MAX_NAME,
    KernelText,
    LineReader,
    bus_id,
    event,
)
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind
from mldebug.hardware.kernel_log.nvlink5 import is_nvlink5

LOST = 79
RECOVERY_CHANGED = 154

# Without an address (2012) it is as short as a process name: only with what follows it in the driver's own words.
_XID = re.compile(
    r"(?:nvidia [0-9a-f:.]{1,20}: )?NVRM: Xid(?: \((?P<device>[^()\n]{1,48})\):|:(?= \d{1,10}, (?:Ch|[0-9a-fA-F]{4} )))"
    r" (?P<xid>\d{1,10})(?!\d)(?: ?, ?(?P<rest>.*))?",
    re.DOTALL,
)
_PROCESS = re.compile(
    r"pid='?(?P<pid>\d{1,10}|<unknown>)'?(?:, name=(?P<name>[^\n]{0,64}?))?(?:, |$)(?P<rest>.*)",
    re.DOTALL,
)
_CHANNEL = re.compile(r"\bCh(?:annel|ID)? (?P<channel>[0-9a-fA-F]{1,8})\b")
_LINK = re.compile(r"\b[Ll]ink (?P<link>\d{1,3})\b")
_SEVERITY = re.compile(r"\b(?P<non>non[- ]?)?fatal\b", re.IGNORECASE)
_RECOVERY = re.compile(r"\bto 0x[0-9a-fA-F]{1,8} \((?P<action>[^)\n]{1,64})\)")
_LOST = re.compile(
    r"NVRM: (?:GPU (?:at )?|The NVIDIA GPU )(?:\(?PCI:)?(?P<device>[0-9a-fA-F:.]{5,20})\)?[^0-9a-fA-F].*fallen off the bus",
    re.DOTALL,
)
# "rm_init_adapter failed", which comes after it, is about the same failure
_INIT = re.compile(
    r"(?:nvidia [0-9a-f:.]{1,20}: )?NVRM: (?:GPU (?P<device>[0-9a-fA-F:.]{5,20}): )?RmInitAdapter failed! \(0x"
)
# Of the kernel itself, of a GPU whose driver did not even take it: "nvidia 0000:0a:00.0: probe with driver nvidia failed with error -1", before 6.8
# "nvidia: probe of 0000:0a:00.0 failed with error -1". Not of one that is tried again: EAGAIN, EPROBE_DEFER
_NOT_TAKEN = re.compile(
    rf"(?:nvidia (?P<new>{ADDRESS}): probe with driver nvidia|nvidia: probe of (?P<old>{ADDRESS})) failed with error -(?!(?:11|517)\b)\d"
)
_SXID = re.compile(
    r"nvidia-nvswitch@?(?P<switch>\d{1,3}): SXid \((?P<device>[^()\n]{1,48})\): (?P<sxid>\d{1,6}), (?P<rest>.*)",
    re.DOTALL,
)
_NAMED = re.compile(
    r"NVRM: GPU at (?P<device>PCI:[0-9a-fA-F:.]{5,20}): (?P<uuid>GPU-[0-9a-f-]{36})\b"
)
_CAUSE = re.compile(r"\bcaused by previous Xid (?P<cause>\d{1,6})\b")
# "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 …)"
_UNIT = re.compile(
    r"(?<![A-Z0-9_])(?P<unit>[A-Z][A-Z0-9_]{2,31})\s{1,4}(?:Link )?(?:Non-?)?fatal\b"
    r"[^()\n]{0,80}(?:\((?P<info>0x[0-9a-f]{1,8})(?:[ ,]{1,2}(?P<status>0x[0-9a-f]{1,8})\b)?)?",
    re.IGNORECASE,
)
_NAMELESS = ("", "<unknown>")
# "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from …": the number is
# the driver's own, not nvidia-smi's, and old ones leave it out. The driver has no words for the GPU here: an Xid, if any, came before
_DRIVER = r"NVRM: (?:GPU\d{1,3} )?\w{1,64}: "
_FAILED = rf"{_DRIVER}(?:Assertion|Check) failed: [^\n]{{0,160}}?"
_UNUSABLE = (
    (KernelEventKind.GPU_RESET_REQUIRED, re.compile(rf"{_FAILED}(?:\[NV_ERR_RESET_REQUIRED\]|GPU marked for reset\b)|{_DRIVER}(?:Gpu marked for reset\b|unexpected WPR2 already up, )")),
    (KernelEventKind.GPU_UNREACHABLE, re.compile(rf"{_FAILED}\[NV_ERR_GPU_IS_LOST\]")),
    (KernelEventKind.GPU_DRIVER_FAILED, re.compile(rf"(?:{_DRIVER}uvm encountered global fatal error 0x|nvidia-uvm: [^\n]{{0,160}}?Encountered a global fatal error: )")),
    # one whose heartbeat is 0 never began to count, as on some notebooks: it works
    (KernelEventKind.GPU_FIRMWARE_SILENT, re.compile(rf"{_DRIVER}Heartbeat timed out, currentTimeMs \d{{1,10}} heartbeat (?!0 )\d{{1,10}} ")),
    (KernelEventKind.GPU_RING_TIMEOUT, re.compile(rf"{_DRIVER}RC watchdog: GPU is probably locked!")),
)  # fmt: skip


_UVM = "nvidia-uvm"  # it has failed for all GPUs until it is loaded anew: the reset of one GPU is no end of that
_LOADED = re.compile(r"nvidia-uvm: Loaded the UVM driver\b")


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last place, which the driver wrote: before it the name of a process may stand, with commas of its own."""
    return max(pattern.finditer(text), key=lambda match: match.start(), default=None)


def _xid(line: KernelText) -> KernelEvent | None:
    match = _XID.match(line.text)
    if match is None:
        return None
    xid, rest = int(match["xid"]), match["rest"] or ""
    process = _PROCESS.match(rest)
    if process is not None:
        rest = process["rest"]
    more: dict[str, object] = {}
    if channel := _last(_CHANNEL, rest):
        more["channel"] = channel["channel"]
    if link := _last(_LINK, rest):
        more["link"] = int(link["link"])
    more |= _details(xid, rest)
    name = process["name"] or "" if process else ""
    pid = process["pid"] if process else ""
    return event(
        line,
        KernelEventKind.XID,
        device=bus_id(match["device"] or ""),
        xid=xid,
        pid=int(pid) if pid.isdigit() else None,
        process="" if name.strip("'") in _NAMELESS else name.strip("'")[:MAX_NAME],
        **more,
    )


def _details(xid: int, rest: str) -> dict[str, object]:
    """What the line of some Xids says beyond its number: what the driver asks for, the cause, unit and severity of a link error."""
    if xid == RECOVERY_CHANGED:
        action = _last(_RECOVERY, rest)
        return {"recovery": action["action"]} if action else {}
    if cause := _last(_CAUSE, rest):
        return {"cause": int(cause["cause"])}
    if not is_nvlink5(xid):
        return {}
    severity, unit = _last(_SEVERITY, rest), _last(_UNIT, rest)
    found: dict[str, object] = {}
    if severity:
        found["severity"] = "nonfatal" if severity["non"] else "fatal"
    if unit:
        found["unit"] = unit["unit"].upper()
        found |= {key: int(unit[key], 16) for key in ("info", "status") if unit[key]}
    return found


def _lost(line: KernelText) -> KernelEvent | None:
    match = _LOST.match(line.text)
    if match is None:
        return None
    return event(
        line, KernelEventKind.GPU_LOST, device=bus_id(match["device"].rstrip(".:")), xid=LOST
    )


def _not_started(line: KernelText) -> KernelEvent | None:
    """The driver cannot start a GPU; older ones do not say which."""
    match = _INIT.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.GPU_INIT_FAILED, device=bus_id(match["device"] or ""))


def _not_taken(line: KernelText) -> KernelEvent | None:
    match = _NOT_TAKEN.match(line.text)
    if match is None:
        return None
    device = bus_id(match["new"] or match["old"])
    return event(line, KernelEventKind.GPU_INIT_FAILED, device=device)


def _sxid(line: KernelText) -> KernelEvent | None:
    """Of the three lines about one error only the first, which says how bad it is."""
    match = _SXID.match(line.text)
    severity = _SEVERITY.match(match["rest"]) if match else None
    if match is None or severity is None:
        return None
    link = _LINK.search(match["rest"])
    return event(
        line,
        KernelEventKind.SXID,
        device=bus_id(match["device"]),
        xid=int(match["sxid"]),
        severity="nonfatal" if severity["non"] else "fatal",
        link=int(link["link"]) if link else None,
    )


def _loaded(line: KernelText) -> KernelEvent | None:
    return (
        event(line, KernelEventKind.GPU_DRIVER_OK, alias=_UVM) if _LOADED.match(line.text) else None
    )


def _unusable(line: KernelText) -> KernelEvent | None:
    """The driver says that it can not, or may not, work with a GPU; which one it does not say."""
    found = (kind for kind, pattern in _UNUSABLE if pattern.match(line.text))
    kind = next(found, None)
    if kind is None:
        return None
    return event(line, kind, alias=_UVM if kind is KernelEventKind.GPU_DRIVER_FAILED else "")


def gpu_named(text: str) -> tuple[str, str] | None:
    """The PCI address and the UUID, from the line that the driver prints before the first Xid of a GPU; None for other lines."""
    match = _NAMED.match(text)
    return (bus_id(match["device"]), match["uuid"]) if match else None


SIGNS = (
    LineReader("NVRM: Xid", _xid),
    LineReader("fallen off the bus", _lost),
    LineReader("RmInitAdapter failed", _not_started),
    LineReader(" failed with error ", _not_taken),
    LineReader("SXid", _sxid),
    LineReader("Loaded the UVM driver", _loaded),
    LineReader(" failed: ", _unusable),
    LineReader("marked for reset", _unusable),
    LineReader("WPR2 already up", _unusable),
    LineReader("fatal error", _unusable),
    LineReader("Heartbeat timed out", _unusable),
    LineReader("RC watchdog: ", _unusable),
)
