"""What the kernel says of disks: I/O errors, and disks that are gone (NVMe, SCSI, SATA, RAID)."""

import re

from mldebug.hardware.kernel_log.lines.reader import ADDRESS, KernelText, LineReader, bus_id, event
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

_DISK = re.compile(
    r"(?:blk_update_request: |print_req_error: |end_request: |Buffer )?(?:[\w ]{1,30} )?(?:I/O error|critical (?:medium|target|nexus|space allocation) error)(?:,| on) dev(?:ice)? (?P<dev>[\w!./-]{1,64}), (?:sector|logical block) "
    r"|nvme (?P<nvme>nvme[\w]{1,16}): (?:I/O (?:tag )?\d+ [^\n]{0,60}timeout|controller is down)"
)
# "md/raid1:md126: active with 1 out of 2 mirrors", "md/raid:md5: raid level 5 active with 3 out of 4 devices, algorithm 2"
_ARRAY = re.compile(
    r"md/raid\d{0,2}:(?P<md>md\w{1,16}): (?:raid level \d{1,2} )?active with (?P<there>\d{1,4}) out of (?P<all>\d{1,4}) (?:mirrors|devices)\b"
)
_NO_DISK = re.compile(r"(?:fd|sr|loop|nbd|ram|zram)\d")  # empty drives at boot, files
_GONE = re.compile(
    r"nvme (?P<nvme>nvme\w{1,16}): (?:Device not ready; aborting|Removing after probe failure|Remov(?:ing|e) (?:after|dead)"
    r"|Disabling device after reset failure|Controller not ready at resume|Identify Controller failed \(-|(?:Failed to )?[Rr]eset failed|failed to reset controller)"
    r"|nvme (?P<fabric>nvme\w{1,16}): (?:Reconnecting in \d{1,6} seconds|starting error recovery|Failed reconnect attempt|failed nvme_keep_alive_end_io error=)"  # over a network
    rf"|nvme (?P<bus>{ADDRESS}): Unable to change power state from \w{{1,12}} to D0, device inaccessible"
    # its driver could not start it; not one that is tried again: EAGAIN, EPROBE_DEFER
    rf"|nvme (?P<new>{ADDRESS}): probe with driver nvme failed with error -(?!(?:11|517)\b)\d"
    rf"|nvme: probe of (?P<old>{ADDRESS}) failed with error -(?!(?:11|517)\b)\d"
    r"|block (?P<block>nvme[\w-]{1,16}): no available path - failing I/O"
    # the adapter that the disks are behind: its firmware stopped
    r"|(?P<sas>mpt\dsas_cm\d{1,3}): (?:fault_state\(0x|SAS host is non-operational|diag reset: FAILED)"
    rf"|megaraid_sas (?P<raid>{ADDRESS}): (?:FW in FAULT state|Adapter is not OPERATIONAL|[^\n]{{0,80}}killing adapter scsi)"
    rf"|(?:smartpqi|hpsa) (?P<hba>{ADDRESS}): [Cc]ontroller (?:(?:is )?offline: |lockup detected: )"
    rf"|aacraid (?P<aac>{ADDRESS}): (?:IOP|SOFT) reset failed"
    rf"|qla2xxx \[(?P<qla>{ADDRESS})\]-[0-9a-f]{{4}}:\d{{1,5}}: ISP System Error"
    r"|sd (?P<scsi>[\d:]{5,40}): (?:\[(?P<sd>\w{1,16})\] )?(?:rejecting I/O to (?:offline|dead) device|Device offlined)"
    r"|(?P<ata>ata\d{1,3}(?:\.\d{1,3})?): disabled?(?: device)?\s*$"
    r"|nvme (?P<cut>nvme\w{1,16}): failure state error detected, request disconnect"  # the bus of it is lost for good
    # an array without a second copy is gone as a whole: "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array."
    r"|md/(?:raid0|linear)(?P<whole>md\w{1,16}): Disk failure on (?P<only>[\w-]{1,32}) detected, failing array"
    r"|md/raid\d{0,2}:(?P<md>md\w{1,16}): (?:Disk failure on (?P<member>[\w-]{1,32})|Cannot continue operation|not enough operational (?:mirrors|devices)\b)"
)
# "ata1.00: exception Emask 0x0 SAct 0x1 SErr 0x0 action 0x6 frozen", which lines about each command follow
_TROUBLE = re.compile(
    r"(?P<ata>ata\d{1,3}(?:\.\d{1,3})?): exception Emask 0x[0-9a-f]{1,8} "
    r"|(?P<host>aacraid): Host (?:bus|target|adapter|device) (?:reset|abort) request\."
    r"|md: kicking non-fresh (?P<kicked>[\w-]{1,32}) from array"  # which array lacks it, that array says itself
    r"|device-mapper: multipath: (?P<paths>\d{1,4}:\d{1,7}): Failing path "
    r"|block (?P<path>nvme[\w-]{1,16}): no usable path - requeuing I/O"
    # the disks of a server of iSCSI: that it is back the kernel does not say
    r"| ?(?:iscsi_session )?(?P<iscsi>session\d{1,6}): session recovery timed out after \d"
    r"|nvme (?P<internal>nvme\w{1,16}): (?:resetting controller due to persistent internal error|frozen state error detected, reset controller)"
    r"|(?:Read|Write)-error on swap-device \((?P<swap>\d{1,4}:\d{1,7}):\d{1,20}\)"
    # what is read is not what was written: a sum of dm-crypt, dm-integrity or dm-verity does not fit
    r"|device-mapper: crypt: (?:(?P<crypt>[\w-]{1,32}): )?INTEGRITY AEAD ERROR, sector |device-mapper: integrity: (?:(?P<integrity>[\w-]{1,32}): )?Checksum failed at sector "
    r"|device-mapper: verity: (?P<verity>\d{1,4}:\d{1,7}): (?:meta)?data block \d{1,20} is corrupted"
    r"|md/raid\d{0,2}:md\w{1,16}: [^\n]{0,40}read error not correctable \(sector \d{1,20} on (?P<member>[\w-]{1,32})\)"
)
_BACK = re.compile(
    r"nvme (?P<nvme>nvme\w{1,16}): (?:\d{1,5}/\d{1,5}/\d{1,5} default/read/poll queues|Successfully reconnected|pci function (?P<function>[0-9a-f:.]{5,16}))"
    r"|(?P<sas>mpt\dsas_cm\d{1,3}): (?:diag reset: SUCCESS|host reset: SUCCESS|port enable: SUCCESS)"
    r"|md: (?P<md>md\w{1,16}): recovery done\."  # the array is whole again
    r"|md: (?:recovery of RAID array (?P<fills>md\w{1,16})|(?P<stops>md\w{1,16}):? stopped\.)"
    # a disk that was put in: "sd 0:0:1:0: [sdb] Attached SCSI disk", "ata1.00: configured for UDMA/133"
    r"|sd (?P<scsi>[\d:]{5,40}): \[(?P<sd>\w{1,16})\] Attached SCSI (?:removable )?disk"
    r"|(?P<ata>ata\d{1,3}(?:\.\d{1,3})?): configured for "
    rf"|qla2xxx \[(?P<qla>{ADDRESS})\]-[0-9a-f]{{4}}:\d{{1,5}}: LOOP UP detected"
    rf"|aacraid (?P<aac>{ADDRESS}): IOP reset succeeded"
    rf"|megaraid_sas (?P<raid>{ADDRESS}): (?:FW now in Ready state|Adapter is OPERATIONAL|Reset successful)"
)


