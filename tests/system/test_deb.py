"""The Debian package on a booted Debian: it installs, starts by itself, is upgraded, and goes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.machine import Machine, capabilities, wait_for
from system.service import (
    CONFIG,
    STATE,
    UNIT,
    UNIT_RIGHTS,
    files,
    is_active,
    journal,
    main_pid,
    processes_of_the_agent,
)

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(900)]
# Bytes; 4 MiB of them are cryptography, for agents among themselves, and 0.2 MiB the pages of docs/
MAX_PACKAGE = 16 << 20
DOCS = "/usr/share/doc/mldebug/"

PROBE = "mldebug-probe"
PYTHON = """#!/bin/sh
grep CapEff /proc/self/status >/tmp/capabilities
PYTHONPATH=/srv/site-packages exec /usr/bin/python3 "$@"
"""
PROBE_SETTINGS = """[Service]
Environment=PROBE_PYTHON=/srv/python
Environment="PROBE_WORDS=--device cpu --ops all_reduce --sizes 1MiB"
"""
DUE = "[Timer]\nOnCalendar=\nOnActiveSec=0\nRandomizedDelaySec=0\nAccuracySec=100ms\n"
BUSBW = "mldebug_probe_busbw_bytes_per_second{"
METRICS = ("python3", "-c", "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9753/metrics').read().decode())")  # fmt: skip

ACCOUNTS = {
    f"/etc/{name}{mark}" for name in ("passwd", "group", "shadow", "gshadow") for mark in "-"
}


def test_the_package_is_small_and_has_no_torch(package: Path) -> None:
    listed = subprocess.run(
        ["dpkg-deb", "--contents", str(package)], check=True, capture_output=True, text=True
    ).stdout
    assert package.stat().st_size < MAX_PACKAGE
    assert "site-packages/mldebug_agents/" in listed
    assert "site-packages/torch/" not in listed
    for page in ("README.md", "docs/verdicts.md", "docs/runbooks/MldebugRunStalled.md"):
        assert f" .{DOCS}{page}\n" in listed
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", "/usr/share/bash-completion/completions/mldebug"),
        ("zsh", "/usr/share/zsh/vendor-completions/_mldebug"),
        ("fish", "/usr/share/fish/vendor_completions.d/mldebug.fish"),
    ],
)
def test_completion_is_where_the_shell_looks(machine: Machine, shell: str, place: str) -> None:
    assert machine.file(place).read_text() == machine.run("mldebug", "completion", shell)


def test_it_starts_by_itself_as_its_user_with_three_capabilities(machine: Machine) -> None:
    assert machine.run("systemctl", "is-enabled", UNIT).strip() == "enabled"
    wait_for("READY", lambda: is_active(machine), 20)
    shown = machine.show(UNIT, "User", "Type", "WatchdogUSec", "NRestarts", "KillMode")
    assert shown == {
        "User": "mldebug", "Type": "notify", "WatchdogUSec": "30s", "NRestarts": "0", "KillMode": "process",
    }  # fmt: skip
    status = machine.file(f"/proc/{main_pid(machine)}/status").read_text()
    assert f"CapEff:\t{capabilities(UNIT_RIGHTS):016x}" in status
    assert f"CapBnd:\t{capabilities(UNIT_RIGHTS):016x}" in status
    assert "NoNewPrivs:\t1" in status


def test_an_administrator_s_disable_survives_an_upgrade(service: Machine) -> None:
    service.run("systemctl", "disable", "--now", UNIT)
    service.run("dpkg", "-i", "--force-confold", "/root/mldebug.deb")
    assert service.run("systemctl", "is-enabled", UNIT, check=False).startswith("disabled")
    service.run("systemctl", "enable", UNIT)


@pytest.fixture
def probed(service: Machine) -> Iterator[Machine]:
    """The probe's timer is due at once, and measures two ranks of gloo; its Python tells which capabilities it has."""
    service.put("/srv/python", PYTHON)
    service.run("chmod", "755", "/srv/python")
    service.put(f"/etc/systemd/system/{PROBE}.service.d/test.conf", PROBE_SETTINGS)
    service.put(f"/etc/systemd/system/{PROBE}.timer.d/test.conf", DUE)
    service.run("systemctl", "daemon-reload")
    yield service
    service.run("systemctl", "stop", f"{PROBE}.timer", f"{PROBE}.service")


