"""The Slurm prolog and epilog of deploy/slurm in a real Slurm: a node that is not fit is drained, with the reason in sinfo."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.harness import SCRIPTS, wait_for
from system.machine import need
from system.slurm import PROGRAMS, Slurm, slurm

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.host, pytest.mark.timeout(300)]

DEPLOY = Path(__file__).parents[2] / "deploy/slurm"
REASON = "mldebug: driver: 0 of 8 GPUs answer"
SETTINGS = f"""
MLDEBUG={SCRIPTS}/mldebug
[ "$SLURMD_NODENAME" = a2 ] && wanted=8
MLDEBUG_PROLOG="--stages driver,ib --require-gpus ${{wanted:-0}}"
MLDEBUG_EPILOG="$MLDEBUG_PROLOG"
"""


def cluster_with(folder: Path, script: str) -> Iterator[Slurm]:
    """A cluster with this prolog or epilog; node a2 should have eight GPUs."""
    if os.geteuid():
        pytest.skip("slurmd needs root")
    need(*PROGRAMS)
    (folder / "probe.conf").write_text(SETTINGS)
    wrapper = folder / "wrapper.sh"
    wrapper.write_text(
        f"#!/bin/sh\nMLDEBUG_SETTINGS={folder}/probe.conf exec {DEPLOY}/{script}.sh\n"
    )
    wrapper.chmod(0o755)
    with slurm(more=f"{script.title()}={wrapper}\nPrologFlags=Alloc") as one:
        yield one


@pytest.fixture
def with_prolog(tmp_path: Path) -> Iterator[Slurm]:
    yield from cluster_with(tmp_path, "prolog")


@pytest.fixture
def with_epilog(tmp_path: Path) -> Iterator[Slurm]:
    yield from cluster_with(tmp_path, "epilog")


def reasons(cluster: Slurm) -> dict[str, str]:
    """Why nodes are drained, as sinfo shows it."""
    lines = cluster.run("sinfo", "--noheader", "--list-reasons", "--format=%N|%E").splitlines()
    return dict(line.split("|", 1) for line in lines if not line.endswith("|none"))


def state(cluster: Slurm, node: str) -> str:
    return cluster.run("sinfo", "--noheader", "--nodes", node, "--format=%T").strip()


def wait_for_drain(cluster: Slurm) -> None:
    """Until a2 is drained."""
    try:
        wait_for("a2 to be drained", lambda: "a2" in reasons(cluster), 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.run('sinfo', '-R')}\n{cluster.tail()}") from None


def started(cluster: Slurm, node: str, marker: Path) -> "subprocess.Popen[bytes]":
    """A job on that node that leaves a file."""
    return subprocess.Popen(
        ["srun", "-w", node, "touch", str(marker)],
        env=os.environ | cluster.environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_prolog_drains_the_node_with_the_reason_and_the_job_does_not_start(
    with_prolog: Slurm, tmp_path: Path
) -> None:
    fit = started(with_prolog, "a1", tmp_path / "a1")
    assert fit.wait(120) == 0, with_prolog.tail()
    unfit = started(with_prolog, "a2", tmp_path / "a2")
    try:
        wait_for_drain(with_prolog)
        assert reasons(with_prolog) == {"a2": REASON}
        assert "drain" in state(with_prolog, "a2")
        assert state(with_prolog, "a1") == "idle"
        assert (tmp_path / "a1").exists()
        assert not (tmp_path / "a2").exists()
    finally:
        with_prolog.free()
        unfit.kill()
        unfit.wait(10)


def test_an_epilog_drains_the_node_after_a_job_that_ended_well(
    with_epilog: Slurm, tmp_path: Path
) -> None:
    assert started(with_epilog, "a2", tmp_path / "a2").wait(120) == 0, with_epilog.tail()
    wait_for_drain(with_epilog)
    assert reasons(with_epilog) == {"a2": REASON}
    assert (tmp_path / "a2").exists()