def _disk(line: KernelText) -> KernelEvent | None:
    match = _DISK.match(line.text)
    if match is None or _NO_DISK.match(match["dev"] or ""):
        return None
    return event(
        line, KernelEventKind.DISK_ERROR, device=(match["dev"] or match["nvme"]).rstrip(",.")
    )


def _device(match: re.Match[str]) -> str:
    """The last name in a line: a disk rather than the array or the place that it is in."""
    return next(filter(None, reversed(match.groups())), "")


def _gone(line: KernelText) -> KernelEvent | None:
    match = _GONE.match(line.text)
    if match is None:
        return None
    device = _device(match)
    array = match["md"] if match["member"] else ""
    if match["whole"]:
        array = _start_of(match["whole"])
    return event(line, KernelEventKind.DISK_GONE, device=bus_id(device) or device, alias=array)


def _array(line: KernelText) -> KernelEvent | None:
    """An array of disks that starts with all of them, or with some missing."""
    match = _ARRAY.match(line.text)
    if match is None:
        return None
    if int(match["there"]) >= int(match["all"]):
        return event(line, KernelEventKind.DISK_OK, device=match["md"])
    return event(line, KernelEventKind.DISK_GONE, device=match["md"], alias=_start_of(match["md"]))


def _start_of(array: str) -> str:
    """What stands for the start of an array with disks missing, which is over when another disk takes their place, as in each new RAID 5,
    or when the array is stopped, and for an array without a second copy. A disk that failed in another array is not.
    """
    return f"{array}:start"


