"""What the kernel says of the machine: machine checks (MCE, firmware's GHES), memory controllers (EDAC), PCIe (AER, DPC)."""

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
    r"(?:mce: )?(?:\{\d{1,9}\})?\[Hardware Error\]: (?:"
    r"(?P<corrected>Corrected error|event severity: corrected)"
    r"|(?P<uncorrected>Uncorrected|Deferred error|event severity: (?:recoverable|fatal)|CPU \d{1,5}: Machine Check Exception)"
    r"|(?P<logged>Machine check events logged|CPU \d{1,5}: Machine Check(?: Event)?: ))"
)
_AER = re.compile(
    rf"(?:(?P<driver>[\w-]{{1,32}}) )?(?P<bus>{ADDRESS}): (?:AER: )?PCIe Bus Error: severity="
    r"(?:(?P<corrected>Correct)|Uncorrect[a-z]{1,8} \((?P<nonfatal>Non-)?Fatal\))"
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


def _check(line: KernelText) -> KernelEvent | None:
    """The one line of a machine check that says how bad it is, or that there was one; not its registers."""
    match = _CHECK.match(line.text)
    if match is None:
        return None
    if match["corrected"]:
        return event(line, KernelEventKind.MACHINE_CHECK_CORRECTED)
    if match["uncorrected"]:
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


SIGNS = (
    LineReader("EDAC ", _edac),
    LineReader("[Hardware Error]: ", _check),
    LineReader("PCIe Bus Error: ", _aer),
    LineReader("DPC: ", _contained),
)
