"""What the kernel says of filesystems of its own disks: damaged, made read-only, shut down, and mounted anew."""

import re

from mldebug.hardware.kernel_log.lines.reader import KernelText, LineReader, event
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

_NAME = r"[^)\n]{1,64}"
_EXT = re.compile(
    rf"EXT[234]-fs (?:(?P<error>error|abort|warning(?= \(device {_NAME}\): [^\n]{{1,120}}?: (?:I/O error |error -5\b))) \(device (?P<device>{_NAME})\)|\((?P<mounted>{_NAME})\): (?P<what>[^\n]{{0,120}}))"
)
_EXT_LOST = re.compile(
    r"(?:previous|Failed to|failed to convert|[Dd]elayed block allocation failed|This should not happen|I/O error)"
)
_JOURNAL = re.compile(
    rf"(?:Aborting journal on device (?P<aborted>{_NAME}?)\.?$"
    r"|JBD2: (?:Error -\d{1,5} detected|Detected IO errors|I/O error when updating)[^\n]{0,60} (?:for|on) (?P<errors>[\w-]{1,40})\.?$"
    r"|JBD: (?:Detected IO errors while flushing file data on (?P<flushed>[\w-]{1,40})|recovery failed)|journal commit I/O error$"
    r"|JBD2: (?:Error while async write back metadata|Invalid checksum recovering|recovery failed|journal checksum error|Failed to read block))"
)
# Before 3.0 some lines had no device: "XFS: Internal error XFS_WANT_CORRUPTED_RETURN at line 342 of file …"
_XFS = re.compile(
    rf"XFS(?: \((?P<device>{_NAME})\): |: (?=Internal error ))(?P<what>[^\n]{{0,200}})"
)
_SHUTDOWN = re.compile(r"shut(?:ting)? ?down", re.IGNORECASE)
_XFS_ERROR = re.compile(
    r"[Cc]orrupt|I/O error|Internal error|Failing async write on buffer|writeback error on inode"
)
_BTRFS = re.compile(
    r"BTRFS:? (?P<level>info|warning|error|critical) \(device (?P<device>[^) \n:]{1,64})(?:[: ]{1,2}state \w{1,8})?\)(?P<what>[^\n]{0,200})"
)
# Most warnings are about one copy of several, or about settings
_BTRFS_WARNING = re.compile(
    r": (?:devid \d{1,9} uuid [0-9a-f-]{36} is missing|lost page write|Skipping commit of aborted transaction)"
)
_OTHERS = re.compile(
    rf"(?:[A-Z0-9]{{2,8}}-fs|F2FS-fs|FAT-fs|NILFS|bcachefs) \((?P<device>{_NAME})\): [^\n]{{0,80}}?"
    r"(?:[Rr]emounting filesystem read-only|Filesystem has been set read-only|emergency read[ -]only\b)"
    r"|(?:SPLError: \d{1,10}:\d{1,5}:\([^()\n]{1,100}\(\)\) )?WARNING: Pool '(?P<pool>[^'\n]{1,64})' has encountered an uncorrectable I/O failure and has been suspended"
    r"|WARNING: MMP writes to pool '(?P<mmp>[^'\n]{1,64})' have not succeeded in over \d"
    r"|(?P<ocfs2>OCFS2): File system is now read-only\b"
)
_RESUMED = re.compile(
    r"WARNING: Pool '(?P<pool>[^'\n]{1,64})' was suspended and is being resumed\b"
)  # of OpenZFS since 2.3
_OCFS2 = re.compile(rf"OCFS2: ERROR \(device (?P<device>{_NAME})\): ")
# "device-mapper: thin: 253:48: switching pool to out-of-data-space (error IO) mode"
_THIN = re.compile(
    r"device-mapper: thin: (?P<device>\d{1,4}:\d{1,7}): switching pool to (?:(?P<full>out-of-data-space|out-of-metadata-space)|(?P<bad>read-only|failure)|(?P<ok>write))\b"
)
# A cache of the device mapper that has failed takes what lies on it along; before 6.7 in capitals
_CACHE = re.compile(
    r"device-mapper: cache: (?P<device>\d{1,4}:\d{1,7}): switching cache to (?:(?P<bad>read-only|fail)|(?P<ok>write)) mode"
)
# XFS and others, by the kernel's own code for all of them: pages that could not be written are lost
_UNWRITTEN = re.compile(r"(?P<device>[\w!.-]{1,32}): writeback error on inode \d{1,20}, offset ")
_AGAIN = re.compile(r"(?:re-?mounted|mounted filesystem|unmounting filesystem|Ending (?:clean mount|recovery)|Unmounting Filesystem|(?:first mount|last unmount) of filesystem)")  # fmt: skip
_READ_ONLY_AGAIN = re.compile(r" ro(?:\b|\.)")


def _ext(line: KernelText) -> KernelEvent | None:
    match = _EXT.match(line.text)
    if match is None:
        return None
    if match["error"]:
        return event(line, KernelEventKind.FILESYSTEM_ERROR, device=match["device"])
    what, device = match["what"], match["mounted"]
    if what.removeprefix("error: ").lower().startswith("remounting filesystem read-only"):
        return event(line, KernelEventKind.FILESYSTEM_READ_ONLY, device=device)
    if _SHUTDOWN.match(what):
        return event(line, KernelEventKind.FILESYSTEM_SHUTDOWN, device=device)
    if _EXT_LOST.match(what):
        return event(line, KernelEventKind.FILESYSTEM_ERROR, device=device)
    return _mounted(line, what, device)