def _trouble(line: KernelText) -> KernelEvent | None:
    match = _TROUBLE.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.DISK_ERROR, device=_device(match))


def _back(line: KernelText) -> KernelEvent | None:
    match = _BACK.match(line.text)
    if match is None:
        return None
    if match["nvme"]:
        function = bus_id(match["function"] or "")
        return event(line, KernelEventKind.DISK_OK, device=match["nvme"], alias=function)
    if match["md"]:
        return event(line, KernelEventKind.DISK_OK, device=match["md"])
    if array := match["fills"] or match["stops"]:
        return event(line, KernelEventKind.DISK_OK, alias=_start_of(array))
    if match["sd"]:
        return event(line, KernelEventKind.DISK_OK, device=match["sd"], alias=match["scsi"])
    device = match["sas"] or match["ata"] or bus_id(match["raid"] or match["qla"] or match["aac"])
    return event(line, KernelEventKind.DISK_OK, device=device)


SIGNS = (
    LineReader("nvme ", _back),
    LineReader(" recovery done", _back),
    LineReader("recovery of RAID array ", _back),
    LineReader(" stopped.", _back),
    LineReader(" Attached SCSI ", _back),
    LineReader(": configured for ", _back),
    LineReader("sas", _back),
    LineReader("sas", _gone),
    LineReader("ontroller ", _gone),
    LineReader("qla2xxx ", _back),
    LineReader("qla2xxx ", _gone),
    LineReader("aacraid ", _back),
    LineReader("aacraid ", _gone),
    LineReader("nvme ", _gone),
    LineReader("nvme: probe of ", _gone),
    LineReader("kicking non-fresh", _trouble),
    LineReader(" out of ", _array),
    LineReader("no available path", _gone),
    LineReader("sd ", _gone),
    LineReader("disable", _gone),
    LineReader("Disk failure", _gone),
    LineReader("Cannot continue operation", _gone),
    LineReader("not enough operational ", _gone),
    LineReader(": exception Emask ", _trouble),
    LineReader("read error not correctable", _trouble),
    LineReader("no usable path", _trouble),
    LineReader(", reset controller", _trouble),
    LineReader("persistent internal error", _trouble),
    LineReader("-error on swap-device ", _trouble),
    LineReader("device-mapper: ", _trouble),
    LineReader("Failing path", _trouble),
    LineReader("session recovery timed out", _trouble),
    LineReader("aacraid: ", _trouble),
    LineReader("I/O error", _disk),
    LineReader("critical ", _disk),
    LineReader("nvme ", _disk),
)
