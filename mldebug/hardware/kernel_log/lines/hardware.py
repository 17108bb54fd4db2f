"""What the kernel says of the machine: machine checks (MCE, firmware's GHES), memory controllers (EDAC), PCIe (AER, DPC, ACS), IOMMU."""

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

# Without "on", and the name of the memory, it would be as short as a process name
_EDAC = re.compile(
    r"EDAC (?P<controller>[\w#]{3,32}): (?P<number>\d{1,9}) (?P<type>CE|UE)(?P<rest>(?: [^\n]{0,120})? on [^\n]{1,300})"
)
_DIMM = re.compile(r" on (?P<dimm>\S{1,64})")
_CHECK = re.compile(
    r"(?:mce: (?P<poison>Uncorrected hardware memory error in )|(?P<serror>SError Interrupt on CPU\d{1,5}, code 0x)|(?P<storm>(?:mce: )?(?:CPU\d{1,5} BANK\d{1,3} )?CMCI storm detected\b)|(?:mce: )?(?:\{\d{1,9}\})?\[Hardware Error\]: (?:"
    r"(?P<corrected>Corrected error|event severity: corrected)"
    # of which the kernel asks nothing: once broken memory is used, or is known to EDAC, a line of its own says that
    r"|(?P<deferred>Deferred error)"
    r"|(?P<uncorrected>System Fatal error|Uncorrected|event severity: (?:recoverable|fatal)|Fatal machine check"
    r"|CPU \d{1,5}: Machine Check Exception|CPU:\d{1,5} \([0-9a-f:]{1,12}\) MC\d{1,3}_STATUS\[(?:[^\]\n]{0,60}\|)?UE\|)"
    r"|(?P<logged>Machine check events logged|CPU \d{1,5}: Machine Check(?: Event)?: )))"
)
# "… CPU 1: Machine Check: 0 Bank 11: 8c00004f000800c2": the register says whether it was corrected
_BANK = re.compile(
    r"(?:mce: \[Hardware Error\]: |EDAC [\w#]{2,16} MC\d{1,3}: )CPU \d{1,5}: Machine Check(?: Event| Exception)?: (?:0x)?[0-9a-f]{1,16} "
    r"Bank \d{1,3}: (?:0x)?(?P<status>[0-9a-f]{16})"
)
_VALID, _UNCORRECTED = 1 << 63, 1 << 61  # bits of an x86 machine check status register
# A page whose memory is broken was taken out of use: "Memory failure: 0x30a6a90: recovery action for dirty LRU page: Recovered". Not one that was
# free, or taken out before: at each start NVIDIA's driver takes out what it knows to be broken of a GPU's memory that is the host's as well (GH200)
_PAGE = re.compile(
    r"(?:Memory failure:|MCE) 0x[0-9a-f]{1,16}: recovery action for (?!free buddy|already poisoned)[\w -]{1,60}: (?:Recovered|Ignored|Failed|Delayed)\b"
)
_HOT = re.compile(
    r"(?:mce: )?CPU(?P<cpu>\d{1,5}): (?:Core|Package) temperature (?:is )?above threshold, cpu clock (?:is )?throttled"
)
_ACS = re.compile(rf"[\w-]{{1,32}} (?P<bus>{ADDRESS}): {{1,8}}\[ ?\d{{1,2}}\] ACSViol\b")
_RECOVERY = re.compile(
    rf"pcieport (?P<bus>{ADDRESS}): (?:AER|DPC): (?:subordinate )?[Dd]evice recovery failed"
    rf"|[\w-]{{1,32}} (?P<device>{ADDRESS}): AER: can't recover"
)
# A device of any driver that does not answer on its bus any more; the drivers of disks say so of theirs
_INACCESSIBLE = re.compile(
    rf"[\w-]{{1,32}} (?P<bus>{ADDRESS}): (?:Unable to change power state from \w{{1,12}} to \w{{1,12}}, device inaccessible"
    r"|not ready \d{1,9}ms after [\w ]{1,40}; giving up)"
)
_UNNAMED = re.compile(
    rf"pcieport {ADDRESS}: AER: (?:Multiple )?Uncorrect[a-z]{{1,8}} \((?P<nonfatal>Non-)?Fatal\) error (?:message )?received(?: from|:) "
    rf"(?P<bus>{ADDRESS})[^\n]{{0,20}}\(no details found\)"
)
# "iommu ivhd0: AMD-Vi: Event logged [IOTLB_INV_TIMEOUT device=01:00.0 address=0x216d8e620]": the sender is a device, or the IOMMU
_IOMMU = re.compile(
    r"DMAR: \[[^\]\n]{1,40}\] Request device \[(?P<dmar>[0-9a-fx:.]{5,20})\]"
    r"|DMAR: VT-d detected Invalidation (?:Time-out|Completion|Queue) Error"
    rf"|(?:[\w-]{{1,32}} (?:(?P<bus>{ADDRESS})|ivhd\d{{1,3}}): )?AMD-Vi: (?:Completion-Wait loop timed out|Event logged "
    r"\[(?:IO_PAGE_FAULT|(?:IOTLB_INV|ILLEGAL|INVALID|DEV_TAB|PAGE_TAB|COMMAND|RMP)_[A-Z_]{4,32})(?: (?:vmg_tag=\w{1,16}, )?device=(?P<amd>[0-9a-f:.]{5,16}))?)"
    r"|arm-smmu(?:-v3)? [\w.:-]{1,64}: (?:event 0x[0-9a-f]{1,4} received|event: [CF]_[A-Z_]{3,24}\b(?: client: (?P<client>[0-9a-f:.]{5,16}))?|CMD_SYNC timeout|(?:Unhandled|Unexpected) (?:context|global) fault)"
)
# The kernel leaves out what would flood its log: "dmar_fault: 893 callbacks suppressed"
_LEFT_OUT = re.compile(
    r"(?:dmar_fault|amd_iommu_report_(?:page|rmp)_fault|arm_smmu_\w{1,40}): (?P<number>\d{1,9}) callbacks suppressed"
)
_IOMMU_FAILED = re.compile(
    r"arm-smmu-v3 [\w.:-]{1,64}: device has entered Service Failure Mode"
    rf"|(?:[\w-]{{1,32}} (?:{ADDRESS}|ivhd\d{{1,3}}): )?AMD-Vi: Event logged \[COMMAND_HARDWARE_ERROR"
)
_AER = re.compile(
    rf"(?:(?P<driver>[\w-]{{1,32}}) )?(?P<bus>{ADDRESS}): (?:AER: )?PCIe Bus Error: severity="
    r"(?:(?P<corrected>Correct)|Uncorrect[a-z]{1,8} \((?P<nonfatal>Non-)?Fatal\))"
)

