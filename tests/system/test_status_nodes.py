"""`mldebug status`, `gpus list` and `top` over real sshd and a real Slurm: one run on several hosts is one, and who does not answer is told and
holds nobody up.
"""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakenvml.library import FakeNvml
from processes.harness import (
    JOBS,
    MARK,
    PACE,
    SCRIPTS,
    clean_environment,
    environment_of_jobs,
    free_port,
    wait_for,
)
from system.hosts import MASTER, Hosts, end_marked, job_on, ssh_hosts
from system.launching import need
from system.slurm import PROGRAMS, Slurm, slurm

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Two hosts with sshd."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("/usr/sbin/sshd", "ssh", "ssh-keygen", "unshare", "nsenter")
    with ssh_hosts(2) as some:
        yield some


def ask(hosts: Hosts, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    ssh = f"transports: {{ssh: {{kind: ssh, options: '{hosts.options}'}}}}\n"
    return typed(folder, ssh, {}, *arguments)


def typed(
    folder: Path, more: str, environ: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    file = folder / "mldebug.yaml"
    file.write_text(f"{more}agent: {{state_dir: {folder}/state}}\n")
    argv = [
        SCRIPTS / "mldebug",
        *arguments[:1],
        *(arguments[1:2] if arguments[0] == "gpus" else ()),
        "--there",
        sys.executable,
        *arguments[1 + (arguments[0] == "gpus") :],
        "--config",
        file,
    ]
    return subprocess.run(
        list(map(str, argv)), check=False, capture_output=True, text=True, timeout=200,
        env=clean_environment(folder) | environ,
    )  # fmt: skip


def answers(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_on_two_hosts_is_one_in_all_three_verbs(hosts: Hosts, tmp_path: Path) -> None:
    with job_on(list(hosts.hosts.values()), tmp_path / "job", 1, *PACE, "--steps", "100000") as events:  # fmt: skip
        for rank in (0, 1):
            wait_for(f"rank {rank} to step", (events / f"step.{rank}").exists)
        found = answers(ask(hosts, tmp_path, "status", "--hosts", hosts.names(), "--json"))
        text = ask(hosts, tmp_path, "status", "--hosts", hosts.names()).stdout
        there = ("--there", with_gpus(tmp_path))
        screen = ask(hosts, tmp_path, "top", "--once", "--hosts", hosts.names(), *there).stdout
        gpus = ask(hosts, tmp_path, "gpus", "list", "--hosts", hosts.names(), *there).stdout
    keys = {(one["node"], tuple(run["key"]), tuple(rank["rank"] for rank in run["ranks"])) for one in found["answers"] for run in one["runs"]}  # fmt: skip
    assert {(node, ranks) for node, _, ranks in keys} == {("h1", (0,)), ("h2", (1,))}
    assert len({key for _, key, _ in keys}) == 1
    assert text.startswith("2 nodes (h[1-2]): 1 training run\n")
    assert "  ranks 0-1 of 2 on 2 nodes: h[1-2]\n" in text
    assert "h[1-2]: 1 rank, no agent\n" in text
    assert "0-1 of 2" in screen
    assert "h1: no agent watches" in screen
    assert_gpus(gpus, screen, "h")


def with_gpus(folder: Path) -> str:
    """A Python for other hosts whose driver's library serves recordings of two H200s."""
    (folder / "nvml").mkdir()
    fake = FakeNvml(folder / "nvml", "training")
    library = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}
    python = folder / "python-with-gpus"
    exports = "".join(f"export {name}='{value}'\n" for name, value in library.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def assert_gpus(gpus: str, screen: str, letter: str) -> None:
    """Nodes that are alike share a line of the list; on the screen each GPU has its bar."""
    assert gpus.startswith(f"2 nodes ({letter}[1-2]): 4 GPUs, nothing wrong with them\n"), gpus
    assert f"{letter}[1-2]  2 x NVIDIA H200 " in gpus
    for node in (f"{letter}1", f"{letter}2"):
        for index in (0, 1):
            line = rf"(?m)^{node} +{index} +[█░#.]{{10}} +\d+ % +\d+/\d+ GiB "
            assert re.search(line, screen), screen


def test_a_host_that_does_not_answer_is_told_first_and_holds_nobody_up(hosts: Hosts, tmp_path: Path) -> None:  # fmt: skip
    known = hosts.folder / "ssh_config"
    before = known.read_text()
    python = tmp_path / "python"  # on h2 it never comes back
    python.write_text(f'#!/bin/sh\n[ "$(hostname)" = h2 ] && exec sleep 1000\nexec {sys.executable} "$@"\n')  # fmt: skip
    python.chmod(0o755)
    known.write_text(f"Host h3\n  HostName 127.0.0.1\n  Port {free_port()}\n{before}")
    began = time.monotonic()
    try:
        done = ask(hosts, tmp_path, "gpus", "list", "--hosts", "h[1-3]", "--wait", "15s", "--there", str(python))  # fmt: skip
    finally:
        known.write_text(before)
    first, second, third, *_ = done.stdout.splitlines()
    assert "Connection refused" in first + second
    assert {line[:5] for line in (first, second)} == {"✘ h2:", "✘ h3:"}, done.stdout
    assert third.startswith("1 of 3 nodes answered (h1)")
    assert done.returncode == 3
    assert time.monotonic() - began < 60


# --- Slurm -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    """Two nodes, each with its own name and processes."""
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    need(*PROGRAMS, "unshare")
    with slurm(apart=True) as one:
        yield one


@pytest.fixture
def slurm_job(cluster: Slurm, tmp_path: Path) -> Iterator[str]:
    """The id of a job of two gloo ranks that step, one on each node."""
    events, mark = tmp_path / "events", uuid.uuid4().hex
    events.mkdir()
    ranks = "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"
    train = f"{sys.executable} -u {JOBS / 'train.py'} --events {events} {' '.join(PACE)}"
    argv = ["srun", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", f"{ranks}; exec {train}"]
    own = {MARK: mark, "OMP_NUM_THREADS": "1", "MASTER_ADDR": MASTER, "MASTER_PORT": str(free_port())}  # fmt: skip
    with (tmp_path / "job.log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=environment_of_jobs(tmp_path) | cluster.environment | own,
        )  # fmt: skip
    try:
        for rank in (0, 1):
            wait_for(f"rank {rank} to step", (events / f"step.{rank}").exists, 280)
        yield cluster.run("squeue", "--noheader", "--format=%A").strip()
    finally:
        end_marked(mark)
        process.wait(30)


def test_the_nodes_of_a_slurm_job_in_all_three_verbs(
    cluster: Slurm, slurm_job: str, tmp_path: Path
) -> None:
    def see(*words: str) -> str:
        where = ("--slurm-job", slurm_job, "--there", python)
        done = typed(tmp_path, "", cluster.environment, *words, *where)
        assert done.returncode == 0, done.stderr + cluster.tail()
        return done.stdout

    python = with_gpus(tmp_path)
    text, screen, gpus = see("status"), see("top", "--once"), see("gpus", "list")
    assert text.startswith("2 nodes (a[1-2]): 1 training run\n"), text
    assert "  ranks 0-1 of 2 on 2 nodes: a[1-2]\n" in text
    assert "0-1 of 2" in screen
    assert_gpus(gpus, screen, "a")
