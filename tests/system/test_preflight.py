"""`mldebug preflight` over real sshd, and in a job of a real Slurm: each of what is planted on a host is told with that host, and nothing else."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes.harness import JOBS, SCRIPTS, clean_environment, free_port, wait_for
from system.hosts import Hosts, ssh_hosts
from system.launching import need
from system.slurm import PROGRAMS, slurm

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(300)]

PYTHON = """#!/bin/sh
# the training environment: another version on one host
[ "$(hostname)" = h2 ] && torch=2.9.1 || torch=2.8.0
[ -e {folder}/same ] && torch=2.8.0
echo "mldebug-packages {{\\"python\\": \\"3.11.2\\", \\"torch\\": \\"$torch\\", \\"numpy\\": \\"2.1.0\\"}}"
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Three hosts with sshd."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("/usr/sbin/sshd", "ssh", "ssh-keygen", "unshare", "nsenter")
    with ssh_hosts(3) as some:
        yield some


def preflight(hosts: Hosts, folder: Path, *arguments: str, there: str = sys.executable) -> tuple[int, dict[str, Any]]:  # fmt: skip
    file = folder / "mldebug.yaml"
    file.write_text(f"transports: {{ssh: {{kind: ssh, options: '{hosts.options}'}}}}\nagent: {{state_dir: {folder}/state}}\n")  # fmt: skip
    argv = [SCRIPTS / "mldebug", "preflight", "--json", "--config", file, "--wait", "60s"]
    done = subprocess.run(
        [*map(str, argv), *arguments, "--there", there],
        check=False, capture_output=True, text=True, timeout=200, env=clean_environment(folder),
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def python_in(folder: Path) -> str:
    path = folder / "python"
    path.write_text(PYTHON.format(folder=folder))
    path.chmod(0o755)
    return str(path)


def failures(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.get("nodes", ""), one["sentence"]) for one in found["findings"] if one["level"] == "failed"]  # fmt: skip


def test_what_is_planted_on_a_host_is_told_with_it(hosts: Hosts, tmp_path: Path) -> None:
    data, python = tmp_path / "data", python_in(tmp_path)
    data.mkdir()
    read_only = f"mount -t tmpfs -o ro none {data}"
    subprocess.run(hosts.hosts["h3"].inside("sh", "-c", read_only), check=True)
    known = hosts.folder / "ssh_config"
    before = known.read_text()
    known.write_text(f"Host h4\n  HostName 127.0.0.1\n  Port {free_port()}\n{before}")
    try:
        code, found = preflight(hosts, tmp_path, "--hosts", "h[1-4]", "--folder", str(data), "--python", python)  # fmt: skip
    finally:
        known.write_text(before)
        subprocess.run(hosts.hosts["h3"].inside("umount", str(data)), check=True)
    assert (code, found["go"]) == (1, False)
    reasons = dict(failures(found))
    assert "Connection refused" in reasons.pop("h4")
    assert reasons.pop("h3") == f"{data} cannot be written: it is read-only"
    assert reasons.pop("") == "not the same on all nodes: torch: 2.8.0 on h[1,3], 2.9.1 on h2"
    assert reasons == {}


def test_hosts_that_are_alike_may_start(hosts: Hosts, tmp_path: Path) -> None:
    data, python = tmp_path / "data", python_in(tmp_path)
    data.mkdir()
    (tmp_path / "same").touch()
    code, found = preflight(hosts, tmp_path, "--hosts", "h[1-3]", "--folder", str(data), "--python", python)  # fmt: skip
    assert failures(found) == []
    assert (code, found["go"], found["verdict"]) == (0, True, "go: 3 nodes checked")
    assert [one["node"] for one in found["answers"]] == ["h1", "h2", "h3"]
    assert [one for one in found["findings"] if "clock" in one["sentence"]] == []
    assert list(data.iterdir()) == []


def test_a_python_that_hangs_on_one_host_is_told(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "same").touch()
    python = python_in(tmp_path)
    text = Path(python).read_text()
    Path(python).write_text(text.replace("#!/bin/sh\n", '#!/bin/sh\n[ "$(hostname)" = h1 ] && exec sleep 1000\n'))  # fmt: skip
    code, found = preflight(hosts, tmp_path, "--hosts", "h[1-3]", "--python", python)
    assert code == 1
    assert failures(found) == [("h1", f"{python} did not start within 30 s")]
    assert [one["node"] for one in found["answers"]] == ["h1", "h2", "h3"]


CLOCK = """#!/bin/sh
# mldebug's Python: the clock of one host is ahead
[ "$(hostname)" = h2 ] && export LD_PRELOAD={library} AHEAD=120
exec {python} "$@"
"""


