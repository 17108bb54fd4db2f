"""Trees of /sys with network ports: the recorded ones, and nodes of the kinds that train: eight NDR or RoCE ports, EFA."""

from collections.abc import Mapping
from pathlib import Path

RECORDED = Path(__file__).parents[2] / "fixtures" / "ports" / "recorded.txt"
_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "port_xmit_discards", "port_rcv_data", "port_xmit_data",
)  # fmt: skip
_HARDWARE = ("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")  # fmt: skip
_ROCE = (*_HARDWARE, "roce_adp_retrans", "roce_slow_restart", "np_ecn_marked_roce_packets", "rp_cnp_handled")  # fmt: skip
_EFA = ("rx_bytes", "tx_bytes", "rx_drops", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events", "rdma_read_wr_err", "rdma_write_wr_err", "cmds_err", "no_completion_cmds")  # fmt: skip
_STATISTICS = ("rx_crc_errors", "rx_over_errors", "rx_missed_errors", "rx_bytes", "tx_bytes")


def recorded() -> dict[str, str]:
    """Path -> text of every recorded file; a link's text begins with `-> `."""
    lines = RECORDED.read_text().splitlines()
    pairs = [line.partition(" ") for line in lines if not line.startswith("#")]
    return {path: text for path, _, text in pairs}


class PortTree:
    """A folder that looks like /sys of a node."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, files: Mapping[str, str | int]) -> None:
        """Write files by their paths below /."""
        for path, text in files.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if str(text).startswith("-> "):
                file.unlink(missing_ok=True)
                file.symlink_to(str(text)[3:])
            else:
                file.write_text(f"{text}\n")

    def rdma(self, device: str, rate: str = "400 Gb/sec (4X NDR)", layer: str = "InfiniBand", board: str = "MT_0000000838", **more: str | int) -> None:  # fmt: skip
        """An active RDMA port with all counters at 0; `more`: other contents of files of the port."""
        counted = {f"counters/{name}": 0 for name in _COUNTERS} if layer != "Unspecified" else {}
        named = {"Ethernet": _ROCE, "Unspecified": _EFA}.get(layer, _HARDWARE)
        port = counted | {f"hw_counters/{name}": 0 for name in named}
        port |= {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": layer}
        card = {"board_id": board, "hca_type": "MT4129", "fw_ver": "28.39.1002"}
        slot = {"current_link_width": 16, "max_link_width": 16, "current_link_speed": "32.0 GT/s PCIe"}  # fmt: skip
        folder = f"sys/class/infiniband/{device}"
        self.write({f"{folder}/{name}": text for name, text in card.items()})
        self.write({f"{folder}/device/{name}": text for name, text in slot.items()})
        self.write({f"{folder}/ports/1/{name}": text for name, text in (port | more).items()})

    def port(self, device: str, **files: str | int) -> None:
        """Change files of a port: `state="1: DOWN"`, `symbol_error=5`, `out_of_buffer=7`, `current_link_width=8`."""
        for name, text in files.items():
            folder = f"sys/class/infiniband/{device}"
            inside = next(one for one in (f"ports/1/{name}", f"ports/1/counters/{name}", f"ports/1/hw_counters/{name}", f"device/{name}") if (self.root / folder / one).exists())  # fmt: skip
            self.write({f"{folder}/{inside}": text})

    def net(self, name: str, rdma: str = "", **more: str | int) -> None:
        """A network interface on PCI that is up at 100 Gb/s; `rdma`: the RDMA device that it belongs to."""
        files: dict[str, str | int] = {"operstate": "up", "speed": 100000, "flags": "0x1003", "type": 1, "carrier_down_count": 1, "carrier_changes": 3}  # fmt: skip
        files |= {f"statistics/{one}": 0 for one in _STATISTICS}
        folder = f"sys/class/net/{name}"
        self.write({f"{folder}/{one}": text for one, text in (files | more).items()})
        if not (self.root / folder / "device").is_symlink():
            (self.root / folder / "device").symlink_to(f"../../../devices/pci0000:00/{name}")
        if rdma:
            (self.root / f"sys/class/infiniband/{rdma}/device/net/{name}").mkdir(parents=True, exist_ok=True)  # fmt: skip

    def bonded(self, device: str, bond: str, *names: str, address: str = "0000:41:00") -> None:
        """A RoCE device that sends through a bond of all ports of one adapter, as the kernel lists it: with the first interface only."""
        self.rdma(device, "100 Gb/sec (4X EDR)", "Ethernet")
        self.write({f"sys/devices/virtual/net/{bond}/bonding/slaves": " ".join(names)})
        for number, name in enumerate(names):
            function = f"sys/devices/pci0000:40/{address}.{number}"
            (self.root / function).mkdir(parents=True, exist_ok=True)
            self.net(name)
            own = self.root / f"sys/class/net/{name}"
            (own / "device").unlink()
            (own / "device").symlink_to(self.root / function)
            (own / "master").symlink_to(f"../../../devices/virtual/net/{bond}")
        first = self.root / f"sys/devices/pci0000:40/{address}.0"
        for file in (self.root / f"sys/class/infiniband/{device}/device").iterdir():
            file.rename(first / file.name)
        (self.root / f"sys/class/infiniband/{device}/device").rmdir()
        (self.root / f"sys/class/infiniband/{device}/device").symlink_to(first)
        (first / "net" / names[0]).mkdir(parents=True)
        (first / "infiniband").mkdir()
