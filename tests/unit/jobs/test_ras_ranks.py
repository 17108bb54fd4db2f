"""Ranks that no environment tells: NCCL RAS knows them, and where it does not nobody is given a number."""

import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.capture.nccl_ras.answer import parse
from mldebug.capture.nccl_ras.process_map import RasWorld, world_of
from mldebug.config.schema import AgentConfig, CaptureConfig, Config
from mldebug.core.model import Job, NcclRas
from mldebug.core.plugins import create_all
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.cli.node_listing import NodeListing, status_lines
from mldebug_agents.jobs.ranks import ras_ranks
from mldebug_agents.jobs.ranks.discovery import Discovery, RankFinder
from mldebug_agents.jobs.ranks.ras_address import BY_RAS
from mldebug_agents.jobs.ranks.ras_ranks import PAUSES
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader_answers import Unreadable
from shared.capture.monitored import library
from shared.capture.rasserver import (
    HOLDS,
    HOST,
    RasServer,
    Serve,
    answer,
    garbage,
    half,
    recorded,
    says,
    serving,
    silent,
)
from shared.jobs.proctree import BOOT, TORCH, DirectPaths, Tree
from shared.system.hung import wait_until
from unit.jobs.test_ranks_live import started

GONE = {"unresponsive": True}
SPAWN = ("python3", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork")


def merged_answer(*answers: dict[str, Any], own: tuple[str, ...] = ("127.0.0.1",)) -> NcclRas:
    rows = [one for each in answers for one in each["communicators"]]
    whole = parse(json.dumps({**answers[0], "communicators": rows}).encode())
    return msgspec.structs.replace(whole, own=own)


def ranks(many: int, **more: Any) -> dict[str, Any]:
    """A communicator of that many; the pid of rank n is 100 + n."""
    return answer({n: {"AllReduce": 1} for n in range(many)}, **more)


# --- what an answer tells --------------------------------------------------------------------------


def test_recorded_ranks() -> None:
    answered = parse(recorded("sleep")[-1][1].encode())
    found = world_of(msgspec.structs.replace(answered, own=(HOST,)), {594, 595})
    assert found is not None
    assert (found.size, found.ranks) == (2, {594: 0, 595: 1})


@pytest.mark.parametrize(
    ("answered", "pids", "expected"),
    [
        (merged_answer(ranks(4)), {101, 103}, {101: 1, 103: 3}),
        (merged_answer(ranks(4), ranks(2, key="0x9", pids={0: 102, 1: 103})), {102}, {102: 2}),
        (merged_answer(ranks(3, missing={3: GONE})), {103}, {103: 3}),
        (merged_answer(ranks(4), ranks(4, key="0x9")), {101}, {101: 1}),
    ],
    ids=["all", "a part beside the whole", "one does not answer", "two that agree"],
)
def test_the_communicator_of_all_tells(
    answered: NcclRas, pids: set[int], expected: dict[int, int]
) -> None:
    found = world_of(answered, pids)
    assert found is not None
    assert (found.size, found.ranks) == (len(_all(answered)), expected)


def _all(answered: NcclRas) -> set[int | None]:
    return {
        row.pid
        for one in answered.communicators
        for rows in (one.ranks, one.absent)
        for row in rows
    }


@pytest.mark.parametrize(
    "answered",
    [
        merged_answer(ranks(2), ranks(2, key="0x9", pids={0: 102, 1: 103})),
        merged_answer(ranks(2), ranks(2, key="0x9", pids={0: 101, 1: 100})),
        merged_answer(ranks(2, pids={0: 100, 1: 100})),
        merged_answer(ranks(2, size=4)),
        merged_answer(ranks(1)),
        merged_answer(ranks(2, host="10.0.0.7")),
        merged_answer(ranks(2, pids={0: 700, 1: 701})),
        msgspec.structs.replace(merged_answer(ranks(2)), left_out=1),
    ],
    ids=["parts alone", "two that differ", "several GPUs", "some not told", "one", "another node", "others", "too many"],
)  # fmt: skip
def test_what_is_not_certain_is_no_rank(answered: NcclRas) -> None:
    """Numbers inside a communicator are its own: of tensor and data parallel groups alone nobody can tell."""
    assert world_of(answered, {100, 101}) is None


# --- processes that never were ---------------------------------------------------------------------


class Node:
    """A node without any launcher's variables, and a RAS that says `world`."""

    def __init__(self, root: Path) -> None:
        self.tree, self.now, self.root = Tree(root), BOOT + 3600.0, root
        self.world: RasWorld | None = None
        self.requests: list[tuple[int, ...]] = []
        host = Host(str(root), lambda: self.now)
        self.paths = DirectPaths()
        self.finder = RankFinder(host, self.paths, "n1", create_all("launchers"), self._ask)

    def _ask(self, some: Job) -> RasWorld | None:
        self.requests.append(tuple(one.pid for one in some.ranks))
        return self.world

    def add(self, pid: int, *, parent: int = 1, nccl: bool = True, **more: Any) -> int:
        self.tree.add(pid, parent, **more)
        if nccl:
            name = "/opt/env/lib/python3/site-packages/nvidia/nccl/lib/libnccl.so.2"
            maps = f"{TORCH}7f1000000000-7f1000001000 r-xp 00000000 fe:00 1 {name}\n"
            (self.root / "proc" / str(pid) / "maps").write_text(maps)
        return pid

    def jobs(self) -> list[tuple[str, int, dict[int, int]]]:
        found: Discovery = self.finder.find()
        return [(j.launcher, j.world_size, {r.rank: r.pid for r in j.ranks}) for j in found.jobs]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_processes_of_different_shells_are_one_job(node: Node) -> None:
    for pid in (100, 101):
        node.add(pid, parent=node.tree.add(pid + 100, 1, "bash", exe="/bin/bash", torch=False))
    node.world = RasWorld(key="0x1", size=4, ranks={100: 2, 101: 3})
    assert node.jobs() == [(BY_RAS, 4, {2: 100, 3: 101})]
    assert node.jobs() == [(BY_RAS, 4, {2: 100, 3: 101})]
    assert node.requests == [(100, 101)]


def test_what_python_has_spawned_are_ranks_and_their_parent_is_none(node: Node) -> None:
    """`torch.multiprocessing.spawn` gives the rank as an argument of a function."""
    node.add(50)
    for pid in (100, 101):
        node.add(pid, parent=50, argv=SPAWN)
    node.world = RasWorld(key="0x1", size=2, ranks={100: 0, 101: 1})
    assert node.jobs() == [(BY_RAS, 2, {0: 100, 1: 101})]
    node.add(200, parent=100, argv=SPAWN)  # a DataLoader worker
    assert node.jobs() == [(BY_RAS, 2, {0: 100, 1: 101})]
    assert node.requests == [(50, 100, 101)]


def test_who_cannot_tell_yet_is_asked_again_and_not_for_ever(node: Node) -> None:
    node.add(100)
    for _ in range(3):
        assert node.jobs() == [("single", 1, {0: 100})]
    assert node.requests == [(100,)]
    for _ in range(2000):
        node.now += 1.0
        node.jobs()
    assert len(node.requests) == 1 + len(PAUSES)
    node.add(101)  # somebody new may know more
    node.world = RasWorld(key="0x1", size=2, ranks={100: 0, 101: 1})
    assert node.jobs() == [(BY_RAS, 2, {0: 100, 1: 101})]


def test_a_process_that_could_not_be_read_for_one_look_is_not_asked_about_again(node: Node) -> None:
    """On a busy machine a look may miss one; each time it came back it was new, and NCCL RAS was asked once more."""
    node.add(100, environ={"HOME": "/home/bob"})
    proc, late = node.root / "proc/100", Unreadable("not in time", errno=errno.EAGAIN)
    node.paths.answers = {str(proc / "cmdline"): late}
    assert node.jobs() == [("single", 1, {0: 100})]
    assert node.requests == [(100,)]
    node.paths.answers = {str(proc / "maps"): late}
    node.jobs()  # read anew, and nobody sees in this look what it has loaded
    node.paths.answers = {}
    node.jobs()
    node.jobs()
    assert node.requests == [(100,)]


def test_a_rank_that_could_not_be_read_for_one_look_stays_that_rank(node: Node) -> None:
    node.add(100, environ={"HOME": "/home/bob"})
    proc, late = node.root / "proc/100", Unreadable("not in time", errno=errno.EAGAIN)
    node.paths.answers = {str(proc / "cmdline"): late}
    node.world = RasWorld(key="0x1", size=4, ranks={100: 2})
    assert node.jobs() == [(BY_RAS, 4, {2: 100})]
    node.paths.answers = {str(proc / "cmdline"): late, str(proc / "environ"): late}
    node.jobs()
    node.paths.answers = {}
    assert node.jobs() == [(BY_RAS, 4, {2: 100})]
    assert node.requests == [(100,)]


def test_workers_that_come_and_go_are_no_reason_to_ask_at_every_look(node: Node) -> None:
    node.add(100)
    for pid in range(300, 400):
        node.add(pid, parent=100, argv=SPAWN)
        node.now += 5.0
        node.jobs()
        node.tree.end(pid)
    assert len(node.requests) <= 8


def test_one_question_in_one_look_is_enough(node: Node) -> None:
    """Fifty jobs in networks of their own, none of which answers, must not hold up a look."""
    for pid in range(100, 150):
        node.add(pid, network=f"net:[{pid}]")
    node.jobs()
    assert len(node.requests) == 1
    for _ in range(49):
        node.jobs()
    assert sorted(node.requests) == [(pid,) for pid in range(100, 150)]


@pytest.mark.parametrize(
    ("environ", "nccl"),
    [({}, False), ({"NCCL_RAS_ENABLE": "0"}, True), ({"RANK": 0, "WORLD_SIZE": 2}, True)],
    ids=["no NCCL", "switched off", "it says so itself"],
)
def test_nobody_is_asked(node: Node, environ: dict[str, object], nccl: bool) -> None:
    node.add(100, nccl=nccl, environ=environ)
    node.jobs()
    assert node.requests == []


# --- real ones -------------------------------------------------------------------------------------

MAPS = f"""{HOLDS}
import mmap, sys, time
held = []
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        held.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[NodeTools]:
    state = AgentConfig(state_dir=tmp_path / "state")
    with open_tools(Config(agent=state)) as one:
        yield one


@contextmanager
def two(folder: Path, server: RasServer) -> Iterator[list[int]]:
    """The pids of two processes that have PyTorch and NCCL as far as it can be seen, and no rank.

    Orphans: children of whoever runs the tests would count as children of a job where that has PyTorch itself.
    """
    torch = library(folder, "2.11.0+cu128")
    nccl = folder / "libnccl.so.2"
    nccl.write_bytes(bytes(4096))
    words = ("setsid", "--fork", sys.executable, "-S", "-c", MAPS, torch, nccl)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(started(*words, NCCL_RAS_ADDR=server.address))
        server.speak_for()
        wait_until(lambda: len(mapping(nccl)) == 2)
        yield mapping(nccl)


def mapping(library: Path) -> list[int]:
    """Who has this file mapped."""
    found = []
    for pid in Host().pids():
        with suppress(OSError):
            if str(library) in Path(f"/proc/{pid}/maps").read_text():
                found.append(pid)
    return sorted(found)


def of(found: Discovery, pids: list[int]) -> list[Job]:
    return [job for job in found.jobs if {rank.pid for rank in job.ranks} & {*pids}]


def all_found(tools: NodeTools, pids: list[int]) -> list[Job]:
    """The jobs of these processes, once all are found with their NCCL: on a busy machine not all that is read comes in one look."""
    found: list[list[Job]] = []

    def all_there() -> bool:
        look = tools.capture.finder.find()
        found.append(of(look, pids))
        known = {pid for pid in pids if pid in look.programs and look.programs[pid].libraries.nccl}
        return known == {*pids} == {rank.pid for job in found[-1] for rank in job.ranks}

    wait_until(all_there, 60.0)
    return found[-1]


def test_real_processes_get_the_ranks_that_ras_tells(tools: NodeTools, tmp_path: Path) -> None:
    with serving(half("")) as server, two(tmp_path, server) as pids:
        server.serve = says(ranks(4, pids={3: pids[0], 1: pids[1]}))
        wait_until(lambda: len(all_found(tools, pids)) == 1)
        (job,) = all_found(tools, pids)
        assert {one.rank: one.pid for one in job.ranks} == {3: pids[0], 1: pids[1]}
        assert (job.launcher, job.world_size, job.ranks[0].uid) == (BY_RAS, 4, os.geteuid())
        connections = server.connections
        assert all_found(tools, pids) == [job]
        assert server.connections == connections, "not asked in every look"
    listing = NodeListing(node="n", now=time.time(), jobs=(job,), remarks=(), gaps=())
    shown = "\n".join(str(line) for line in status_lines(listing))
    assert f"ranks 1,3 of 4; pids {pids[1]} {pids[0]}; which is which NCCL RAS tells" in shown


FAULTS: dict[str, Serve] = {
    "garbage": garbage,
    "half": half(json.dumps(ranks(2))),
    "never": silent,
    "others": says(ranks(2, pids={0: 1, 1: 2})),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_ras_that_is_of_no_use_gives_no_numbers_and_costs_one_question(
    tools: NodeTools, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ras_ranks, "PAUSES", (3600.0,)
    )  # on a busy machine a few looks take longer than the first of them
    with serving(FAULTS[fault]) as server, two(tmp_path, server) as pids:
        found = [all_found(tools, pids)]
        while not server.connections:  # one group a look: others of this machine may come first
            found.append(all_found(tools, pids))
        connections = server.connections
        found += [all_found(tools, pids) for _ in range(2)]
        assert server.connections == connections
    for jobs in found:
        assert [(job.launcher, job.world_size) for job in jobs] == [("single", 1)] * 2


def test_where_it_is_switched_off_nobody_is_asked(tmp_path: Path) -> None:
    config = Config(
        agent=AgentConfig(state_dir=tmp_path / "state"), capture=CaptureConfig(nccl_ras=False)
    )
    with open_tools(config) as plain, serving(says(ranks(2))) as server, two(tmp_path, server):
        plain.capture.finder.find()
        assert server.connections == 0
