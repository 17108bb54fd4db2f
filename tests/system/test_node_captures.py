"""Real jobs across real hosts: a Slurm of two nodes and hosts with sshd; the right rank and host, and what each node lacks."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes.harness import (
    JOBS,
    MARK,
    SCRIPTS,
    clean_environment,
    environment_of_jobs,
    free_port,
    wait_for,
)
from shared.system.patience import PATIENCE
from system.hosts import MASTER, Host, Hosts, end_marked, job_on, ssh_hosts
from system.launching import need
from system.slurm import PROGRAMS, Slurm, slurm

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(600)]
STRIKE = 280.0

WRAPPER = """#!/bin/sh
# what each host has for a Python: as it is written in a file of its name
case $(cat {folder}/css_class.$(hostname) 2>/dev/null) in
  bare) echo "$0: No module named mldebug" >&2; exit 1 ;;
  hangs) echo $$ >> {folder}/hanging; exec sleep 1000 ;;
  garbage) exec head -c 3000000 /dev/urandom ;;
  endless) exec head -c 1000000000 /dev/zero ;;
  env) env > {folder}/env.$(hostname) ;;
  forged) echo "mldebug-node 0123456789abcdef 0 1 h1 bm8gemxpYg=="; exit 0 ;;
esac
exec {python} "$@"
"""


@pytest.fixture(scope="module", autouse=True)
def root() -> None:
    """Hosts are namespaces."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")


def dump(folder: Path, *arguments: str, **environment: str) -> tuple[dict[str, Any], str]:
    """The report of one `mldebug dump`, and what it wrote to stderr."""
    done = subprocess.run(
        [str(SCRIPTS / "mldebug"), "--debug", "dump", "--json", "--watch", "1s", *arguments],
        check=False, capture_output=True, text=True, timeout=200, cwd=folder,
        env=clean_environment(folder) | environment,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), done.stderr


def named(report: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one["rank"], one["node"]) for one in report["diagnosis"]["culprits"]]


def states(report: dict[str, Any]) -> dict[str, str]:
    return {one["node"]: one["state"] for one in report["nodes"]}


def reasons(report: dict[str, Any]) -> dict[str, str]:
    return {one["node"]: one["reason"] for one in report["nodes"] if one["reason"]}


def still(seconds: float = 2.0) -> None:
    """The others reach the collective within a step of the strike."""
    time.sleep(seconds)


def python_on(folder: Path, **moods: str) -> str:
    """A Python that is as each host's css_class says."""
    for host, css_class in moods.items():
        (folder / f"css_class.{host}").write_text(css_class)
    wrapper = folder / "python"
    wrapper.write_text(WRAPPER.format(folder=folder, python=sys.executable))
    wrapper.chmod(0o755)
    return str(wrapper)


# --- Slurm -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    """Two nodes, each with its own name and processes."""
    need(*PROGRAMS, "unshare")
    with slurm(apart=True) as one:
        yield one