def _mounted(line: KernelText, what: str, device: str) -> KernelEvent | None:
    """Somebody has repaired and mounted it anew, or does not use it any more."""
    if not _AGAIN.match(what) or _READ_ONLY_AGAIN.search(what):
        return None
    return event(line, KernelEventKind.FILESYSTEM_OK, device=device)


def _journal(line: KernelText) -> KernelEvent | None:
    match = _JOURNAL.match(line.text)
    if match is None:
        return None
    name = re.sub(
        r"(?<!\bdm)-\d{1,3}$", "", match["aborted"] or match["errors"] or match["flushed"] or ""
    )
    return event(line, KernelEventKind.FILESYSTEM_ERROR, device=name)


def _xfs(line: KernelText) -> KernelEvent | None:
    match = _XFS.match(line.text)
    if match is None:
        return None
    device = match["device"] or ""
    if device and _SHUTDOWN.search(match["what"]):
        return event(line, KernelEventKind.FILESYSTEM_SHUTDOWN, device=device)
    if _XFS_ERROR.search(match["what"]):
        return event(line, KernelEventKind.FILESYSTEM_ERROR, device=device)
    return _mounted(line, match["what"], device)


def _btrfs(line: KernelText) -> KernelEvent | None:
    match = _BTRFS.match(line.text)
    if match is None:
        return None
    if "forced readonly" in match["what"]:
        return event(line, KernelEventKind.FILESYSTEM_READ_ONLY, device=match["device"])
    if match["level"] == "info":
        return _mounted(line, match["what"].removeprefix(": "), match["device"])
    if match["level"] == "warning" and not _BTRFS_WARNING.match(match["what"]):
        return None
    return event(line, KernelEventKind.FILESYSTEM_ERROR, device=match["device"])


def _other(line: KernelText) -> KernelEvent | None:
    match = _OTHERS.match(line.text)
    if match is None:
        return None
    if pool := match["pool"] or match["mmp"]:
        return event(line, KernelEventKind.FILESYSTEM_SHUTDOWN, device=pool, alias=pool_alias(pool))
    return event(
        line, KernelEventKind.FILESYSTEM_READ_ONLY, device=match["device"] or match["ocfs2"]
    )


def pool_alias(pool: str) -> str:
    """The second name of a suspended pool of ZFS, by which it is known from disks and mounts."""
    return f"zpool/{pool}"


def _resumed(line: KernelText) -> KernelEvent | None:
    """Somebody has brought the disks of a pool back, and let it go on (`zpool clear`)."""
    match = _RESUMED.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.FILESYSTEM_OK, device=pool_alias(match["pool"]))


def _ocfs2_mounted(line: KernelText) -> KernelEvent | None:
    """Which of several is read-only the kernel does not say: mounted anew is the last that it says of any."""
    if not line.text.startswith("ocfs2: Mounting device "):
        return None
    return event(line, KernelEventKind.FILESYSTEM_OK, device="OCFS2")


def _ocfs2(line: KernelText) -> KernelEvent | None:
    match = _OCFS2.match(line.text)
    return event(line, KernelEventKind.FILESYSTEM_ERROR, device=match["device"]) if match else None


def _thin(line: KernelText) -> KernelEvent | None:
    """A thin pool of the device mapper, by its number, which `lsblk` has too."""
    match = _THIN.match(line.text)
    if match is None:
        return None
    kind = KernelEventKind.FILESYSTEM_READ_ONLY if match["bad"] else KernelEventKind.FILESYSTEM_OK
    if match["full"]:
        kind = KernelEventKind.POOL_FULL
    return event(line, kind, device=match["device"])


def _cache(line: KernelText) -> KernelEvent | None:
    match = _CACHE.match(line.text)
    if match is None:
        return None
    kind = KernelEventKind.FILESYSTEM_READ_ONLY if match["bad"] else KernelEventKind.FILESYSTEM_OK
    return event(line, kind, device=match["device"])


def _unwritten(line: KernelText) -> KernelEvent | None:
    match = _UNWRITTEN.match(line.text)
    return event(line, KernelEventKind.FILESYSTEM_ERROR, device=match["device"]) if match else None


SIGNS = (
    LineReader("EXT", _ext),
    LineReader("Aborting journal", _journal),
    LineReader("JBD2: ", _journal),
    LineReader("JBD: ", _journal),
    LineReader("journal commit I/O error", _journal),
    LineReader("XFS (", _xfs),
    LineReader("XFS: Internal error ", _xfs),
    LineReader("BTRFS", _btrfs),
    LineReader("read-only", _other),
    LineReader("emergency read only", _other),
    LineReader("has been suspended", _other),
    LineReader("MMP writes to pool ", _other),
    LineReader("is being resumed", _resumed),
    LineReader("OCFS2: ERROR ", _ocfs2),
    LineReader("ocfs2: Mounting device ", _ocfs2_mounted),
    LineReader("switching pool to ", _thin),
    LineReader("switching cache to ", _cache),
    LineReader(": writeback error on inode ", _unwritten),
)
