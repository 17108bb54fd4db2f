"""Network ports of the nodes of one run: which node has fewer, slower or other ports than most, and when nothing is said."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from mldebug.core.model import NodeCapture, NodePort
from mldebug.diagnosis.diagnose import diagnose
from mldebug.hardware.ports.neighbours import ports_to_compare, unlike_ports
from mldebug.hardware.ports.parse import PortReading
from mldebug.hardware.ports.state import NodePorts, PortState
from mldebug.incidents.report.build import build_report
from mldebug_agents.hardware.ports.reader import PortOrder, PortReader
from mldebug_agents.incidents.manual import with_ports
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.system.context import Context
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.hardware.porttrees import PortTree
from shared.incidents import samples


def ports(rate: float = 400.0, many: int = 8, link: str = "infiniband", **more: bool) -> tuple[NodePort, ...]:  # fmt: skip
    return tuple(
        NodePort(name=f"mlx5_{number}/1", link=link, gigabits=rate, **more)
        for number in range(many)
    )


def captures(nodes: Mapping[str, tuple[NodePort, ...] | None]) -> list[NodeCapture]:
    one = samples.sleeping().captures[0]
    return [msgspec.structs.replace(one, node=node, ports=mine) for node, mine in nodes.items()]


def sentences(nodes: Mapping[str, tuple[NodePort, ...] | None]) -> tuple[str, ...]:
    return unlike_ports(captures(nodes))


def change(mine: tuple[NodePort, ...], number: int, **fields: object) -> tuple[NodePort, ...]:
    changed = msgspec.structs.replace(mine[number], **fields)
    return (*mine[:number], changed, *mine[number + 1 :])


WELL = {"a1": ports(), "a2": ports(), "a3": ports()}
USUAL = "; of 3 other nodes: 8 x 400 Gb/s infiniband"


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (change(ports(), 3, gigabits=200.0), "7 x 400 Gb/s infiniband, 1 x 200 Gb/s infiniband (mlx5_3/1)"),
        (ports(many=7), "7 x 400 Gb/s infiniband"),
        (change(ports(), 0, up=False, gigabits=0.0), "7 x 400 Gb/s infiniband, down: mlx5_0/1"),
        (ports(link="roce"), "8 x 400 Gb/s roce (mlx5_0/1, mlx5_1/1, mlx5_2/1, mlx5_3/1 and 4 more)"),
        (ports(many=1, link="ethernet", rate=25.0), "1 x 25 Gb/s ethernet (mlx5_0/1)"),
        (change(ports(many=1), 0, up=False, gigabits=0.0), "none up, down: mlx5_0/1"),
    ],
)  # fmt: skip
def test_a_node_that_is_unlike_most_is_told(mine: tuple[NodePort, ...], words: str) -> None:
    assert sentences({**WELL, "b7": mine}) == (f"network ports of b7: {words}{USUAL}",)


def test_a_bond_is_another_kind_of_port() -> None:
    bonds = {node: ports(200.0, 4, "roce", bond=True) for node in ("a", "b")}
    assert sentences({**bonds, "c": ports(200.0, 4, "roce")}) == (
        "network ports of c: 4 x 200 Gb/s roce (mlx5_0/1, mlx5_1/1, mlx5_2/1, mlx5_3/1); of 2 other nodes: 4 x 200 Gb/s roce bond",
    )


def test_of_two_nodes_the_slower_is_told() -> None:
    (line,) = sentences({"a": change(ports(), 5, gigabits=100.0), "b": ports()})
    assert line.startswith("network ports of a: 7 x 400 Gb/s infiniband, 1 x 100 Gb/s infiniband (mlx5_5/1); of 1 other node: 8 x")  # fmt: skip


def test_nodes_that_are_unlike_in_the_same_way_stand_in_one_line() -> None:
    nodes = {f"n{number:02}": ports(200.0 if number < 3 else 400.0) for number in range(10)}
    (line,) = sentences(nodes)
    assert line.startswith("network ports of n[00-02]: 8 x 200 Gb/s")
    assert line.endswith("; of 7 other nodes: 8 x 400 Gb/s infiniband")


@pytest.mark.parametrize(
    "nodes",
    [
        {},
        {"a": ports()},
        WELL,
        {"a": ports(), "b": None},  # nobody has read them there
        {"a": ports(), "b": ()},  # no agent has found one up
        {"a": ports(100.0), "b": ports(200.0), "c": ports(400.0), "d": ports(400.0), "e": ports(50.0)},  # no majority
        {"a": ports(), "b": tuple(reversed(ports()))},
        {"a": ports(), "b": tuple(msgspec.structs.replace(one, name=f"ibp{number}s0/1") for number, one in enumerate(ports()))},
    ],
)  # fmt: skip
def test_nodes_that_are_alike_or_not_known_say_nothing(
    nodes: dict[str, tuple[NodePort, ...] | None],
) -> None:
    assert sentences(nodes) == ()


def test_what_a_peer_sends_is_bounded() -> None:
    many = tuple(
        NodePort(name="x" * 5000, link="y" * 5000, gigabits=float(one)) for one in range(5000)
    )
    nodes = {f"n{number}": (*many[number:],) for number in range(30)}
    lines = sentences({**nodes, **{f"m{number}": ports() for number in range(40)}})
    assert len(lines) <= 8
    assert max(map(len, lines)) < 3_000


def state(name: str, link: str = "infiniband", **more: object) -> PortState:
    now: dict[str, object] = {"name": name, "link": link, "up": True, "gigabits": 400.0}
    marks = {key: more.pop(key) for key in ("used", "once_up") if key in more}
    return PortState(now=msgspec.convert(now | more, PortReading), **{"once_up": True, **marks})  # type: ignore[arg-type]


def test_which_ports_are_compared() -> None:
    node = NodePorts(
        at=1.0,
        ports=(
            state("mlx5_0/1"),
            state("mlx5_1/1", up=False),
            state("mlx5_2/1", off=True, up=False),
            state("mlx5_3/1", once_up=False, up=False),
            state("mlx5_4/1", used=False),
            state("mlx5_bond_0/1", "roce", netdev="bond0"),
            state("ens1", "ethernet", bond="bond0"),
            state("eno1", "ethernet", gigabits=1.0),
        ),
    )
    assert ports_to_compare(node) == (
        NodePort(name="mlx5_0/1", link="infiniband", gigabits=400.0),
        NodePort(name="mlx5_1/1", link="infiniband", up=False),
        NodePort(name="mlx5_bond_0/1", link="roce", gigabits=400.0, bond=True),
    )


def test_without_rdma_the_fastest_interface_is_compared() -> None:
    names = (("eno1", 1.0, True), ("ens5", 100.0, True), ("ens6", 200.0, False))
    node = NodePorts(at=1.0, ports=tuple(state(name, "ethernet", gigabits=rate, up=up) for name, rate, up in names))  # fmt: skip
    assert ports_to_compare(node) == (NodePort(name="ens5", link="ethernet", gigabits=100.0),)


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


def test_a_command_without_an_agent_reads_the_ports_too(tmp_path: Path, reader: Reader) -> None:
    for number, state_now in enumerate(("4: ACTIVE", "1: DOWN", "4: ACTIVE")):
        tree = PortTree(tmp_path)
        tree.rdma(f"mlx5_{number}", "400 Gb/sec (4X NDR)")
        tree.port(f"mlx5_{number}", state=state_now)
    context = cast(Context, SimpleNamespace(host=Host(str(tmp_path)), reader=reader))
    rank = Program(settings={"NCCL_IB_HCA": "mlx5_0,mlx5_1"})
    capture = with_ports(captures({"a": None})[0], context, Discovery(programs={7: rank}))
    assert capture.ports == (NodePort(name="mlx5_0/1", link="infiniband", gigabits=400.0),)


def test_from_sys_of_two_nodes_to_the_report(tmp_path: Path, reader: Reader) -> None:
    """The port of one node that came up at half of its rate: its own node cannot tell, since all of its ports did."""
    nodes = {}
    for node, rate in (("a", "400 Gb/sec (4X NDR)"), ("b", "200 Gb/sec (4X HDR)")):
        tree = PortTree(tmp_path / node)
        for number in range(2):
            tree.rdma(f"mlx5_{number}", rate)
        found = PortReader(Host(str(tmp_path / node)), reader, lambda: 0.0).look(PortOrder())
        nodes[node] = ports_to_compare(found)
    made, like = captures(nodes), samples.report(samples.sleeping())
    report = build_report(
        diagnose(made[:1]), made, kind="manual", trigger="manual", detected_at=samples.TAKEN_AT,
        reported_at=samples.TAKEN_AT, stall=like.stall, versions={},
    )  # fmt: skip
    assert report.hardware == (
        "network ports of b: 2 x 200 Gb/s infiniband (mlx5_0/1, mlx5_1/1); of 1 other node: 2 x 400 Gb/s infiniband",
    )
    assert msgspec.json.decode(msgspec.json.encode(made[0]), type=NodeCapture).ports == nodes["a"]
