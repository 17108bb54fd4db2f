"""What the kernel says of storage: NFS and Lustre servers that are silent, broken filesystems, disks with I/O errors."""

import re

from mldebug.hardware.kernel_log.lines.reader import KernelText, LineReader, event
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

_NFS = re.compile(r"(?:nfs|lockd): server (?P<server>[^\s,]{1,255}) (?P<state>not responding|OK\b)")
_LUSTRE = re.compile(
    r"Lustre(?:Error)?: (?:[\d-]{1,12}: )?(?:(?P<target>[\w-]{1,48}?-(?:OST|MDT)[0-9a-fA-F]{4})|[^\s:]{1,100})[^\s:]{0,60}: "
    r"(?:Connection to (?P<lost>[^\s()]{1,64}) \(at [^)\n]{1,64}\) was lost|(?P<restored>Connection restored to )"
    r"|This client was evicted by (?P<evicted>[^\s;]{1,64})|operation \w{1,40} to node (?P<node>\S{1,64}) failed)"
)
# "LustreError: 11-0: …", "LustreError: 4711:0:(client.c:1234:…) …": the number is no name's
_LUSTRE_ERROR = re.compile(
    r"LustreError: (?:[0-9a-fA-F]{1,4}-[0-9a-fA-F]{1,4}: |\d{1,10}:\d{1,5}:\()"
)
_EXT = re.compile(
    r"EXT[234]-fs (?:(?P<error>error) \(device (?P<device>[^)\n]{1,64})\)|\((?P<mounted>[^)\n]{1,64})\): (?P<what>[^\n]{0,80}))"
)
_XFS = re.compile(r"XFS \((?P<device>[^)\n]{1,64})\): (?P<what>[^\n]{0,200})")
_SHUTDOWN = re.compile(r"[Ss]hut(?:ting)? ?down", re.IGNORECASE)
_XFS_ERROR = re.compile(r"[Cc]orrupt|I/O error|Internal error")
_DISK = re.compile(
    r"(?:blk_update_request: |Buffer )?(?:[\w ]{1,30} )?I/O error(?:,| on) dev (?P<dev>[\w!./-]{1,64}), (?:sector|logical block) "
    r"|nvme (?P<nvme>nvme[\w]{1,16}): (?:I/O (?:tag )?\d+ [^\n]{0,60}timeout|controller is down)"
)


def _nfs(line: KernelText) -> KernelEvent | None:
    match = _NFS.match(line.text)
    if match is None:
        return None
    kind = KernelEventKind.NFS_OK if match["state"] == "OK" else KernelEventKind.NFS_NOT_RESPONDING
    return event(line, kind, device=match["server"])


def _lustre(line: KernelText) -> KernelEvent | None:
    match = _LUSTRE.match(line.text)
    if match is None:
        failed = _LUSTRE_ERROR.match(line.text)
        return event(line, KernelEventKind.LUSTRE_ERROR) if failed else None
    if match["lost"]:
        return event(line, KernelEventKind.LUSTRE_LOST, device=match["lost"])
    if match["evicted"]:
        return event(line, KernelEventKind.LUSTRE_EVICTED, device=match["evicted"])
    kind = KernelEventKind.LUSTRE_RESTORED if match["restored"] else KernelEventKind.LUSTRE_ERROR
    return event(line, kind, device=match["target"] or "")


def _ext(line: KernelText) -> KernelEvent | None:
    match = _EXT.match(line.text)
    if match is None:
        return None
    if match["error"]:
        return event(line, KernelEventKind.FILESYSTEM_ERROR, device=match["device"])
    if match["what"].startswith("Remounting filesystem read-only"):
        return event(line, KernelEventKind.FILESYSTEM_READ_ONLY, device=match["mounted"])
    return None


def _xfs(line: KernelText) -> KernelEvent | None:
    match = _XFS.match(line.text)
    if match is None:
        return None
    if _SHUTDOWN.search(match["what"]):
        return event(line, KernelEventKind.FILESYSTEM_SHUTDOWN, device=match["device"])
    if _XFS_ERROR.search(match["what"]):
        return event(line, KernelEventKind.FILESYSTEM_ERROR, device=match["device"])
    return None


def _disk(line: KernelText) -> KernelEvent | None:
    match = _DISK.match(line.text)
    if match is None:
        return None
    return event(
        line, KernelEventKind.DISK_ERROR, device=(match["dev"] or match["nvme"]).rstrip(",.")
    )


SIGNS = (
    LineReader(": server ", _nfs),
    LineReader("Lustre", _lustre),
    LineReader("-fs ", _ext),
    LineReader("XFS (", _xfs),
    LineReader("I/O error", _disk),
    LineReader("nvme ", _disk),
)
