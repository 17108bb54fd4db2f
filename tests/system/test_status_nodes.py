"""`mldebug status`, `gpus list` and `top` over real sshd: one run on several hosts is one, and who does not answer is told and holds nobody up."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes.harness import PACE, SCRIPTS, clean_environment, free_port, wait_for
from system.hosts import Hosts, job_on, ssh_hosts
from system.launching import need

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
    file = folder / "mldebug.yaml"
    file.write_text(f"transports: {{ssh: {{kind: ssh, options: '{hosts.options}'}}}}\nagent: {{state_dir: {folder}/state}}\n")  # fmt: skip
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
        list(map(str, argv)), check=False, capture_output=True, text=True, timeout=200, env=clean_environment(folder)
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
        screen = ask(hosts, tmp_path, "top", "--once", "--hosts", hosts.names()).stdout
    keys = {(one["node"], tuple(run["key"]), tuple(rank["rank"] for rank in run["ranks"])) for one in found["answers"] for run in one["runs"]}  # fmt: skip
    assert {(node, ranks) for node, _, ranks in keys} == {("h1", (0,)), ("h2", (1,))}
    assert len({key for _, key, _ in keys}) == 1
    assert text.startswith("2 nodes (h[1-2]): 1 training run\n")
    assert "  ranks 0-1 of 2 on 2 nodes: h[1-2]\n" in text
    assert "h[1-2]: 1 rank, no agent\n" in text
    assert "0-1 of 2" in screen
    assert "h1: no agent watches" in screen


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