def probe_by_timer(machine: Machine) -> str:
    """Let the timer start the unit, and return what that has said until its end, which must be a good one."""
    began = machine.show(PROBE, "ExecMainStartTimestampMonotonic")
    machine.run("systemctl", "start", f"{PROBE}.timer")

    def over() -> bool:
        state = machine.show(PROBE, "ActiveState")["ActiveState"]
        started = machine.show(PROBE, "ExecMainStartTimestampMonotonic") != began
        return started and state in ("inactive", "failed")

    wait_for("the probe", over, 120)
    machine.run("systemctl", "stop", f"{PROBE}.timer")
    done = machine.run("journalctl", "--unit", PROBE, "--no-pager", "--output=cat")
    assert machine.show(PROBE, "Result")["Result"] == "success", done
    return done


def is_exposed(machine: Machine) -> bool:
    """Whether Prometheus would get the figure."""
    lines = [one for one in machine.run(*METRICS).splitlines() if one.startswith(BUSBW)]
    return any('op="all_reduce"' in one and 'bytes="1048576"' in one for one in lines)


def history(machine: Machine) -> list[int]:
    """How many runs each series has, as root is told."""
    done = machine.run("mldebug", "probe", "history", "--state-dir", STATE, "--json")
    return [one["runs"] for one in json.loads(done)]


def test_a_probe_by_the_timer_joins_the_history_that_the_agent_tells(probed: Machine) -> None:
    assert (
        probed.run("systemctl", "is-enabled", f"{PROBE}.timer", check=False).strip() == "disabled"
    )
    result = probe_by_timer(probed)
    assert "all_reduce" in result, result
    assert history(probed) == [1]
    assert "inside" not in journal(probed), "the agent takes no probe for a job"
    owner = probed.run("stat", "--format=%U %a", f"{STATE}/probes.sqlite", STATE).split("\n")
    assert owner[:2] == ["mldebug 600", "mldebug 711"]
    assert "CapEff:\t0000000000000000" in probed.file("/tmp/capabilities").read_text()
    wait_for("the agent's metric", lambda: is_exposed(probed), 30)


def test_beside_a_job_the_timer_measures_nothing_and_is_no_failure(probed: Machine) -> None:
    before = history(probed)
    probed.put("/srv/light/libtorch_cpu.so", b"\x7fELF" + bytes(8192))
    ranks = [f"light-{rank}" for rank in range(2)]
    try:
        for rank, unit in enumerate(ranks):
            probed.run(
                "systemd-run", "--quiet", "--collect", f"--unit={unit}", "--uid=trainer",
                *("-E", f"RANK={rank}", "-E", f"LOCAL_RANK={rank}", "-E", "WORLD_SIZE=2", "-E", "LOCAL_WORLD_SIZE=2"),
                *("-E", "MASTER_ADDR=127.0.0.1", "-E", "MASTER_PORT=29500"),
                "python3", "/srv/jobs/light.py", "/srv/light/libtorch_cpu.so",
            )  # fmt: skip
        result = probe_by_timer(probed)
    finally:
        probed.run("systemctl", "stop", *ranks, check=False)
    assert "the training job light.py runs on this node" in result
    assert "no failure, because of --if-idle" in result
    assert history(probed) == before


def test_removal_stops_it_and_a_purge_leaves_nothing(service: Machine) -> None:
    service.run("dpkg", "--remove", "mldebug")
    assert processes_of_the_agent(service) == []
    assert service.file(CONFIG).exists(), "a removal keeps the configuration"
    assert service.file(STATE).exists(), "and the reports"
    service.run("dpkg", "--purge", "mldebug")
    before = set(service.file("/srv/files-before").read_text().splitlines())
    left = set(files(service)) - before
    assert left <= ACCOUNTS, left
    assert "mldebug" not in service.file("/etc/passwd").read_text()
    assert service.run("systemctl", "status", UNIT, check=False).count("could not be found") == 1