# The chipset itself, without a word of the device: an error on its bus, or somebody has pressed the button for a dump (ipmitool power diag)
_SERR = re.compile(
    r"NMI: (?:PCI system error \(SERR\)|IOCK error \([^)\n]{1,24}\)) for reason [0-9a-f]{2} on CPU \d"
)
_CONTAINED = re.compile(rf"(?:pcieport|pci) (?P<bus>{ADDRESS}): DPC: containment event, status:")


def _edac(line: KernelText) -> KernelEvent | None:
    match = _EDAC.match(line.text)
    if match is None:
        return None
    dimm = _DIMM.search(match["rest"])
    return event(
        line,
        KernelEventKind.MEMORY_CORRECTED
        if match["type"] == "CE"
        else KernelEventKind.MEMORY_UNCORRECTED,
        device=(dimm["dimm"] if dimm else match["controller"])[:MAX_NAME],
        number=int(match["number"]) or 1,
    )


def _bank(line: KernelText) -> KernelEvent | None:
    """The line with the register of an x86 processor."""
    match = _BANK.match(line.text)
    if match is None:
        return None
    status = int(match["status"], 16)
    if not status & _VALID:
        return None
    kind = KernelEventKind.MACHINE_CHECK
    if status & _UNCORRECTED:
        kind = KernelEventKind.MACHINE_CHECK_UNCORRECTED
    return event(line, kind)


def _check(line: KernelText) -> KernelEvent | None:
    """The one line of a machine check that says how bad it is, or that there was one; not its registers."""
    match = _CHECK.match(line.text)
    if match is None:
        return None
    if match["corrected"] or match["storm"]:
        return event(line, KernelEventKind.MACHINE_CHECK_CORRECTED)
    if match["deferred"]:
        return event(line, KernelEventKind.MACHINE_CHECK_DEFERRED)
    if match["uncorrected"] or match["poison"] or match["serror"]:
        return event(line, KernelEventKind.MACHINE_CHECK_UNCORRECTED)
    return event(line, KernelEventKind.MACHINE_CHECK)


