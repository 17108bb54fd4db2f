"""The unit's sandbox on a booted Debian: it takes no right away that docs/rights.md promises, with and without drop-ins."""

import pytest

from system.machine import Machine, capabilities, wait_for
from system.page import COLUMNS, expected
from system.service import (
    CONFIG,
    EXAMINE,
    UNIT,
    UNIT_RIGHTS,
    add_drop_in,
    answers,
    hung_mounts,
    in_the_sandbox,
    main_pid,
)

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(900)]
DROP_IN_OF = {"+ `KILL`": "kill", "+ `DAC_OVERRIDE`": "dac-override", "+ `SYS_ADMIN`": "sys-admin"}


@pytest.mark.parametrize("name", DROP_IN_OF.values())
def test_the_service_runs_with_a_drop_in(service: Machine, name: str) -> None:
    add_drop_in(service, f"/etc/systemd/system/{UNIT}", name)
    service.run("systemctl", "daemon-reload")
    service.run("systemctl", "restart", UNIT)
    status = service.file(f"/proc/{main_pid(service)}/status").read_text()
    capability = name.upper().replace("-", "_")
    assert f"CapEff:\t{capabilities((*UNIT_RIGHTS, capability)):016x}" in status


@pytest.mark.parametrize("column", [name for name in COLUMNS if "unit" in name])
def test_the_sandbox_takes_no_right_away(service: Machine, stranger: str, column: str) -> None:
    """Inside the unit's sandbox every right reaches what docs/rights.md says of it."""
    program = f"/usr/bin/python3 /srv/system/rungs.py {stranger} /opt/mldebug/bin /tmp/stranger"
    service.run("rm", "-rf", f"{EXAMINE}.d")
    for name in [name for mark, name in DROP_IN_OF.items() if mark in column]:
        add_drop_in(service, EXAMINE, name)
    result = in_the_sandbox(service, program)
    page = expected(column)
    del result["pystack"], page["pystack"]  # it is not in the package
    assert result == page


def test_doctor_finds_nothing_missing_in_the_sandbox(service: Machine) -> None:
    result = in_the_sandbox(service, f"/opt/mldebug/bin/mldebug doctor --json --config {CONFIG}")
    rows = {check["name"]: check for check in result["checks"]}
    lacking = {name for name, row in rows.items() if row["state"] != "ok"}
    of_a_container = {"pid namespace", "clock"}
    assert result["works"]
    assert lacking <= {"capabilities", "kernel stacks", "pystack"} | of_a_container, rows
    assert "does not say" not in rows["clock"]["meaning"], "the system call filter lets it ask"


def test_it_starts_beside_a_mount_that_hangs(service: Machine) -> None:
    """Setting up the sandbox may not touch it: the node that needs the agent most is the one with a hung mount."""
    with hung_mounts(service, "/home/data", "/mnt/data"):
        service.run("systemctl", "restart", UNIT, seconds=20)
        assert wait_for("an answer", lambda: answers(service), 20)
