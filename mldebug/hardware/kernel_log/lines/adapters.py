"""What network adapters and their drivers say when they are broken, silent or refuse something: mlx5, EFA, and Ethernet in general."""

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
    rf"mlx[45]_core(?:\.sf)?(?: (?P<bus>{ADDRESS})| (?P<part>mlx5_core\.sf\.\d{{1,6}}))?(?: (?P<name>[\w.@-]{{1,32}}))?: (?:INFO: )?(?:E-Switch: )?"
    r"(?:\w{1,64}:\d{1,6}:(?:\(pid \d{1,10}\):)? ?)?"
)
# Fatal errors 3 and 4 are no fault: somebody has switched the adapter (a virtual function) off, or resets it
_MLX_LINE = re.compile(
    _MLX + r"(?:(?P<fatal>device's health compromised|FW is unable to respond|PCI slot is unavailable|handling bad device here"
    r"|health recovery (?:failed|flow aborted)|Fatal error (?![34] )\d{1,4} detected|Internal error detected)"
    r"|(?:Health issue observed, |synd 0x0{0,7}[1-9a-f][0-9a-f]{0,7}: )(?P<heat>[Hh]igh temperature)?(?P<issue>)"
    r"|(?P<timeout>(?:cmd\[\d{1,3}\]: )?[A-Z][A-Z0-9_]{1,48}\(0x[0-9a-f]{1,6}\) (?:timeout\b|No done completion|canceled on out of queue timeout)"
    r"|command 0x[0-9a-f]{1,6} timed out)"
    r"|(?P<cqe>Error cqe on cqn |ERR CQE on SQ: )"
    r"|(?P<sent>TX timeout (?:detected|on queue))"
    r"|(?P<refused>[A-Z][A-Z0-9_]{1,48}\(0x[0-9a-f]{1,6}\) (?:op_mod\(0x[0-9a-f]{1,6}\) )?(?:uid\(\d{1,9}\) )?failed, status )"
    r"|(?P<ok>health recovery succeeded|Rate limit: \d{1,6} rates are supported))"  # the second: its driver has started it
)  # fmt: skip
# RDMA devices may have other names than mlx5_0: "infiniband rocep33s0f0: mlx5_poll_one:527:(pid 0): Responder error cqe on cqn 0x406:",
# since 5.19 "infiniband ibp26s0: dump_cqe:276:(pid 0): WC error: 4, Message: local protection error"
_CQE = re.compile(
    r"(?:infiniband (?P<new>[\w.-]{1,32}): ?|(?P<old>mlx[45]_\w{1,16}): ?)(?:dump_cqe|mlx[45]_poll_one):\d{1,6}:(?:\(pid \d{1,10}\):)? "
    r"(?:dump error cqe|(?:Requestor|Responder) error cqe on cqn|WC error: \d{1,3}, Message: )"
)
# Of the kernel itself where a driver could not start a device: "mlx5_core: probe of 0000:01:00.0 failed with error -22", since 6.8
# "mlx5_core 0000:01:00.0: probe with driver mlx5_core failed with error -22"; and what mlx5 itself says before it
_DRIVERS = r"(?:mlx[45]_core|bnxt_en|ice|i40e|ixgbe|igb|e1000e|tg3|cxgb4|ionic|qede|hfi1|irdma|ena|efa|gve|mana)"
# Of these a port that nobody uses may have an unsupported transceiver or an empty memory, at each boot: no fault of the node
_MAY_BE_UNUSED = re.compile(r"(?:ice|i40e|ixgbe|igb|e1000e|tg3)\b")
_NOT_STARTED = re.compile(
    rf"{_DRIVERS}: probe of (?P<bus>{ADDRESS}) failed with error -\d"
    rf"|{_DRIVERS} (?P<new>{ADDRESS}): probe with driver {_DRIVERS} failed with error -\d"
    rf"|mlx[45]_core (?P<mlx>{ADDRESS}): (?:\w{{1,64}}:\d{{1,6}}:(?:\(pid \d{{1,10}}\):)? ?)?(?:mlx5_(?:load|init)_one failed with error code -\d"
    r"|Firmware over \d{1,9} MS in (?:pre-)?initializing state, aborting)"
)
# "igb 0000:02:00.0 enp2s0: PCIe link lost", which ixgbe, igc and fm10k say as well: the adapter is gone
_LOST = re.compile(
    rf"(?:igb|igc|ixgbe|fm10k) (?P<bus>{ADDRESS})(?: [\w.@-]{{1,32}})?: (?:PCIe link lost|Adapter removed)"
)
# What these drivers say of an adapter that they have started, after a failure too: "ena 0000:00:05.0: Elastic Network Adapter (ENA) found at mem …",
# "bnxt_en 0000:19:00.0 eth0: Broadcom BCM57508 NetXtreme-E … Ethernet found at mem 382ffff10000, node addr …"
_STARTED = re.compile(
    rf"(?:ena|bnxt_en) (?P<bus>{ADDRESS})(?: [\w.@()-]{{1,32}}){{0,4}}: [^\n]{{1,160}} found at mem "
)
_WATCHDOG = re.compile(
    rf"(?:NETDEV WATCHDOG: (?P<old>[\w.@-]{{1,32}}) \([^)\n]{{0,32}}\)"
    rf"|[\w-]{{1,32}} (?:{ADDRESS}|[\w.:-]{{1,32}}) (?P<new>[\w.@-]{{1,32}}): NETDEV WATCHDOG: CPU: \d{{1,5}})"
    r": transmit queue \d{1,5} timed out"
)
_SENDER = re.compile(
    rf"(?:[\w-]{{1,32}} (?P<bus>{ADDRESS})(?: (?P<name>[\w.@-]{{1,32}}))?|(?P<alone>ib[\w.]{{1,20}})): "
    r"(?:TX timeout detected|tx_timeout: VSI_seid|Detected (?:Tx|Hardware) Unit Hang|transmit timeout: latency)"
)
# EFA and ENA of Amazon: "infiniband rdmap16s27: The device didn't send any completion for admin cmd CREATE_QP(6) …"
_AMAZON = re.compile(
    rf"(?:infiniband (?P<ib>[\w.-]{{1,32}})|(?:efa|ena) (?P<bus>{ADDRESS})(?: (?P<name>[\w.@-]{{1,32}}))?): "
    r"(?:(?P<fatal>Admin queue is closed|Device isn't ready|Failed to (?:reset|initialize) (?:the )?device|EFA device reset failed|Reset attempt failed|Reset indication didn't turn o)"
    r"|(?P<timeout>The (?:ib ?dev|device) (?:didn't send any completion|sent a completion but)|Keep alive watchdog timeout"
    r"|Wait for completion \(polling\) timeout|Reading [\w ]{1,40} timed out)"
    r"|(?P<refused>Failed to process command ))"
)
_BROADCOM = re.compile(
    rf"bnxt_en (?P<bus>{ADDRESS})(?: (?P<name>[\w.@-]{{1,32}}))?: (?:(?P<fatal>Firmware not responding"
    r"|(?:Detected )?[Ff]irmware fatal (?:error|condition)|FW fatal error)"
    r"|(?P<timeout>Error \(timeout: \d{1,9}\) msg ))"
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
        return event(line, KernelEventKind.PORT_FAULT, device=device)
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
    """An adapter that its driver could not start, or that left the bus."""
    lost, match = _LOST.match(line.text), _NOT_STARTED.match(line.text)
    if lost is not None:
        return event(line, KernelEventKind.NIC_FATAL, device=bus_id(lost["bus"]))
    if match is None:
        return None
    kind = KernelEventKind.NIC_FATAL
    if _MAY_BE_UNUSED.match(line.text):
        kind = KernelEventKind.NIC_ERROR
    return event(line, kind, device=bus_id(next(filter(None, match.groups()))))


def _started(line: KernelText) -> KernelEvent | None:
    match = _STARTED.match(line.text)
    return event(line, KernelEventKind.NIC_OK, device=bus_id(match["bus"])) if match else None


def _sender(line: KernelText) -> KernelEvent | None:
    match = _WATCHDOG.match(line.text) or _SENDER.match(line.text)
    if match is None:
        return None
    device = _named(match, "old", "new", "name", "alone")
    return event(line, KernelEventKind.NIC_TX_TIMEOUT, device=device)


def _amazon(line: KernelText) -> KernelEvent | None:
    match = _AMAZON.match(line.text) or _BROADCOM.match(line.text)
    if match is None:
        return None
    kind = KernelEventKind.NIC_FATAL if match["fatal"] else KernelEventKind.NIC_TIMEOUT
    if match.groupdict().get("refused"):
        kind = KernelEventKind.NIC_ERROR
    return event(line, kind, device=_named(match, "ib", "name"))


SIGNS = (
    LineReader(" error cqe", _cqe),
    LineReader("WC error: ", _cqe),
    LineReader(" failed with error ", _not_started),
    LineReader("_one failed with error code ", _not_started),
    LineReader("initializing state, aborting", _not_started),
    LineReader("PCIe link lost", _not_started),
    LineReader("Adapter removed", _not_started),
    LineReader(" found at mem ", _started),
    LineReader("NETDEV WATCHDOG: ", _sender),
    LineReader("mlx5_core", _mlx),
    LineReader("mlx4_core", _mlx),
    LineReader("TX timeout detected", _sender),
    LineReader("tx_timeout: ", _sender),
    LineReader("Unit Hang", _sender),
    LineReader("transmit timeout", _sender),
    LineReader("dmin queue is closed", _amazon),
    LineReader("Device isn't ready", _amazon),
    LineReader("completion", _amazon),
    LineReader("Keep alive watchdog", _amazon),
    LineReader("bnxt_en", _amazon),
    LineReader("device", _amazon),
    LineReader("Reset ", _amazon),
    LineReader("Failed to process command", _amazon),
)
