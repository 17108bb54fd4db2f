"""A process may end between any two reads of one look: the look goes on, and the others are seen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mldebug.core.plugins import create_all
from mldebug_agents.jobs.ranks.discovery import RankFinder
from mldebug_agents.system import host as host_module
from mldebug_agents.system.host import Host
from mldebug_agents.system.process import details, held_reads, proc_files
from shared.jobs.proctree import BOOT, DirectPaths, Tree

RANKS = 3
STRUCK = 111


def a_node(root: Path) -> tuple[Tree, RankFinder, Host]:
    """A launcher with three ranks; the first has a child, and threads and descriptors of its own."""
    root.mkdir()
    tree = Tree(root)
    tree.add(100, 1, "pt_elastic", argv=("python3", "/usr/bin/torchrun", "train.py"))
    for rank in range(RANKS):
        tree.add(110 + rank, 100, environ=variables(rank))
    tree.add(120, STRUCK, "pt_data_worker", forked_from=STRUCK, environ=variables(1))
    for pid in (110, STRUCK, 112):
        task = root / f"proc/{pid}/task/{pid}"
        task.mkdir(parents=True)
        for name in ("stat", "status"):
            (task / name).write_text((root / f"proc/{pid}/{name}").read_text())
        (root / f"proc/{pid}/fd").mkdir()
        (root / f"proc/{pid}/fd/0").symlink_to("/dev/null")
    host = Host(str(root), lambda: BOOT + 3600.0)
    return tree, RankFinder(host, DirectPaths(), "n1", create_all("launchers")), host


def variables(rank: int) -> dict[str, object]:
    """What torchrun sets."""
    return {
        "RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": 0,
    }  # fmt: skip


def counting(monkeypatch: pytest.MonkeyPatch, at: int, strike: Callable[[], None]) -> list[str]:
    """Strike just before the read with that number; returns the list that all reads are noted in."""
    reads: list[str] = []
    real = proc_files.read_text

    def read(path: str) -> str:
        reads.append(path)
        if len(reads) == at:
            strike()
        return real(path)

    for reader in (host_module, details):
        monkeypatch.setattr(reader, "read_text", read)
    return reads


def look(finder: RankFinder, host: Host) -> tuple[set[int], dict[int, bool]]:
    """The pids that are ranks, and which of them have a state."""
    ranks = [rank.pid for job in finder.find().jobs for rank in job.ranks]
    return set(ranks), {
        pid: host.process_state(pid, files=True, kernel_stacks=True) is not None for pid in ranks
    }


@pytest.mark.parametrize("first_look", [True, False])
def test_a_process_that_vanishes_at_any_read_costs_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_look: bool
) -> None:
    # this /proc lies on a disk, and whoever waits for that is no process that holds a read up
    monkeypatch.setattr(held_reads, "_sleeps", lambda _: False)
    _, finder, host = a_node(tmp_path / "whole")
    with monkeypatch.context() as patch:
        reads = counting(patch, 0, lambda: None)
        if not first_look:
            look(finder, host)
            reads.clear()
        reading, states = look(finder, host)
        count = len(reads)
    assert reading == {110, STRUCK, 112}
    assert all(states.values())
    assert count > 20, "this look reads less than it did"
    for at in range(1, count + 1):
        tree, finder, host = a_node(tmp_path / str(at))
        if not first_look:
            look(finder, host)
        with monkeypatch.context() as patch:
            counting(patch, at, lambda tree=tree: tree.end(STRUCK))
            reading, states = look(finder, host)
        assert {110, 112} <= reading <= {110, STRUCK, 112}, f"read {at}"
        assert states[110], f"read {at}"
        assert states[112], f"read {at}"
        reading, _ = look(finder, host)
        assert reading == {110, 112}, f"after read {at}"
