"""Network ports by /sys: recorded trees, each fault, and what is ordinary and no fault."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mldebug.core.model import Job, NodeCapture
from mldebug.core.plugins import NoOptions
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.straggler import SampledStretch
from mldebug.hardware.health.model import ComponentHealth, HealthState
from mldebug.hardware.health.port_rules import LIMITS, port_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.ports.parse import COUNTERS, PortReading
from mldebug.hardware.ports.state import NodePorts, PortState, parse_hca, used_by
from mldebug_agents.hardware.ports.monitor import PortMonitor, wanted_ports
from mldebug_agents.hardware.ports.reader import PortOrder, PortReader, port_places
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.system.fake_reader import FakeReader
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.system.workers import Result
from mldebug_exporters.metrics.hardware.ports import create
from shared.hardware.porttrees import PortTree, recorded
from shared.web.snapshots import snapshot

EIGHT = tuple(f"mlx5_{number}" for number in range(8))
LIMIT = Thresholds()


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


class Node:
    """A node with a tree of /sys, read every 30 seconds of a clock of its own."""

    def __init__(self, root: Path, reader: Reader) -> None:
        self.tree = PortTree(root)
        self.now = 0.0
        self._ports = PortReader(Host(str(root), clock=lambda: 1e9), reader, lambda: self.now)
        self.wanted: tuple[str, ...] = ()

    def look(self, times: int = 1) -> NodePorts:
        for _ in range(times):
            self.now += 30.0
            found = self._ports.look(PortOrder(wanted=self.wanted))
        return found

    def health(self, times: int = 1) -> ComponentHealth | None:
        return port_health(self.look(times), LIMIT)

    def grow(self, device: str, counter: str, each: int, times: int = 10) -> ComponentHealth | None:
        """Let a counter grow by so much between two reads."""
        for number in range(1, times + 1):
            self.tree.port(device, **{counter: each * number})
            found = self.health()
        return found


@pytest.fixture
def node(tmp_path: Path, reader: Reader) -> Node:
    """A node with eight InfiniBand ports."""
    one = Node(tmp_path, reader)
    for device in EIGHT:
        one.tree.rdma(device)
    one.look(2)
    return one


def by_name(ports: NodePorts) -> dict[str, PortState]:
    return {one.now.name: one for one in ports.ports}


def assert_healthy(found: ComponentHealth | None) -> None:
    assert found is not None
    assert (found.state, found.reason) == (HealthState.HEALTHY, "")


def assert_degraded(found: ComponentHealth | None, code: str, *words: str) -> None:
    assert found is not None
    assert (found.state, found.reason_code) == (HealthState.DEGRADED, code)
    assert [one for one in words if one not in found.reason] == []


# --- what is read ----------------------------------------------------------------------------------


def test_recorded_trees_are_read(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.write(recorded())
    found = by_name(one.look())
    rates = {name: (state.now.link, state.now.up, state.now.gigabits) for name, state in found.items()}  # fmt: skip
    assert rates == {
        "hfi1_0/1": ("infiniband", True, 100.0),
        "mlx4_0/1": ("infiniband", True, 40.0),
        "mlx4_0/2": ("infiniband", True, 40.0),
        "mlx5_0/1": ("infiniband", True, 25.0),
        "eth0": ("ethernet", True, 1.0),
    }
    assert found["hfi1_0/1"].now.received_bytes == 4 * 345091702026
    assert found["mlx5_0/1"].now.errors["timeout"] == 131
    assert found["mlx5_0/1"].now.errors["retransmit"] == 1 + 99
    assert found["eth0"].now.errors["link_down"] == 1
    assert_healthy(port_health(one.look(30), LIMIT))


def test_efa_has_counters_of_its_own(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.rdma("rdmap16s27", "100 Gb/sec (4X EDR)", "Unspecified")
    one.tree.port("rdmap16s27", rx_bytes=7, retrans_pkts=3, retrans_timeout_events=2)
    one.tree.port("rdmap16s27", rdma_read_wr_err=4, rdma_write_wr_err=1, no_completion_cmds=6)
    (port,) = one.look().ports
    assert (port.now.link, port.now.received_bytes) == ("efa", 7)
    assert (port.now.errors["retransmit"], port.now.errors["timeout"]) == (3, 2)
    assert (port.now.errors["request"], port.now.errors["command"]) == (5, 6)


def test_counters_that_an_adapter_does_not_have_are_absent(node: Node) -> None:
    node.tree.port("mlx5_0", symbol_error="N/A (no PMA)", out_of_buffer="")
    errors = by_name(node.look())["mlx5_0/1"].now.errors
    assert not {"symbol", "out_of_buffer"} & set(errors)


def test_interfaces_that_are_no_ports_are_left_out(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    for name in ("ens1np0", "veth1", "usb0", "wlan0", "ens1v0", "ib0"):
        one.tree.net(name)
    (tmp_path / "sys/class/net/veth1/device").unlink()
    (tmp_path / "sys/class/net/usb0/device").unlink()
    (tmp_path / "sys/class/net/usb0/device").symlink_to("../../../devices/pci0000:00/usb1/1-1")
    (tmp_path / "sys/class/net/wlan0/wireless").mkdir()
    (tmp_path / "sys/devices/pci0000:00/ens1v0").mkdir(parents=True)
    (tmp_path / "sys/devices/pci0000:00/ens1v0/physfn").symlink_to("../ens1np0")
    one.tree.write({"sys/class/net/ib0/type": 32})
    assert [place.name for place in port_places(str(tmp_path))] == ["ens1np0"]


def test_a_roce_port_and_its_interface_know_each_other(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.rdma("mlx5_2", "100 Gb/sec (4X EDR)", "Ethernet")
    one.tree.net("ens1np0", rdma="mlx5_2")
    found = by_name(one.look())
    assert found["mlx5_2/1"].now.netdev == "ens1np0"
    assert found["ens1np0"].now.rdma == "mlx5_2/1"


def test_a_port_that_does_not_answer_stays_as_it_was(tmp_path: Path) -> None:
    tree = PortTree(tmp_path)
    tree.rdma("mlx5_0")
    files = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    fake = FakeReader(files)
    reader = PortReader(Host(str(tmp_path)), fake, lambda: 0.0)
    assert reader.look(PortOrder()).ports[0].once_up
    stuck = str(tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error")
    fake.files[stuck] = Unreadable(reason="no answer within 5 s", stuck=True)
    found = reader.look(PortOrder())
    assert [one.what for one in found.gaps] == ["port mlx5_0/1"]
    assert found.ports[0].once_up
    assert found.ports[0].down_reads == 0


# --- faults ----------------------------------------------------------------------------------------


def test_a_port_that_goes_down_is_a_fault_until_it_is_up(node: Node) -> None:
    node.tree.port("mlx5_3", state="1: DOWN", phys_state="2: Polling")
    assert_healthy(node.health())  # once may be a moment
    found = node.health()
    assert found is not None
    assert (found.state, found.reason_code) == (HealthState.UNHEALTHY, "port_down")
    assert "mlx5_3/1 was up and is DOWN" in found.reason
    node.tree.port("mlx5_3", state="4: ACTIVE", phys_state="5: LinkUp")
    assert_healthy(node.health())


def test_a_plain_interface_that_goes_down_wakes_nobody(node: Node) -> None:
    node.tree.net("ens1")
    node.look(2)
    node.tree.net("ens1", operstate="lowerlayerdown", speed="")
    assert_degraded(node.health(2), "port_down", "ens1")


def test_of_a_roce_port_one_name_speaks(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.rdma("mlx5_2", "100 Gb/sec (4X EDR)", "Ethernet")
    one.tree.net("ens1np0", rdma="mlx5_2")
    one.look(2)
    one.tree.port("mlx5_2", state="1: DOWN", phys_state="3: Disabled")
    one.tree.port("mlx5_2", phys_state="2: Polling")
    one.tree.net("ens1np0", operstate="down")
    found = one.health(2)
    assert found is not None
    assert found.reason == "port mlx5_2/1 was up and is DOWN"


@pytest.fixture
def bonded(tmp_path: Path, reader: Reader) -> Node:
    """A node whose RoCE device sends through both ports of its adapter."""
    one = Node(tmp_path, reader)
    one.tree.bonded("mlx5_bond_0", "bond0", "ens1f0np0", "ens1f1np1")
    one.look(2)
    return one


def test_the_ports_of_a_bonded_device_are_known(bonded: Node) -> None:
    found = by_name(bonded.look())
    assert found["mlx5_bond_0/1"].now.netdev == "bond0"
    parts = {name: (state.now.rdma, state.now.bond) for name, state in found.items() if name.startswith("ens")}  # fmt: skip
    assert parts == {"ens1f0np0": ("mlx5_bond_0/1", "bond0"), "ens1f1np1": ("mlx5_bond_0/1", "bond0")}  # fmt: skip
    assert_healthy(bonded.health())


@pytest.mark.parametrize("name", ["ens1f0np0", "ens1f1np1"])
def test_a_bond_that_lost_one_of_its_ports_is_told_though_its_device_is_up(bonded: Node, name: str) -> None:  # fmt: skip
    bonded.tree.write({f"sys/class/net/{name}/operstate": "down"})
    assert_healthy(bonded.health())
    assert_degraded(bonded.health(), "port_bond", f"port {name} was up", "mlx5_bond_0/1 goes on with the rest of bond0")  # fmt: skip
    bonded.tree.write({f"sys/class/net/{name}/operstate": "up"})
    assert_healthy(bonded.health())


def test_of_a_bond_without_any_port_its_device_speaks(bonded: Node) -> None:
    for name in ("ens1f0np0", "ens1f1np1"):
        bonded.tree.write({f"sys/class/net/{name}/operstate": "down"})
    bonded.tree.port("mlx5_bond_0", state="1: DOWN", phys_state="2: Polling")  # fmt: skip
    found = bonded.health(2)
    assert found is not None
    assert (found.state, found.reason_code) == (HealthState.UNHEALTHY, "port_down")
    assert "ens1" not in found.reason


def test_a_bond_of_a_device_that_no_job_uses_is_nobodys(bonded: Node) -> None:
    bonded.wanted = ("mlx5_3",)
    bonded.tree.write({"sys/class/net/ens1f1np1/operstate": "down"})
    assert_healthy(bonded.health(3))


def test_a_slow_port_of_a_bond_is_told(bonded: Node) -> None:
    bonded.tree.write({"sys/class/net/ens1f1np1/speed": 25000})
    assert_degraded(bonded.health(), "port_rate", "ens1f1np1 runs at 25 Gb/s")


def test_a_bond_of_two_adapters_has_two_devices(tmp_path: Path, reader: Reader) -> None:
    """Each port has its own RDMA device then, which speaks for it."""
    one = Node(tmp_path, reader)
    one.tree.bonded("mlx5_0", "bond0", "ens1np0")
    one.tree.bonded("mlx5_1", "bond0", "ens2np0", address="0000:81:00")
    found = by_name(one.look(2))
    assert {name: state.now.rdma for name, state in found.items() if name.startswith("ens")} == {"ens1np0": "mlx5_0/1", "ens2np0": "mlx5_1/1"}  # fmt: skip
    assert found["mlx5_0/1"].now.netdev == "ens1np0"


def test_a_port_that_is_slower_than_it_was(node: Node) -> None:
    node.tree.port("mlx5_0", rate="200 Gb/sec (4X HDR)")
    assert_degraded(node.health(), "port_rate", "mlx5_0/1", "200 Gb/s and had 400")


def test_a_port_that_is_slower_than_all_others_of_its_kind(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    for device in EIGHT:
        one.tree.rdma(device)
    one.tree.port("mlx5_5", rate="100 Gb/sec (1X NDR)")
    assert_degraded(one.health(), "port_rate", "mlx5_5/1 runs at 100 Gb/s, all others of its kind at 400")  # fmt: skip


def test_lost_lanes_count_where_the_port_is_slowed(node: Node) -> None:
    node.tree.port("mlx5_1", current_link_width=8)
    assert_degraded(node.health(), "port_pcie", "8 of 16 PCIe lanes, which carry 252 of its 400 Gb/s")  # fmt: skip


@pytest.mark.parametrize(
    ("counter", "code", "each"),
    [
        ("symbol_error", "port_symbol", 60),
        ("port_rcv_errors", "port_receive", 60),
        ("link_error_recovery", "port_link_recovery", 3),
        ("local_link_integrity_errors", "port_integrity", 3),
        ("excessive_buffer_overrun_errors", "port_overrun", 30),
        ("port_xmit_discards", "port_discard", 3000),
        ("out_of_buffer", "port_out_of_buffer", 3000),
        ("packet_seq_err", "port_retransmit", 3000),
        ("local_ack_timeout_err", "port_timeout", 30),
        ("rnr_nak_retry_err", "port_unresponsive", 30),
    ],
)
def test_errors_that_keep_coming(node: Node, counter: str, code: str, each: int) -> None:
    assert_degraded(node.grow("mlx5_6", counter, each), code, "mlx5_6/1", "for ten minutes")
    assert_healthy(node.health(30))  # and are over when they stop


def test_slow_restarts_of_roce(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.rdma("mlx5_2", "100 Gb/sec (4X EDR)", "Ethernet")
    assert_degraded(one.grow("mlx5_2", "roce_slow_restart", 400), "port_slow_restart", "mlx5_2/1")


def test_a_link_that_flaps(node: Node) -> None:
    assert_degraded(node.grow("mlx5_0", "link_downed", 1, times=11), "port_flaps", "went down 11 times")  # fmt: skip
    assert_healthy(node.health(250))  # two hours later


def test_a_port_that_no_subnet_manager_takes_up(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.rdma("mlx5_0", state="2: INIT")
    assert one.health() is None
    assert_degraded(one.health(10), "port_half_up", "mlx5_0/1", "INIT")


def test_every_judged_kind_is_counted_and_has_a_limit() -> None:
    assert set(LIMITS) <= set(COUNTERS)
    assert all(hasattr(LIMIT, one.name) for one in LIMITS.values())


# --- no faults -------------------------------------------------------------------------------------


def test_ports_that_were_never_up_are_no_fault(node: Node) -> None:
    node.tree.rdma("mlx5_8", state="1: DOWN", phys_state="2: Polling")
    node.tree.rdma("mlx5_9", state="1: DOWN", phys_state="3: Disabled")
    node.tree.net("eno2", operstate="down", speed="")
    assert_healthy(node.health(20))


def test_a_port_that_somebody_switched_off_is_no_fault(node: Node) -> None:
    node.tree.port("mlx5_7", state="1: DOWN", phys_state="3: Disabled")
    node.tree.net("ens1")
    node.look(2)
    node.tree.net("ens1", operstate="down", flags="0x1002")
    assert_healthy(node.health(3))


def test_a_node_without_ports_says_nothing(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    assert one.health(3) is None
    assert list(create(NoOptions()).samples(snapshot(ports=one.look()))) == []


@pytest.mark.parametrize(
    "counter", ["symbol_error", "port_rcv_errors", "out_of_buffer", "packet_seq_err", "local_ack_timeout_err", "port_xmit_discards"]
)  # fmt: skip
def test_a_burst_is_no_fault(node: Node, counter: str) -> None:
    node.look(20)
    node.tree.port("mlx5_2", **{counter: 5_000_000})
    for _ in range(20):
        assert_healthy(node.health())


def test_few_errors_that_keep_coming_are_no_fault(node: Node) -> None:
    for number in range(40):
        node.tree.port("mlx5_2", symbol_error=2 * number, out_of_buffer=300 * number, packet_seq_err=200 * number, local_ack_timeout_err=5 * number)  # fmt: skip
        assert_healthy(node.health())


def test_reordering_and_congestion_marks_are_no_fault(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.rdma("mlx5_2", "400 Gb/sec (4X NDR)", "Ethernet")
    for number in range(20):
        one.tree.port("mlx5_2", out_of_sequence=10**6 * number, np_ecn_marked_roce_packets=10**7 * number, rp_cnp_handled=10**6 * number)  # fmt: skip
        assert_healthy(one.health())


def test_efa_sends_packets_again_all_the_time(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.rdma("rdmap16s27", layer="Unspecified")
    assert_healthy(one.grow("rdmap16s27", "retrans_pkts", 50_000))


def test_a_counter_that_begins_anew_is_no_error(node: Node) -> None:
    node.tree.port("mlx5_2", link_downed=4, symbol_error=10**6)
    node.look(12)
    node.tree.port("mlx5_2", link_downed=0, symbol_error=0)
    assert_healthy(node.health(2))


def test_storage_ports_of_another_model_may_be_slower(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    for device in EIGHT:
        one.tree.rdma(device)
    one.tree.rdma("mlx5_8", "200 Gb/sec (4X HDR)", board="MT_0000000223")
    one.tree.rdma("mlx5_9", "200 Gb/sec (4X HDR)", board="MT_0000000223")
    assert_healthy(one.health())


def test_two_ports_that_are_slower_may_be_meant(node: Node, tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path / "other", reader)
    for device in EIGHT:
        one.tree.rdma(device)
    one.tree.port("mlx5_0", rate="200 Gb/sec (4X HDR)")
    one.tree.port("mlx5_1", rate="200 Gb/sec (4X HDR)")
    assert_healthy(one.health())


def test_a_narrow_slot_that_carries_the_port_is_no_fault(tmp_path: Path, reader: Reader) -> None:
    one = Node(tmp_path, reader)
    one.tree.rdma("mlx5_0", "100 Gb/sec (4X EDR)")
    one.tree.port("mlx5_0", current_link_width=8)
    assert_healthy(one.health())


def test_ports_that_no_job_names_are_nobodys(node: Node) -> None:
    node.wanted = ("mlx5_0,mlx5_1,mlx5_2,mlx5_3",)
    node.tree.port("mlx5_7", state="1: DOWN", phys_state="2: Polling")
    assert_healthy(node.health(3))
    node.wanted = ()
    found = node.health(2)
    assert found is not None
    assert found.reason_code == "port_down"


# --- which ports a job uses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "takes"),
    [
        ("mlx5", {"mlx5_0/1", "mlx5_0/2", "mlx5_1/1", "mlx5_10/1"}),
        ("mlx5_1", {"mlx5_1/1", "mlx5_10/1"}),
        ("=mlx5_1", {"mlx5_1/1"}),
        ("=mlx5_0:2", {"mlx5_0/2"}),
        ("^mlx5_0", {"mlx5_1/1", "mlx5_10/1"}),
        ("^=mlx5_1", {"mlx5_0/1", "mlx5_0/2", "mlx5_10/1"}),
        (" mlx5_0:1 , mlx5_10 ", {"mlx5_0/1", "mlx5_10/1"}),
    ],
)
def test_the_filter_is_nccls(value: str, takes: set[str]) -> None:
    names = ("mlx5_0/1", "mlx5_0/2", "mlx5_1/1", "mlx5_10/1")
    assert {name for name in names if parse_hca(value).takes(name)} == takes


def test_without_a_filter_all_are_used() -> None:
    states = (PortState(now=PortReading(name="mlx5_0/1", link="infiniband")),)
    assert [one.used for value in ((), ("",), ("^",)) for one in used_by(states, value)] == [True] * 3  # fmt: skip


def test_a_filter_counts_where_all_ranks_have_one_whole() -> None:
    named, free = Program(settings={"NCCL_IB_HCA": "mlx5_0"}), Program()
    cut = Program(settings={"NCCL_IB_HCA": "mlx5_0," * 11 + "mlx"})
    assert wanted_ports([named, named]) == ("mlx5_0",)
    assert wanted_ports([named, free]) == wanted_ports([named, cut]) == wanted_ports([]) == ()


# --- metrics -----------------------------------------------------------------------------------------


def test_ports_are_metrics(node: Node) -> None:
    node.tree.port("mlx5_3", state="1: DOWN", out_of_buffer=7, port_rcv_data=10)
    values = {(one.family.name, *one.labels): one.value for one in create(NoOptions()).samples(snapshot(ports=node.look()))}  # type: ignore[misc]  # fmt: skip
    key = ("mlx5_3/1", "infiniband")
    assert values["mldebug_port_up", *key] == 0
    assert values["mldebug_port_up", "mlx5_0/1", "infiniband"] == 1
    assert values["mldebug_port_rate_bytes_per_second", *key] == 50e9
    assert values["mldebug_port_received_bytes", *key] == 40
    assert values["mldebug_port_errors", *key, "out_of_buffer"] == 7
    assert values["mldebug_port", *key, "MT_0000000838", "28.39.1002", ""] == 1


def test_ports_survive_json(node: Node) -> None:
    look = node.look()
    assert msgspec.json.decode(msgspec.json.encode(look), type=NodePorts) == look


# --- what the main loop does with them ---------------------------------------------------------------


class Memory:
    """Values over restarts of an agent."""

    opened = True

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def memo(self, name: str) -> bytes:
        return self.kept.get(name, b"")

    def remember(self, name: str, data: bytes) -> None:
        self.kept[name] = data

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(name for name in self.kept if name.startswith(beginning))


class Agent:
    """The ports of one agent, whose worker looks at once."""

    name, busy = "ports", False

    def __init__(self, node: Node, reader: Reader, memory: Memory, boot_id: str = "b1") -> None:
        host = Host(str(node.tree.root), clock=lambda: 1e9)
        self._reader = PortReader(host, reader, lambda: node.now)
        self.orders: list[PortOrder] = []
        self.monitor = PortMonitor(self, "a2", memory, boot_id)  # type: ignore[arg-type]

    def order(self, order: PortOrder) -> None:
        self.orders.append(order)

    def look(self) -> NodePorts:
        self.monitor.tick({}, LIMIT, soon=False)
        found = self._reader.look(self.orders[-1])
        self.monitor.on_result(Result("ports", self.orders[-1], found, None))
        return found

    def capture(self) -> NodeCapture:
        return self.monitor.capture(NodeCapture(node="a2", taken_at=1e9, job=Job(id="j", name="t", launcher="x", world_size=1)))  # fmt: skip

    def words(self) -> list[str]:
        return [one.words for one in self.capture().faults]


def test_a_capture_has_the_ports_by_which_nodes_are_compared(node: Node, reader: Reader) -> None:
    agent = Agent(node, reader, Memory())
    assert agent.capture().ports is None  # nobody has looked
    agent.look()
    node.tree.port("mlx5_3", state="1: DOWN", phys_state="2: Polling")
    agent.look()
    found = agent.capture().ports
    assert found is not None
    assert [(one.name, one.gigabits) for one in found if one.up] == [(f"{name}/1", 400.0) for name in EIGHT if name != "mlx5_3"]  # fmt: skip
    assert [one.name for one in found if not one.up] == ["mlx5_3/1"]


@pytest.mark.parametrize(("boot_id", "known"), [("b1", True), ("b2", False), ("", False)])
def test_the_next_agent_knows_which_ports_were_up_until_the_node_is_booted(
    node: Node, reader: Reader, boot_id: str, known: bool
) -> None:
    memory = Memory()
    Agent(node, reader, memory).look()
    node.tree.port("mlx5_3", state="1: DOWN", phys_state="2: Polling")
    after = Agent(node, reader, memory, boot_id)
    after.look()
    assert after.words() == (["port mlx5_3/1 was up and is DOWN"] if known else [])


def test_a_slower_port_is_slower_than_before_the_restart(node: Node, reader: Reader) -> None:
    memory = Memory()
    Agent(node, reader, memory).look()
    for device in EIGHT:
        node.tree.port(device, rate="200 Gb/sec (4X HDR)")
    health = port_health(Agent(node, reader, memory).look(), LIMIT)
    assert health is not None
    assert "port mlx5_0/1 runs at 200 Gb/s and had 400" in health.reason


def test_the_samples_of_ranks_have_a_port_of_their_node_that_is_not_well(
    node: Node, reader: Reader
) -> None:
    agent, share = Agent(node, reader, Memory()), RankShares(rank=0, samples=1, waiting=0.0)
    stretch = SampledStretch(at=0.0, seconds=5.0, ranks=(share,))
    assert agent.monitor.complete_samples(stretch) == stretch  # nobody has looked
    agent.look()
    (well,) = agent.monitor.complete_samples(stretch).ranks
    assert (well.evidence.link, well.evidence.port_gigabits) == ("", 3200.0)
    node.tree.port("mlx5_3", rate="200 Gb/sec (4X HDR)")
    agent = Agent(node, reader, Memory())
    agent.look()
    (found,) = agent.monitor.complete_samples(stretch).ranks
    assert found.evidence.link == "port mlx5_3/1 runs at 200 Gb/s, all others of its kind at 400"
    assert found.evidence.port_gigabits == 3000.0
    node.tree.port("mlx5_3", state="1: DOWN", phys_state="2: Polling")
    agent.look()
    (found,) = agent.monitor.complete_samples(stretch).ranks
    assert (found.evidence.link, found.evidence.port_gigabits) == ("", 2800.0)  # down is a fault


@pytest.mark.parametrize("stored", [b"", b"{", b"[]", b'{"gigabits": 5}', b"\xff"])
def test_a_memory_that_cannot_be_read_is_none(node: Node, reader: Reader, stored: bytes) -> None:
    memory = Memory()
    memory.kept["ports_once_up"] = stored
    agent = Agent(node, reader, memory)
    agent.look()
    assert agent.words() == []
    assert b"mlx5_0/1" in memory.kept["ports_once_up"]


def test_while_a_stall_is_suspected_ports_are_read_soon(
    node: Node, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("mldebug_agents.hardware.ports.monitor.time.monotonic", lambda: now)
    agent = Agent(node, reader, Memory())
    for soon, passed, looks in ((False, 0, 1), (False, 10, 1), (True, 0, 2), (True, 4, 2), (True, 2, 3), (False, 10, 3), (False, 20, 4)):  # fmt: skip
        now += passed
        agent.monitor.tick({}, LIMIT, soon=soon)
        assert len(agent.orders) == looks