@pytest.fixture(scope="module")
def slurm_job(cluster: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The id of a job of four gloo ranks on both nodes; rank 3, on a2, sleeps."""
    folder, mark = tmp_path_factory.mktemp("slurm"), uuid.uuid4().hex
    ranks = "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"
    train = f"{sys.executable} -u {JOBS / 'train.py'} --events {folder} --fault sleep --ranks 3"
    argv = [
        "srun",
        "--nodes=2",
        "--ntasks-per-node=2",
        "sh",
        "-c",
        f"{ranks}; exec {train} --after 5",
    ]
    own = {
        MARK: mark,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": MASTER,
        "MASTER_PORT": str(free_port()),
    }
    with (folder / "job.log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=environment_of_jobs(folder) | cluster.environment | own,
        )  # fmt: skip
    try:
        wait_for("rank 3 to sleep", (folder / "strike.3").exists, STRIKE)
        still()
        yield cluster.run("squeue", "--noheader", "--format=%A").strip()
    finally:
        end_marked(mark)
        process.wait(30)


def test_the_sleeping_rank_of_a_slurm_job_is_named_with_its_node(
    cluster: Slurm, slurm_job: str, tmp_path: Path
) -> None:
    elsewhere = {
        "SLURM_JOB_ID": "999",
        "SLURM_NTASKS": "7",
        "SLURM_NODELIST": "x9",
    }  # of another job
    report, _ = dump(tmp_path, "--slurm-job", slurm_job, **elsewhere, **cluster.environment)

    assert named(report) == [(3, "a2")], report["diagnosis"]
    assert report["diagnosis"]["verdict"] == "rank_waiting"
    assert report["job"]["nodes"] == ["a1", "a2"]
    assert [(one["node"], one["ranks"], one["state"]) for one in report["nodes"]] == [
        ("a1", "0-1", "answered"),
        ("a2", "2-3", "answered"),
    ]
    assert cluster.run("squeue", "--noheader", "--format=%T").strip() == "RUNNING"


def test_a_node_of_a_slurm_job_that_hangs_or_lacks_mldebug_is_told(
    cluster: Slurm, slurm_job: str, tmp_path: Path
) -> None:
    cases = ("--slurm-job", slurm_job, "--python", python_on(tmp_path, a1="bare"))
    report, _ = dump(tmp_path, *cases, **cluster.environment)

    assert named(report) == [(3, "a2")], report["diagnosis"]
    assert report["diagnosis"]["confidence"] == "low"  # ranks 0 and 1 were not seen
    assert "No module named mldebug" in reasons(report)["a1"]

    cases = ("--slurm-job", slurm_job, "--python", python_on(tmp_path, a1="", a2="hangs"))
    report, _ = dump(tmp_path, *cases, "--wait", "30s", **cluster.environment)

    assert named(report) == [], report["diagnosis"]
    assert states(report) == {"a1": "answered", "a2": "unable"}
    assert cluster.run("squeue", "--noheader", "--format=%T").strip() == "RUNNING"


def test_what_is_secret_here_does_not_travel(
    cluster: Slurm, slurm_job: str, tmp_path: Path
) -> None:
    secret = {"WANDB_API_KEY": "0123456789", "RANK": "7"}
    cases = ("--slurm-job", slurm_job, "--python", python_on(tmp_path, a1="env", a2="env"))
    report, _ = dump(tmp_path, *cases, **cluster.environment, **secret)

    assert named(report) == [(3, "a2")], report["diagnosis"]
    for node in ("a1", "a2"):
        names = {
            line.partition("=")[0] for line in (tmp_path / f"env.{node}").read_text().splitlines()
        }
        assert "PATH" in names
        assert not names & set(secret)


def test_a_node_that_never_stops_writing_costs_its_own_answer(
    cluster: Slurm, slurm_job: str, tmp_path: Path
) -> None:
    cases = ("--slurm-job", slurm_job, "--python", python_on(tmp_path, a1="endless"))
    report, _ = dump(tmp_path, *cases, "--wait", "60s", **cluster.environment)

    assert states(report) == {"a1": "unable", "a2": "answered"}, report["nodes"]
    assert named(report) == [(3, "a2")], report["diagnosis"]


def test_a_srun_that_waits_for_a_free_slot_is_told(
    cluster: Slurm, slurm_job: str, tmp_path: Path
) -> None:
    file = tmp_path / "mldebug.yaml"
    file.write_text("transports: {slurm: {kind: slurm, srun: [srun, --exact]}}")
    done = subprocess.run(
        [str(SCRIPTS / "mldebug"), "dump", "--slurm-job", slurm_job, "--wait", "5s", "--config", str(file)],
        check=False, capture_output=True, text=True, timeout=60,
        env=clean_environment(tmp_path) | cluster.environment,
    )  # fmt: skip

    assert done.returncode == 3, done.stdout
    assert "a[1-2]: srun: error: Unable to create step" in done.stderr
    assert "srun needs --overlap" in done.stderr
    assert "mldebug" not in steps(cluster)


def test_a_node_that_is_lost_to_slurm_costs_its_own_answer(
    cluster: Slurm, slurm_job: str, tmp_path: Path
) -> None:
    """Its slurmd does not answer, and Slurm has not seen it yet."""
    pid = Host("a1", cluster.daemons["a1"]).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        cases = ("--slurm-job", slurm_job, "--wait", "30s")
        report, _ = dump(tmp_path, *cases, **cluster.environment)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert states(report) == {"a1": "silent", "a2": "answered"}, report["nodes"]
    assert named(report) == [(3, "a2")], report["diagnosis"]


# --- ssh -------------------------------------------------------------------------------------------

STRANGE = {"h4": "bare", "h5": "hangs", "h6": "garbage", "h7": "forged"}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Nine hosts: three for a job, four that have something odd, one that refuses the key, one that is not there."""
    need("/usr/sbin/sshd", "ssh", "ssh-keygen", "unshare", "nsenter")
    with ssh_hosts(8) as some:
        config = some.folder / "sshd-h8.conf"
        config.write_text(config.read_text().replace("user_key.pub", "stranger_key.pub"))
        os.kill(some.hosts["h8"].pid, 1)  # sshd reads its configuration again
        yield some


@pytest.fixture(scope="module")
def job(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A gloo rank on each of h1 to h3; rank 1, on h2, sleeps."""
    folder = tmp_path_factory.mktemp("ssh")
    three = [hosts.hosts[name] for name in ("h1", "h2", "h3")]
    with job_on(
        three, folder / "job", 1, "--fault", "sleep", "--ranks", "1", "--after", "5"
    ) as events:
        wait_for("rank 1 to sleep", (events / "strike.1").exists, STRIKE)
        still()
        yield events


def config_for(folder: Path, hosts: Hosts, more: str = "") -> tuple[str, str]:
    """The words that give ssh its options."""
    file = folder / "mldebug.yaml"
    ssh = f"{{kind: ssh, options: '{hosts.options}'{more}}}"
    file.write_text(f"transports: {{ssh: {ssh}}}\nagent: {{state_dir: {folder}/state}}\n")
    return "--config", str(file)


def test_the_sleeping_rank_is_named_with_its_host_whatever_the_others_lack(
    hosts: Hosts, job: Path, tmp_path: Path
) -> None:
    python = python_on(tmp_path, **STRANGE)
    known = hosts.folder / "ssh_config"
    known.write_text(f"Host h9\n  HostName 127.0.0.1\n  Port {free_port()}\n{known.read_text()}")
    cases = ("--hosts", "h[1-9]", "--ssh", "--python", python, "--wait", "60s")
    report, _ = dump(tmp_path, *cases, *config_for(tmp_path, hosts))

    assert named(report) == [(1, "h2")], report["diagnosis"]
    assert report["diagnosis"]["verdict"] == "rank_waiting"
    assert {one["node"]: one["ranks"] for one in report["nodes"] if one["ranks"]} == {
        "h1": "0",
        "h2": "1",
        "h3": "2",
    }
    result = reasons(report)
    assert sorted(result) == ["h4", "h5", "h6", "h7", "h8", "h9"]
    assert "No module named mldebug" in result["h4"]
    assert "not done in time" in result["h5"] or "no answer in 60 s" in result["h5"]
    assert "nothing came" in result["h6"]
    assert "damaged" in result["h7"]
    assert "Permission denied" in result["h8"]
    assert "Connection refused" in result["h9"]
    assert states(report)["h7"] == "refused"
    hanging = [int(pid) for pid in (tmp_path / "hanging").read_text().split()]
    assert len(hanging) == 1  # and it has ended there: the pid is one of h5's own
    wait_for("h5 to be left alone", lambda: not _sleeps(hosts), 30)


def _sleeps(hosts: Hosts) -> bool:
    """Does what was started on h5 still run?"""
    argv = hosts.hosts["h5"].inside("ps", "-e", "-o", "args")
    return "sleep 1000" in subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_a_host_without_py_spy_and_with_a_full_disk_tells_what_it_can(
    hosts: Hosts, job: Path, tmp_path: Path
) -> None:
    """py-spy is taken away from h2 alone, where reports would have no room either."""
    full = "mount -t tmpfs -o size=4k none /var/lib && head -c 4096 /dev/zero >/var/lib/full; "
    full += f"mount --bind /dev/null {SCRIPTS}/py-spy"
    subprocess.run(hosts.hosts["h2"].inside("sh", "-c", full), check=True)
    try:
        report, _ = dump(tmp_path, "--hosts", "h[1-3]", "--ssh", *config_for(tmp_path, hosts))
    finally:
        undo = f"umount {SCRIPTS}/py-spy; umount /var/lib"
        subprocess.run(hosts.hosts["h2"].inside("sh", "-c", undo), check=True)

    assert states(report) == {"h1": "answered", "h2": "answered", "h3": "answered"}
    stacks = [gap for gap in report["gaps"] if "stack" in gap["what"] and gap["rank"] == 1]
    assert stacks, report["gaps"]
    assert {rank for rank, _ in named(report)} <= {1}
    assert {node for _, node in named(report)} <= {"h2"}


def test_hosts_behind_a_gateway_are_reached_through_it(
    hosts: Hosts, job: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "topology.conf"
    here = socket.gethostname().partition(".")[0]
    tree.write_text(f"[routes]\n{here}: h1\nh1: h[2-3]\n")
    ssh_config = hosts.folder / "ssh_config"
    before = ssh_config.read_text()
    closed = 'Match originalhost h2,h3 exec "test $(uname -n) != h1"\n  Port 1\n'
    ssh_config.write_text(f"{closed}{before}")  # from here nobody gets to them
    try:
        flat, _ = dump(tmp_path, "--hosts", "h[1-3]", "--ssh", *config_for(tmp_path, hosts))
        report, _ = dump(
            tmp_path, "--hosts", "h[1-3]", "--ssh", *config_for(tmp_path, hosts, f", tree: {tree}")
        )
    finally:
        ssh_config.write_text(before)

    assert states(flat) == {"h1": "answered", "h2": "unable", "h3": "unable"}
    assert named(flat) == []
    assert states(report) == {"h1": "answered", "h2": "answered", "h3": "answered"}, reasons(report)
    assert named(report) == [(1, "h2")]


def test_the_same_report_comes_of_the_stored_evidence(
    hosts: Hosts, job: Path, tmp_path: Path
) -> None:
    cases = ("--hosts", "h[1,3-4]", "--ssh", "--python", python_on(tmp_path, h4="bare"))
    report, _ = dump(tmp_path, *cases, *config_for(tmp_path, hosts))
    folder = tmp_path / "state/reports" / report["id"]
    done = subprocess.run(
        [str(SCRIPTS / "mldebug"), "diagnose", "--json", str(folder)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    again = json.loads(done.stdout)

    assert named(report) == []  # h2 was not asked
    assert again["diagnosis"] == report["diagnosis"]
    assert again["nodes"] == report["nodes"]


# --- whoever asks, ends ----------------------------------------------------------------------------


def begun(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    """A dump that looks for half a minute."""
    with (folder / "dump.log").open("wb") as log:
        return subprocess.Popen(
            ["env", "--default-signal", str(SCRIPTS / "mldebug"), "dump", "--watch", "30s", *arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
            env=clean_environment(folder) | environment, start_new_session=True,
        )  # fmt: skip


def asked_on(words: list[str]) -> list[str]:
    """The captures that run on a host: `words` run ps there."""
    done = subprocess.run(
        [*words, "ps", "-e", "-o", "pid,args"], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    return [line for line in lines if "dump --send" in line or "py-spy" in line]


def left_alone(words: list[str]) -> None:
    """No rank of the host is stopped or traced."""
    script = "grep -lz train.py /proc/[0-9]*/cmdline | cut -d/ -f3 | xargs -I@ grep -hE '^(State|TracerPid)' /proc/@/status"
    done = subprocess.run([*words, "sh", "-c", script], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    assert {line for line in lines if line.startswith("Tracer")} == {"TracerPid:\t0"}
    assert not [line for line in lines if "(stopped)" in line or "tracing" in line]


def end_while_they_look(
    process: "subprocess.Popen[bytes]", number: signal.Signals, places: list[list[str]], log: Path
) -> None:
    """End a dump by a signal while a capture runs in all these places; none goes on, and no rank is held."""
    try:
        wait_for("all to look", lambda: all(map(asked_on, places)), 60)
        process.send_signal(number)
        assert process.wait(30) == 128 + number, log.read_text()
    finally:
        process.kill()
    wait_for("nobody to look any more", lambda: not any(map(asked_on, places)), 60)
    for words in places:
        left_alone(words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_is_ended_leaves_nothing_on_the_hosts(
    hosts: Hosts, job: Path, tmp_path: Path, number: signal.Signals
) -> None:
    three = [hosts.hosts[name].inside() for name in ("h1", "h2", "h3")]
    process = begun(tmp_path, "--hosts", "h[1-3]", "--ssh", *config_for(tmp_path, hosts))
    end_while_they_look(process, number, three, tmp_path / "dump.log")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_ended_leaves_the_slurm_job_as_it_was(
    cluster: Slurm, slurm_job: str, tmp_path: Path, number: signal.Signals
) -> None:
    nodes = [Host(name, one).inside() for name, one in cluster.daemons.items()]
    process = begun(tmp_path, "--slurm-job", slurm_job, **cluster.environment)
    end_while_they_look(process, number, nodes, tmp_path / "dump.log")
    wait_for("the step to be gone", lambda: "mldebug" not in steps(cluster), 60)
    assert cluster.run("squeue", "--noheader", "--format=%T").strip() == "RUNNING"


def steps(cluster: Slurm) -> str:
    """The steps that run, by name."""
    return cluster.run("squeue", "--noheader", "--steps", "--format=%j")


def test_a_master_connection_that_stays_behind_holds_nobody_up(
    hosts: Hosts, job: Path, tmp_path: Path
) -> None:
    """What many have in their ssh_config: the first connection leaves a process that holds our pipes."""
    ssh_config = hosts.folder / "ssh_config"
    before = ssh_config.read_text()
    ssh_config.write_text(
        f"{before}  ControlMaster auto\n  ControlPath {tmp_path}/%h-%p\n  ControlPersist 120\n"
        "  RequestTTY force\n"
    )
    began = time.monotonic()
    try:
        report, _ = dump(tmp_path, "--hosts", "h[1-3]", "--ssh", *config_for(tmp_path, hosts))
    finally:
        ssh_config.write_text(before)

    assert states(report) == {"h1": "answered", "h2": "answered", "h3": "answered"}, reasons(report)
    assert time.monotonic() - began < 40 * PATIENCE
    assert not list(tmp_path.glob("*-[0-9]*"))  # no master


def test_a_host_that_is_not_known_is_not_trusted_and_asks_nobody(
    hosts: Hosts, job: Path, tmp_path: Path
) -> None:
    ssh_config = hosts.folder / "ssh_config"
    before = ssh_config.read_text()
    ssh_config.write_text(f"Host h2\n  UserKnownHostsFile {tmp_path}/none\n{before}")
    try:
        report, _ = dump(tmp_path, "--hosts", "h[1-3]", "--ssh", *config_for(tmp_path, hosts))
    finally:
        ssh_config.write_text(before)

    assert states(report) == {"h1": "answered", "h2": "unable", "h3": "answered"}
    assert "Host key verification failed" in reasons(report)["h2"]
    assert not (tmp_path / "none").exists()
