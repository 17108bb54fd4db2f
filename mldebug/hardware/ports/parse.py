"""Parses network ports from /sys/class/infiniband and /sys/class/net.

Pure: texts in, readings out.

The files are described in the kernel's Documentation/ABI (stable/sysfs-class-infiniband,
testing/sysfs-class-net). Drivers name counters differently; here each kind has one name. `mlx5`
counts flaps (losses of the link) of an Ethernet port only in `carrier_down_count`.
"""

import re
from collections.abc import Mapping

import msgspec

from mldebug.core.model import MeasuredData

RDMA_FILES = ("state", "phys_state", "rate", "link_layer")
DEVICE_FILES = ("board_id", "hca_type", "fw_ver", "device/current_link_width", "device/max_link_width", "device/current_link_speed")  # fmt: skip
NET_FILES = ("operstate", "speed", "flags", "carrier_down_count", "carrier_changes")
IFF_UP = 1
WORD = 4  # bytes: the unit of port_rcv_data and port_xmit_data

# kind -> files that count it, of which those that are there are added up
COUNTERS: dict[str, tuple[str, ...]] = {
    "symbol": ("counters/symbol_error",),
    "link_recovery": ("counters/link_error_recovery",),
    "link_down": ("counters/link_downed",),
    "receive": ("counters/port_rcv_errors", "statistics/rx_crc_errors"),
    "integrity": ("counters/local_link_integrity_errors",),
    "overrun": ("counters/excessive_buffer_overrun_errors", "statistics/rx_over_errors"),
    "discard": ("counters/port_xmit_discards",),
    "drop": ("hw_counters/rx_drops", "statistics/rx_missed_errors"),
    "out_of_buffer": ("hw_counters/out_of_buffer",),
    "out_of_sequence": ("hw_counters/out_of_sequence",),
    "retransmit": ("hw_counters/packet_seq_err", "hw_counters/roce_adp_retrans", "hw_counters/retrans_pkts"),
    "timeout": ("hw_counters/local_ack_timeout_err", "hw_counters/retrans_timeout_events"),
    "unresponsive": ("hw_counters/rnr_nak_retry_err", "hw_counters/unresponsive_remote_events", "hw_counters/impaired_remote_conn_events"),
    "slow_restart": ("hw_counters/roce_slow_restart",),
    "request": ("hw_counters/req_cqe_error", "hw_counters/rdma_read_wr_err", "hw_counters/rdma_write_wr_err"),
    "command": ("hw_counters/cmds_err", "hw_counters/no_completion_cmds"),
    "congestion": ("hw_counters/np_ecn_marked_roce_packets", "hw_counters/rp_cnp_handled"),
}  # fmt: skip
RECEIVED = {"counters/port_rcv_data": WORD, "hw_counters/rx_bytes": 1, "statistics/rx_bytes": 1}
SENT = {"counters/port_xmit_data": WORD, "hw_counters/tx_bytes": 1, "statistics/tx_bytes": 1}
OF_RDMA = tuple(name for files in (*COUNTERS.values(), RECEIVED, SENT) for name in files if not name.startswith("statistics/"))  # fmt: skip
OF_NET = tuple(name for files in (*COUNTERS.values(), RECEIVED, SENT) for name in files if name.startswith("statistics/"))  # fmt: skip

_RATE = re.compile(r"\s*([\d.]{1,8}) Gb/sec")
_PCIE = re.compile(r"\s*([\d.]{1,6}) GT/s")
_ENCODED = {2.5: 0.8, 5.0: 0.8}  # share of the bits that are data; newer generations: 128 of 130


class PortReading(MeasuredData, frozen=True, kw_only=True):
    """One network port at one moment. None: not known."""

    name: str  # mlx5_0/1, ens1np0
    link: str  # infiniband, roce, efa, ethernet
    up: bool | None = None
    physical: bool | None = None  # whether the other side is there; None: not told
    off: bool = False  # switched off by somebody: no fault
    state: str = ""  # ACTIVE, INIT, DOWN, up, lowerlayerdown: the kernel's word
    gigabits: float | None = None  # a second, while it is up
    board: str = ""  # alike for ports of one model
    firmware: str = ""
    netdev: str = ""  # of an RDMA port: its network interface, or the bond that it sends through
    rdma: str = ""  # of a network interface: its RDMA port
    bond: str = ""  # of a network interface: the bond that it belongs to
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_gigabits: float | None = None  # what the slot carries a second
    received_bytes: int | None = None
    sent_bytes: int | None = None
    errors: dict[str, int] = {}  # by kind, of COUNTERS


class PortPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a port below /sys, from a listing of the folders."""

    name: str
    folder: str  # …/infiniband/mlx5_0/ports/1, …/net/ens1np0
    device: str = ""  # …/infiniband/mlx5_0; "" for a network interface
    netdev: str = ""
    rdma: str = ""
    bond: str = ""

    def files(self) -> tuple[str, ...]:
        """The paths of the port's files that `parse_port` needs."""
        if not self.device:
            return tuple(f"{self.folder}/{name}" for name in (*NET_FILES, *OF_NET))
        of_port = tuple(f"{self.folder}/{name}" for name in (*RDMA_FILES, *OF_RDMA))
        return (*of_port, *(f"{self.device}/{name}" for name in DEVICE_FILES))


def parse_port(place: PortPlace, texts: Mapping[str, str]) -> PortReading | None:
    """A port from the texts of its files (path -> text); None where they give no state, as of a port that is gone."""
    return _rdma(place, texts) if place.device else _net(place, texts)


def _rdma(place: PortPlace, texts: Mapping[str, str]) -> PortReading | None:
    own = {name: texts.get(f"{place.folder}/{name}", "") for name in (*RDMA_FILES, *OF_RDMA)}
    card = {name: texts.get(f"{place.device}/{name}", "").strip() for name in DEVICE_FILES}
    state = _word(own["state"])
    if not state:
        return None
    physical, width = _word(own["phys_state"]), _number(card["device/current_link_width"])
    rate = _RATE.match(own["rate"])
    return PortReading(
        name=place.name,
        link=_link(own["link_layer"].strip()),
        up=state == "ACTIVE",
        physical=physical in ("LinkUp", "LinkErrorRecovery", "ACTIVE") if physical else None,
        off=physical == "Disabled",
        state=state,
        gigabits=float(rate[1]) if rate else None,
        board=card["board_id"] or card["hca_type"],
        firmware=card["fw_ver"],
        netdev=place.netdev,
        pcie_width=width,
        pcie_width_max=_number(card["device/max_link_width"]),
        pcie_gigabits=_carries(card["device/current_link_speed"], width),
        received_bytes=_bytes(own, RECEIVED),
        sent_bytes=_bytes(own, SENT),
        errors=_errors(own),
    )


def _link(layer: str) -> str:
    if layer == "InfiniBand":
        return "infiniband"
    return "roce" if layer == "Ethernet" else "efa"


def _net(place: PortPlace, texts: Mapping[str, str]) -> PortReading | None:
    own = {name: texts.get(f"{place.folder}/{name}", "").strip() for name in (*NET_FILES, *OF_NET)}
    state, flags = own["operstate"], _hex(own["flags"])
    if not state or state == "unknown":
        return None
    speed = _number(own["speed"])
    downs, changes = _number(own["carrier_down_count"]), _number(own["carrier_changes"])
    flaps = downs if downs is not None else changes // 2 if changes is not None else None
    return PortReading(
        name=place.name,
        link="ethernet",
        up=state == "up",
        physical=state == "up" or None,
        off=flags is not None and not flags & IFF_UP,
        state=state,
        gigabits=speed / 1000 if speed and 0 < speed < 1 << 31 else None,
        rdma=place.rdma,
        bond=place.bond,
        received_bytes=_bytes(own, RECEIVED),
        sent_bytes=_bytes(own, SENT),
        errors=_errors(own) | ({"link_down": flaps} if flaps is not None else {}),
    )


def _word(text: str) -> str:
    """`ACTIVE` of `4: ACTIVE`."""
    return text.partition(":")[2].strip()[:40]


def _errors(own: Mapping[str, str]) -> dict[str, int]:
    """Each kind of which at least one file is there; `N/A (no PMA)` is none."""
    found: dict[str, int] = {}
    for kind, files in COUNTERS.items():
        numbers = [number for name in files if (number := _number(own.get(name, ""))) is not None]
        if numbers:
            found[kind] = sum(numbers)
    return found


def _bytes(own: Mapping[str, str], files: Mapping[str, int]) -> int | None:
    """The first of these files that has a number, in bytes."""
    for name, unit in files.items():
        if (number := _number(own.get(name, ""))) is not None:
            return number * unit
    return None


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def _hex(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def _carries(speed: str, width: int | None) -> float | None:
    found = _PCIE.match(speed)
    if found is None or not width:
        return None
    each = float(found[1])
    return each * width * _ENCODED.get(each, 128 / 130)
