"""What network drivers say of links and ports: mlx5 (Ethernet and InfiniBand), other Ethernet drivers, bonds, PCIe slots."""

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

# "mlx5_core 0000:1a:00.0 ens1f0np0: Link down", "igb 0000:03:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps",
# "i40e 0000:3b:00.0: NIC Link is Down", "e1000e: eno1 NIC Link is Down", "mlx5_0: Port: 1 Link DOWN"; no "ata1: SATA link down"
_LINK = re.compile(
    rf"(?:[a-z][\w-]{{1,20}} (?P<bus>{ADDRESS})(?: (?P<name>[\w.@-]{{1,32}}))?|(?P<alone>[\w.@-]{{1,32}})): "
    r"(?:[a-z][\w-]{1,20}: )?(?:Port: \d{1,3} |(?!NIC |SATA |Device )(?P<inner>[\w.@-]{1,32}) )?(?:NIC |Device )?[Ll]ink (?:is )?"
    r"(?P<state>[Dd]own|DOWN|[Uu]p|UP|ACTIVE)(?=\s*$|[,.;]| at | - | \d)"  # "eth0: Link down" may be a program's name
)
_BOND = re.compile(
    r"(?:bonding: )?(?P<bond>[\w.-]{1,32}): (?:\(slave (?P<slave>[\w.-]{1,32})\): )?link status definitely (?P<state>up|down)"
    r"(?: for interface (?P<old>[\w.-]{1,32}))?"
)
_ALONE = re.compile(
    r"(?:bonding: )?(?P<bond>[\w.-]{1,32}): now running without any active interface"
)
_READY = re.compile(
    r"IPv6: ADDRCONF\(NETDEV_CHANGE\): (?P<name>ib[\w.-]{1,31}): link becomes ready"
)
_PORT = re.compile(
    rf"mlx[45]_core (?P<bus>{ADDRESS})(?: [^:\n]{{0,40}})?: (?:[^\n]{{0,60}}?Port module event(?P<error>\[error\])?:"
    r" module (?P<module>\d{1,3}), (?P<what>[^\n]{0,120})|[^\n]{0,80}?(?P<power>insufficient power)|[^\n]{0,80}?(?P<heat>[Hh]igh temperature))"
)
# before 4.19 "pciehp 0000:02:05.0:pcie24: Slot(6): Link Down"
_SLOT = re.compile(
    rf"(?:pcieport (?P<bus>{ADDRESS}): pciehp: |pciehp (?P<old>{ADDRESS})(?::pcie\w{{1,8}})?: )[Ss]lot\([^)\n]{{1,20}}\): Link Down"
)


def _link(line: KernelText) -> KernelEvent | None:
    match = _LINK.match(line.text)
    if match is None:
        return None
    name = match["inner"] or match["name"] or match["alone"] or ""
    bus = bus_id(match["bus"] or "")
    return event(
        line,
        KernelEventKind.LINK_DOWN if match["state"].lower() == "down" else KernelEventKind.LINK_UP,
        device=name[:MAX_NAME] or bus,
        alias=bus if name else "",
    )


def _bond(line: KernelText) -> KernelEvent | None:
    match = _BOND.match(line.text)
    if match is None:
        return None
    kind = KernelEventKind.LINK_DOWN if match["state"] == "down" else KernelEventKind.LINK_UP
    return event(line, kind, device=match["slave"] or match["old"] or match["bond"])


def _alone(line: KernelText) -> KernelEvent | None:
    """A bond whose last interface is down."""
    match = _ALONE.match(line.text)
    return event(line, KernelEventKind.LINK_DOWN, device=match["bond"]) if match else None


def _ready(line: KernelText) -> KernelEvent | None:
    match = _READY.match(line.text)
    return event(line, KernelEventKind.LINK_UP, device=match["name"]) if match else None


def _port(line: KernelText) -> KernelEvent | None:
    """A port that lost its cable, its power or its cool; not one whose cable was plugged in."""
    match = _PORT.match(line.text)
    if match is None or (match["what"] or "").strip().lower() == "cable plugged":
        return None
    return event(line, KernelEventKind.PORT_FAULT, device=bus_id(match["bus"]))


def _slot(line: KernelText) -> KernelEvent | None:
    match = _SLOT.match(line.text)
    return (
        event(line, KernelEventKind.PCIE_LINK_DOWN, device=bus_id(match["bus"] or match["old"]))
        if match
        else None
    )


SIGNS = (
    LineReader("pciehp", _slot),
    LineReader("link status definitely ", _bond),
    LineReader("without any active interface", _alone),
    LineReader("link becomes ready", _ready),
    LineReader("mlx", _port),
    LineReader("ink ", _link),
)
