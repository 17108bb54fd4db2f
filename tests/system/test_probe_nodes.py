"""`mldebug probe collectives --hosts` over real nodes: a Slurm of two, and hosts with sshd."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.harness import SCRIPTS, clean_environment, wait_for
from system.hosts import Hosts, ssh_hosts
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
    wait_for("nothing is left on the nodes", cluster.idle, 30)


def test_a_node_that_is_not_of_the_allocation_is_named(cluster: Slurm, tmp_path: Path) -> None:
    done = probe(cluster, tmp_path, "--hosts", "a1,a7", "--nproc", "1")
    assert done.returncode == 3, done.stderr
    assert "node a7 cannot measure: " in done.stderr
    assert "this must work: srun --overlap --nodelist=a7 true" in done.stderr


# --- ssh -------------------------------------------------------------------------------------------


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid():
        pytest.skip("namespaces need root")
    need("sshd", "ssh", "unshare", "nsenter")
    with ssh_hosts(3) as some:
        yield some


def over(
    hosts: Hosts, folder: Path, *words: str, verb: str = "collectives"
) -> "subprocess.CompletedProcess[str]":
    """Type it where ssh knows these hosts."""
    (folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh {hosts.options} "$@"\n')
    (folder / "ssh").chmod(0o755)
    own = {"MLDEBUG_PROBE_LOCK": str(folder / "lock"), "PATH": f"{folder}:{os.environ['PATH']}"}
    argv = [
        *(str(SCRIPTS / "mldebug"), "probe", verb, "--device", "cpu", "--beside-jobs", "--nproc", "1"),
        *("--interface", "lo", "--sizes", "1KiB", "--ops", "all_reduce", *words),
    ]  # fmt: skip
    return subprocess.run(
        argv, env=clean_environment(folder) | own, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_ranks_of_hosts_meet_over_ssh(hosts: Hosts, tmp_path: Path) -> None:
    done = over(hosts, tmp_path, "--hosts", hosts.names(), "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["ranks"], found["correct"]) == (3, True)


def test_a_curve_over_more_and_more_hosts_is_one_command_with_a_table_and_a_picture(
    hosts: Hosts, tmp_path: Path
) -> None:
    files = ("--csv", str(tmp_path / "curve.csv"), "--plot", str(tmp_path / "curve.png"))
    done = over(hosts, tmp_path, "--hosts", hosts.names(), *files, verb="curve")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows[-2:]] == [["2", "2"], ["3", "3"]]  # nodes, ranks
    assert rows[-3][:3] == ["nodes", "ranks", "all_reduce"]
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["nodes", "2", "3"]
    assert all(float(line.split(",")[-1]) > 0 for line in lines[1:])  # bytes per second
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_host_that_does_not_let_us_in_is_named_with_the_way_out(
    hosts: Hosts, tmp_path: Path
) -> None:
    config = hosts.folder / "sshd-h2.conf"
    config.write_text(config.read_text().replace("user_key.pub", "stranger_key.pub"))
    os.kill(hosts.hosts["h2"].pid, signal.SIGHUP)  # sshd reads its configuration again
    done = over(hosts, tmp_path, "--hosts", hosts.names())
    assert done.returncode == 3, done.stderr
    assert "node h2 cannot measure: " in done.stderr
    assert "Permission denied" in done.stderr
    assert "this must work without a password: ssh h2 true" in done.stderr
