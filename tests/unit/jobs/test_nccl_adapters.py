"""The adapters that NCCL found, by rank: its lines in the log and in the files that NCCL_DEBUG_FILE names, and who has fewer."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.core.plugins import create_all
from mldebug.jobs.known_issues.log_rules import RULES
from mldebug.jobs.known_issues.model import JobFacts
from mldebug.jobs.known_issues.nccl_log import LogWriters, NcclLog, adapters_of
from mldebug.jobs.logs.parser import LogParser
from mldebug.stall.log_progress import LogProgress
from mldebug_agents.jobs.logs.job_logs import HungMounts, JobLogs, LogSharing
from mldebug_agents.jobs.logs.locations import LogFinder
from mldebug_agents.jobs.logs.nccl_files import debug_file, matches
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner

EIGHT = " ".join(f"[{number}]mlx5_{number}:1/IB" for number in range(8))
SEVEN = " ".join(f"[{number}]mlx5_{number}:1/IB" for number in range(7))
(RULE,) = [rule for rule in RULES if rule.name == "fewer_adapters"]


def rule_text(*lines: str) -> str:
    """What the rule says of lines `host:pid: text`."""
    log = NcclLog()
    for line in lines:
        who, _, text = line.partition(": ")
        pid = int(who.partition(":")[2])
        log.add_line(f"{who}:{pid + 90} [0] NCCL INFO {text}", LogWriters(node="a", pids={pid}))
    return RULE.finding(JobFacts(nccl_log=log.facts()))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>", ("mlx5_0:1/IB", "mlx5_1:1/IB")),
        ("NET/IB : Using [0]mlx5_bond_0:1/RoCE [RO]; OOB bond0:10.0.0.1<0>", ("mlx5_bond_0:1/RoCE",)),
        ("NET/IB : Using [0]bnxt_re0:1/RoCE ; OOB ens3:10.0.0.1<0>", ("bnxt_re0:1/RoCE",)),
        ("NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP; OOB ib0:10.0.0.1<0>", ("mlx5_0:1/IB", "mlx5_1:1/IB")),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 2 nics)", ("efa/0", "efa/1")),
        ("NET/OFI Selected Provider is efa (found 1 nics)", ("efa/0",)),
        ("NET/IB : No device found.", ()),
        ("NET/IB : Using interface eth0 for sideband communication", None),
        ("NET/Socket : Using [0]eth0:10.0.0.1<0>", None),
        ("NET/OFI Selected Provider is efa*", None),
        ("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", None),
    ],
)  # fmt: skip
def test_lines_that_list_adapters(text: str, names: tuple[str, ...] | None) -> None:
    assert adapters_of(text) == names


def test_a_rank_with_fewer_is_told() -> None:
    lines = [f"a:{pid}: NET/IB : Using {EIGHT} [RO]; OOB eth0:10.0.0.1<0>" for pid in range(1, 8)]
    found = rule_text(*lines, f"b:8: NET/IB : Using {SEVEN} [RO]; OOB eth0:10.0.0.2<0>")
    assert found == "network adapters that NCCL found: b:8 7; 7 of 8 processes 8"
    assert rule_text(*lines, "b:8: NET/IB : No device found.").endswith("b:8 0; 7 of 8 processes 8")


def test_a_missing_bond_and_another_kind_of_link_are_told() -> None:
    bonds = [f"a:{pid}: NET/IB : Using [0]mlx5_bond_0:1/RoCE [1]mlx5_bond_1:1/RoCE ; OOB bond0:10.0.0.1<0>" for pid in (1, 2)]  # fmt: skip
    assert "b:3 1" in rule_text(*bonds, "b:3: NET/IB : Using [0]mlx5_bond_0:1/RoCE ; OOB bond0:10.0.0.2<0>")  # fmt: skip
    plain = "b:3: NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE ; OOB eth0:10.0.0.2<0>"
    assert rule_text(*bonds, plain) == "NCCL found another kind of adapters: b:3 mlx5_0:1/RoCE, mlx5_1:1/RoCE; others 2 x bond/RoCE"  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("a:1: NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>",),
        ("a:1: NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:1.2.3.4<0>", "b:2: NET/IB : Using [0]mlx5_3:1/IB ; OOB eth1:1.2.3.5<0>"),
        ("a:1: NET/IB : No device found.", "b:2: NET/IB : No device found."),
        ("a:1: NET/OFI Selected provider is efa, fabric is efa (found 4 nics)", "b:2: NET/OFI Selected provider is efa, fabric is efa (found 4 nics)"),
        ("a:1: NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>", "b:2: Using network Socket"),
    ],
)  # fmt: skip
def test_ranks_that_found_alike_are_no_issue(lines: tuple[str, ...]) -> None:
    assert rule_text(*lines) == ""


# --- NCCL_DEBUG_FILE -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "target", "same"),
    [
        ("/tmp/nccl.%h.%p", "/tmp/nccl.node-7.example.4711", True),
        ("/tmp/nccl.%h.%p", "/tmp/nccl.node-7.4711 (deleted)", True),
        ("/tmp/nccl.%h.%p", "/tmp/nccl.a/b.4711", False),
        ("/tmp/nccl.%p", "/tmp/nccl.x", False),
        ("nccl-%p.log", "/home/ada/run/nccl-9.log", True),
        ("/tmp/100%%-%p", "/tmp/100%-7", True),
        ("/tmp/a.b", "/tmp/aXb", False),
        ("/tmp/%d.log", "/tmp/%d.log", True),
    ],
)
def test_a_file_is_known_by_the_pattern(pattern: str, target: str, same: bool) -> None:
    assert matches(pattern, target) is same


def test_the_output_is_no_file_of_its_own() -> None:
    assert debug_file({"NCCL_DEBUG_FILE": "/dev/stderr"}) == debug_file({}) == ""
    assert debug_file({"NCCL_DEBUG_FILE": "/tmp/n.%p"}) == "/tmp/n.%p"


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


def test_lines_in_a_file_of_their_own_are_read(tmp_path: Path, reader: Reader) -> None:
    """The file of this process, open as NCCL holds its own; read at the first look and as it grows."""
    host, me, name = Host(), os.getpid(), socket.gethostname()
    brief = host.brief(me)
    assert brief is not None
    rank = RankIdentity(rank=0, world_size=1, pid=me, start_ticks=brief.start_ticks, started_at=0.0, node=name)  # fmt: skip
    job = Job(id="j", name="j", launcher="single", attempt=0, world_size=1, ranks=(rank,), nodes=(name,))  # fmt: skip
    logs = JobLogs(
        *(host, reader, HungMounts(host, reader)),
        *(lambda: LogParser(create_all("logs")), LogProgress(), LogSharing(), name),
    )
    pattern, writer = f"{tmp_path}/nccl.%h.%p", f"{name}:{me}"
    with (tmp_path / f"nccl.{name}.{me}").open("w", buffering=1) as file:
        file.write(f"{writer}:1 [0] NCCL INFO NET/IB : Using {SEVEN} [RO]; OOB eth0:10.0.0.1<0>\n")
        logs.look(job, LogFinder(host), 1.0, {me: pattern})
        assert len(logs.nccl.facts().adapters[writer]) == 7
        file.write(f"{writer}:1 [0] NCCL INFO NET/IB : Using {EIGHT} [RO]; OOB eth0:10.0.0.1<0>\n")
        logs.look(job, LogFinder(host), 2.0, {me: pattern})
        assert len(logs.nccl.facts().adapters[writer]) == 8
    logs.look(job, LogFinder(host), 3.0, {me: pattern})
    logs.look(job, LogFinder(host), 4.0, {})
    assert len(logs.nccl.facts().adapters[writer]) == 8