def _aer(line: KernelText) -> KernelEvent | None:
    """The line that names the device; the port's own "error received" is about the same error."""
    match = _AER.match(line.text)
    if match is None:
        return None
    nonfatal = KernelEventKind.PCIE_NONFATAL if match["nonfatal"] else KernelEventKind.PCIE_FATAL
    kind = KernelEventKind.PCIE_CORRECTED if match["corrected"] else nonfatal
    return event(line, kind, device=bus_id(match["bus"]), process=match["driver"] or "")


def _contained(line: KernelText) -> KernelEvent | None:
    """The line that names the port; what follows tells why, and of what is below."""
    match = _CONTAINED.match(line.text)
    return (
        event(line, KernelEventKind.PCIE_CONTAINED, device=bus_id(match["bus"])) if match else None
    )


def _serr(line: KernelText) -> KernelEvent | None:
    return event(line, KernelEventKind.PCIE_NONFATAL) if _SERR.match(line.text) else None


def _page(line: KernelText) -> KernelEvent | None:
    return event(line, KernelEventKind.MEMORY_UNCORRECTED) if _PAGE.match(line.text) else None


def _hot(line: KernelText) -> KernelEvent | None:
    match = _HOT.match(line.text)
    return event(line, KernelEventKind.CPU_THROTTLED) if match else None


def _acs(line: KernelText) -> KernelEvent | None:
    match = _ACS.match(line.text)
    return event(line, KernelEventKind.PCIE_ACS, device=bus_id(match["bus"])) if match else None


def _unrecovered(line: KernelText) -> KernelEvent | None:
    """The port could not bring the device back, or nobody knows which error the device had."""
    if match := _UNNAMED.match(line.text):
        bad = KernelEventKind.PCIE_NONFATAL if match["nonfatal"] else KernelEventKind.PCIE_FATAL
        return event(line, bad, device=bus_id(match["bus"]))
    match = _RECOVERY.match(line.text)
    if match is None:
        return None
    device = bus_id(match["bus"] or match["device"])
    return event(line, KernelEventKind.PCIE_FATAL, device=device)


def _inaccessible(line: KernelText) -> KernelEvent | None:
    match = _INACCESSIBLE.match(line.text)
    return event(line, KernelEventKind.PCIE_FATAL, device=bus_id(match["bus"])) if match else None


def _iommu(line: KernelText) -> KernelEvent | None:
    if _IOMMU_FAILED.match(line.text):
        return event(line, KernelEventKind.IOMMU_FAILED)
    if many := _LEFT_OUT.match(line.text):
        return event(line, KernelEventKind.IOMMU_FAULT, number=int(many["number"]) or 1)
    match = _IOMMU.match(line.text)
    if match is None:
        return None
    dmar = (match["dmar"] or "").replace("0x", "")  # of 5.13: "[0x00:0x02.0]"
    device = bus_id(dmar or match["bus"] or match["amd"] or match["client"] or "")
    return event(line, KernelEventKind.IOMMU_FAULT, device=device)


SIGNS = (
    LineReader("Bank ", _bank),
    LineReader("temperature ", _hot),
    LineReader("recovery action for ", _page),
    LineReader("ACSViol", _acs),
    LineReader("recover", _unrecovered),
    LineReader("no details found", _unrecovered),
    LineReader("device inaccessible", _inaccessible),
    LineReader("; giving up", _inaccessible),
    LineReader("Request device ", _iommu),
    LineReader("VT-d detected ", _iommu),
    LineReader(" callbacks suppressed", _iommu),
    LineReader("AMD-Vi: ", _iommu),
    LineReader("arm-smmu", _iommu),
    LineReader("EDAC ", _edac),
    LineReader("[Hardware Error]: ", _check),
    LineReader("Uncorrected hardware", _check),
    LineReader("SError Interrupt ", _check),
    LineReader("CMCI storm ", _check),
    LineReader("PCIe Bus Error: ", _aer),
    LineReader("NMI: ", _serr),
    LineReader("DPC: ", _contained),
)
