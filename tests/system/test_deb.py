"""The Debian package on a booted Debian: it installs, starts by itself, is upgraded, and goes."""

import subprocess
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
    main_pid,
    processes_of_the_agent,
)

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(900)]
MAX_PACKAGE = 14 << 20  # bytes; 4 MiB of them are cryptography, for agents among themselves

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
