"""What Mellanox's adapters and their drivers mlx4 and mlx5 say when they are broken, silent or refuse something."""

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

# "mlx5_core 0000:41:00.0: poll_health:852:(pid 0): …", of old drivers "mlx5_core 0000:41:00.0: poll_health:825: …" or
# "mlx5_core: INFO: …", since 5.0 with the interface: "mlx5_core 0000:41:00.0 eth2: …"
_MLX = (
    rf"mlx[45]_core(?:\.sf)?(?: (?P<bus>{ADDRESS})| (?P<part>mlx5_core\.sf\.\d{{1,6}}))?(?: (?P<name>[\w.@-]{{1,32}}))?: (?:INFO: )?(?:E-Switch: )?(?:{ADDRESS}:)?"
    r"(?:\w{1,64}:\d{1,6}:(?:\(pid \d{1,10}\):)? ?)?"
)
# Fatal errors 3 and 4 are no fault: somebody has switched the adapter (a virtual function) off, or resets it
_MLX_LINE = re.compile(
    _MLX + r"(?:(?P<fatal>device's health compromised|FW is unable to respond|PCI slot is unavailable|PCI link not ready \(0x|handling bad device here"
    r"|health recovery (?:failed|flow aborted)|Fatal error (?![34] )\d{1,4} detected|Internal error detected"
    r"|mlx5_pci_err_detected Device state = \d{1,3} [^\n]{0,60}pci channel state = [23]\b)"
    r"|(?:Health issue observed, |synd 0x0{0,7}[1-9a-f][0-9a-f]{0,7}: )(?P<heat>[Hh]igh temperature)?(?P<issue>)"
    r"|(?P<timeout>(?:cmd\[\d{1,3}\]: )?[A-Z0-9][A-Z0-9_]{1,48}\(0x[0-9a-f]{1,6}\) (?:timeout\b|No done completion|canceled on out of queue timeout)"
    r"|command 0x[0-9a-f]{1,6} timed out)"
    r"|(?P<cqe>Error cqe on cqn |ERR CQE on SQ: )"
    r"|(?P<sent>TX timeout (?:detected|on queue))"
    r"|(?P<refused>[A-Z0-9][A-Z0-9_]{1,48}\(0x[0-9a-f]{1,6}\) (?:op_mod\(0x[0-9a-f]{1,6}\) )?(?:uid\(\d{1,9}\) )?failed, status )"
    r"|(?P<ok>health recovery succeeded|mlx5_pci_resume Device state = \d{1,3} [^\n]{0,60}Exit, err = 0\b|Rate limit: \d{1,6} rates are supported))"  # the second: its driver has started it
)  # fmt: skip
# RDMA devices may have other names than mlx5_0: "infiniband rocep33s0f0: mlx5_poll_one:527:(pid 0): Responder error cqe on cqn 0x406:",
# since 5.19 "infiniband ibp26s0: dump_cqe:276:(pid 0): WC error: 4, Message: local protection error"
_CQE = re.compile(
    r"(?:infiniband (?P<new>[\w.-]{1,32}): ?|(?P<old>mlx[45]_\w{1,16}): ?)(?:dump_cqe|mlx[45]_poll_one):\d{1,6}:(?:\(pid \d{1,10}\):)? "
    r"(?:dump error cqe|(?:Requestor|Responder) error cqe on cqn|WC error: \d{1,3}, Message: )"
)
# Of mlx5 itself before the kernel says that its driver could not start a device
_NOT_STARTED = re.compile(
    rf"mlx[45]_core (?P<mlx>{ADDRESS}): (?:\w{{1,64}}:\d{{1,6}}:(?:\(pid \d{{1,10}}\):)? ?)?(?:mlx5_(?:load|init)_one failed with error code -\d"
    r"|Firmware over \d{1,9} MS in (?:pre-)?initializing state, aborting)"
)


def _named(match: re.Match[str], *groups: str) -> str:
    """The address of the adapter where the line has one, else the name of its interface."""
    parts = match.groupdict()
    if address := bus_id(parts.get("bus") or ""):
        return address
    return next((parts[one] for one in groups if parts.get(one)), "")[:MAX_NAME]


def _mlx(line: KernelText) -> KernelEvent | None:
    match = _MLX_LINE.match(line.text)
    if match is None:
        return None
    device = _named(match, "part", "name")
    if match["heat"]:
        return event(line, KernelEventKind.NIC_HOT, device=device)
    kinds = {
        "fatal": KernelEventKind.NIC_FATAL,
        "issue": KernelEventKind.NIC_FATAL,
        "timeout": KernelEventKind.NIC_TIMEOUT,
        "sent": KernelEventKind.NIC_TX_TIMEOUT,
        "refused": KernelEventKind.NIC_ERROR,
        "cqe": KernelEventKind.NIC_ERROR,
        "ok": KernelEventKind.NIC_OK,
    }
    kind = next(kind for group, kind in kinds.items() if match[group] is not None)
    return event(line, kind, device=device)


def _cqe(line: KernelText) -> KernelEvent | None:
    match = _CQE.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.NIC_ERROR, device=match["new"] or match["old"])


def _not_started(line: KernelText) -> KernelEvent | None:
    """An adapter that its driver could not start."""
    match = _NOT_STARTED.match(line.text)
    return event(line, KernelEventKind.NIC_FATAL, device=bus_id(match["mlx"])) if match else None


SIGNS = (
    LineReader(" error cqe", _cqe),
    LineReader("WC error: ", _cqe),
    LineReader("_one failed with error code ", _not_started),
    LineReader("initializing state, aborting", _not_started),
    LineReader("mlx5_core", _mlx),
    LineReader("mlx4_core", _mlx),
)
