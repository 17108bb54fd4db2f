"""The service on a booted Debian: it reports a stranger's hung job, and survives what happens to services."""

import json
import time
from typing import Any

import pytest

from shared.system.patience import PATIENCE
from system.machine import Machine, wait_for
from system.service import (
    CONFIG,
    DROP_INS,
    STATE,
    TIMEOUT,
    UNIT,
    UNIT_RIGHTS,
    answers,
    incident,
    is_active,
    journal,
    main_pid,
    processes_of_the_agent,
    reports,
)

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(900)]


def test_a_stranger_s_hung_job_is_reported(service: Machine, hung_job: dict[str, Any]) -> None:
    wait_for("a report", lambda: reports(service), TIMEOUT + 30)
    (report,) = reports(service)
    named = [culprit["rank"] for culprit in report["diagnosis"]["culprits"]]
    assert (report["diagnosis"]["verdict"], named) == ("rank_waiting", [2]), report["diagnosis"]
    assert report["diagnosis"]["culprits"][0]["pid"] == hung_job["pid"]
    assert "slow_data_source" in json.dumps(report), report["diagnosis"]
    assert report["id"] == incident(service)


@pytest.mark.parametrize(
    ("user", "sees_it"), [("root", True), ("trainer", True), ("passerby", False)]
)
def test_status_shows_it_to_root_and_to_the_job_s_user_alone(
    service: Machine, hung_job: dict[str, Any], user: str, sees_it: bool
) -> None:
    known = wait_for("the incident", lambda: incident(service), TIMEOUT + 30)
    who = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")
    done = service.run(*who, "mldebug", "status", "--config", CONFIG, check=False)
    assert (known in done) is sees_it, done
    listed = service.run(*who, "ls", f"{STATE}/reports/{known}", check=False)
    assert ("report.json" in listed) is (user == "root"), listed


def test_dump_as_the_unit_s_user_names_the_rank(machine: Machine, hung_job: dict[str, Any]) -> None:
    rights = ",".join(f"+{name.lower()}" for name in UNIT_RIGHTS)
    done = machine.run(
        "setpriv", "--reuid=mldebug", "--regid=mldebug", "--clear-groups", "--no-new-privs",
        f"--inh-caps=-all,{rights}", f"--ambient-caps=-all,{rights}", f"--bounding-set=-all,{rights}",
        "mldebug", "dump", "--json", check=False,
    )  # fmt: skip
    diagnosis = json.loads(done[: done.rindex("}") + 1])["diagnosis"]
    assert [culprit["rank"] for culprit in diagnosis["culprits"]] == [2], diagnosis


def test_a_killed_agent_comes_back_with_the_same_incident(
    service: Machine, hung_job: dict[str, Any]
) -> None:
    before = wait_for("the incident", lambda: incident(service), TIMEOUT + 30)
    killed = main_pid(service)
    service.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", UNIT)
    wait_for("a new agent", lambda: main_pid(service) not in (0, killed), 20)
    assert wait_for("the incident", lambda: incident(service), TIMEOUT + 30) == before
    assert service.show(UNIT, "NRestarts")["NRestarts"] == "1"


def test_a_frozen_agent_is_restarted_by_the_watchdog(service: Machine) -> None:
    service.put(f"{DROP_INS}/quick.conf", "[Service]\nWatchdogSec=3s\n")
    service.run("systemctl", "daemon-reload")
    service.run("systemctl", "restart", UNIT)
    frozen = main_pid(service)
    service.run("kill", "-STOP", str(frozen))
    wait_for("a new agent", lambda: main_pid(service) not in (0, frozen), 30)
    assert "watchdog" in journal(service).lower()


def test_a_running_agent_outlives_many_watchdog_periods(service: Machine) -> None:
    service.put(f"{DROP_INS}/quick.conf", "[Service]\nWatchdogSec=2s\n")
    service.run("systemctl", "daemon-reload")
    service.run("systemctl", "restart", UNIT)
    started = main_pid(service)
    until = time.monotonic() + 8
    while time.monotonic() < until:
        assert main_pid(service) == started, journal(service)
        time.sleep(0.5)


def test_reload_keeps_the_process(service: Machine) -> None:
    before = main_pid(service)
    service.run("systemctl", "reload", UNIT)
    wait_for("an answer after the reload", lambda: answers(service), 10)
    assert main_pid(service) == before, journal(service)
    assert service.show(UNIT, "NRestarts")["NRestarts"] == "0"


def test_stop_takes_at_most_three_seconds_and_leaves_no_process(service: Machine) -> None:
    started = time.monotonic()
    service.run("systemctl", "stop", UNIT)
    assert time.monotonic() - started < 3.0 * PATIENCE
    assert processes_of_the_agent(service) == []
    assert service.show(UNIT, "Result")["Result"] == "success", journal(service)


def test_a_killed_agent_leaves_no_process(service: Machine) -> None:
    service.put(f"{DROP_INS}/once.conf", "[Service]\nRestart=no\n")
    service.run("systemctl", "daemon-reload")
    service.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", UNIT)
    wait_for("its children to go", lambda: processes_of_the_agent(service) == [], 5)


def test_a_stop_spares_what_the_agent_spared(service: Machine) -> None:
    """KillMode: as a dump inside a GPU driver would be, a process is left over; the next agent starts beside it."""
    leftover = "ExecStartPost=/usr/bin/setsid --fork /usr/bin/sleep 31415"
    service.put(f"{DROP_INS}/leftover.conf", f"[Service]\n{leftover}\n")
    service.run("systemctl", "daemon-reload")
    service.run("systemctl", "restart", UNIT)
    pid = service.run("pgrep", "--full", "sleep 31415").strip()
    service.run("rm", "-r", DROP_INS)
    service.run("systemctl", "daemon-reload")
    try:
        service.run("systemctl", "restart", UNIT)
        assert is_active(service)
        service.run("systemctl", "stop", UNIT)
        assert [line.split()[0] for line in processes_of_the_agent(service)] == [pid]
    finally:
        service.run("kill", "-KILL", pid)


def test_a_config_that_cannot_be_obeyed_is_one_clear_failure(service: Machine) -> None:
    service.put(CONFIG, "agnet: {}\n")
    service.run("systemctl", "restart", UNIT, check=False)
    shown = service.show(UNIT, "ActiveState", "NRestarts", "ExecMainStatus")
    assert shown == {"ActiveState": "failed", "NRestarts": "0", "ExecMainStatus": "2"}
    assert "agnet" in journal(service)
