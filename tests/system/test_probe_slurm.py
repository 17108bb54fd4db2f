"""`mldebug probe collectives --through srun` in a real Slurm of two nodes."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.harness import SCRIPTS, clean_environment
from system.machine import need
from system.slurm import PROGRAMS, Slurm, slurm

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.host, pytest.mark.timeout(300)]


@pytest.fixture
def cluster() -> Iterator[Slurm]:
    if os.geteuid():
        pytest.skip("slurmd needs root")
    need(*PROGRAMS, "salloc")
    with slurm() as one:
        yield one


def probe(cluster: Slurm, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Type it inside an allocation of both nodes."""
    argv = [
        *("salloc", "--nodes=2", "--quiet", str(SCRIPTS / "mldebug"), "probe", "collectives", "--device", "cpu"),
        *("--beside-jobs", "--through", "srun", "--interface", "lo", "--sizes", "1KiB", "--ops", "all_reduce"),
        *words,
    ]  # fmt: skip
    own = {"MLDEBUG_PROBE_LOCK": str(folder / "lock")}
    return subprocess.run(
        argv, env=clean_environment(folder) | cluster.environment | own, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_ranks_of_both_nodes_meet(cluster: Slurm, tmp_path: Path) -> None:
    done = probe(cluster, tmp_path, "--hosts", "a[1-2]", "--nproc", "2", "--json")
    assert done.returncode == 0, done.stderr + cluster.tail()
    (found,) = json.loads(done.stdout)
    assert (found["ranks"], found["correct"]) == (4, True)
    assert cluster.idle()


def test_a_node_that_is_not_of_the_allocation_is_named(cluster: Slurm, tmp_path: Path) -> None:
    done = probe(cluster, tmp_path, "--hosts", "a1,a7", "--nproc", "1")
    assert done.returncode == 3, done.stderr
    assert "node a7 cannot measure: " in done.stderr
    assert "this must work: srun --overlap --nodelist=a7 true" in done.stderr