@pytest.fixture
def sick(hosts: Hosts, tmp_path: Path) -> Iterator[dict[str, Path]]:
    """h1 has little shared memory and a folder without inodes, h2 a folder that hangs, h3 one with little room."""
    need("bindfs", "gcc")
    found = {name: tmp_path / name for name in ("ckpt", "many", "hung")}
    for folder in found.values():
        folder.mkdir()
    inside = {name: host.inside for name, host in hosts.hosts.items()}
    mounts = (
        ("h1", "-o", "size=64m", "/dev/shm"),
        ("h1", "-o", "nr_inodes=100", str(found["many"])),
        ("h3", "-o", "size=100m", str(found["ckpt"])),
    )
    daemon = subprocess.Popen(inside["h2"]("bindfs", "-f", str(tmp_path), str(found["hung"])))
    try:
        for host, *words, place in mounts:
            subprocess.run(inside[host]("mount", "-t", "tmpfs", *words, "none", place), check=True)
        wait_for("the mount of h2", lambda: str(found["hung"]) in subprocess.run(inside["h2"]("cat", "/proc/mounts"), capture_output=True, text=True, check=True).stdout, 20)  # fmt: skip
        subprocess.run(inside["h2"]("sh", "-c", "kill -STOP $(pidof bindfs)"), check=True)
        yield found
    finally:
        subprocess.run(inside["h2"]("sh", "-c", "kill -KILL $(pidof bindfs)"), check=True)
        for host, *_, place in (*mounts, ("h2", str(found["hung"]))):
            subprocess.run(inside[host]("umount", "-l", place), check=True)
        daemon.kill()  # nsenter has stopped itself with its child
        daemon.wait(10)


def test_every_kind_of_trouble_is_told_with_its_host_at_once(
    hosts: Hosts, sick: dict[str, Path], tmp_path: Path
) -> None:
    library, there = tmp_path / "another_clock.so", tmp_path / "there"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(JOBS / "another_clock.c")], check=True)  # fmt: skip
    there.write_text(CLOCK.format(library=library, python=sys.executable))
    there.chmod(0o755)
    folders = [word for one in sick.values() for word in ("--folder", str(one))]
    code, found = preflight(
        hosts, tmp_path, "--hosts", "h[1-3]", *folders, "--checkpoint", "60MiB", "--ib", "1", there=str(there)
    )  # fmt: skip
    assert code == 1
    reasons = sorted(failures(found))
    print(reasons)
    short = {(node, sentence.split(":")[0]) for node, sentence in reasons}
    assert (
        "h3",
        f"{sick['ckpt']} has 100 MiB left, too little for 2 checkpoints of 60 MiB",
    ) in short
    assert any(node == "h1" and sentence.startswith("/dev/shm has 64 MiB of 64 MiB left: ") for node, sentence in reasons)  # fmt: skip
    assert any(node == "h1" and re.fullmatch(rf"{sick['many']} has \d+ inodes left", sentence) for node, sentence in reasons)  # fmt: skip
    assert any(node == "h2" and sentence.startswith(f"{sick['hung']} does not answer: ") for node, sentence in reasons)  # fmt: skip
    (ports,) = (one for one in reasons if "port" in one[1])
    assert ports[0] == "h[1-3]", "no host has one"
    assert len(reasons) == 5, reasons
    notes = [(one["nodes"], one["sentence"]) for one in found["findings"] if "clock" in one["sentence"]]  # fmt: skip
    assert [(node, re.sub(r"1[12]\d", "N", words)) for node, words in notes] == [("h2", "its clock is N s or more ahead")]  # fmt: skip


@pytest.mark.host
def test_the_nodes_of_a_slurm_job_are_checked_from_within_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    need(*PROGRAMS, "salloc")
    python = python_in(tmp_path)
    Path(python).write_text(
        Path(python).read_text().replace('$(hostname)" = h2', '$SLURMD_NODENAME" = a2')
    )
    (tmp_path / "mldebug.yaml").write_text(f"agent: {{state_dir: {tmp_path}/state}}\n")
    words = f'exec {SCRIPTS}/mldebug preflight --json --config {tmp_path}/mldebug.yaml --slurm-job "$SLURM_JOB_ID" --python {python} --folder {tmp_path}'
    with slurm() as cluster:
        for alike in (False, True):
            done = subprocess.run(
                ["salloc", "--nodes=2", "--quiet", "sh", "-c", words], check=False, capture_output=True, text=True, timeout=200,
                env=clean_environment(tmp_path) | cluster.environment, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == (0 if alike else 1), done.stderr + cluster.tail()
            found = json.loads(done.stdout)
            assert [one["node"] for one in found["answers"]] == ["a1", "a2"], (
                failures(found),
                cluster.tail(),
            )
            differ = [("", "not the same on all nodes: torch: 2.8.0 on a1, 2.9.1 on a2")]
            assert failures(found) == ([] if alike else differ)
            (tmp_path / "same").touch()
            wait_for("nothing is left on the nodes", cluster.idle, 30)
