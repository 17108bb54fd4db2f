"""mldebug.service inside the machine: what it is called, what it says, what may be done to it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from system.machine import Machine, wait_for

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
UNIT, DROP_INS = "mldebug.service", "/etc/systemd/system/mldebug.service.d"
EXAMINE = "/run/systemd/system/examine.service"  # the unit with another program
CONFIG = "/etc/mldebug/mldebug.yaml"
STATE = "/var/lib/mldebug"
UNIT_RIGHTS = ("SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG")
TIMEOUT = 10
SETTINGS = f"agent: {{state_dir: {STATE}}}\nstall: {{timeout: {TIMEOUT}s, interval: 1s}}\n"


def main_pid(machine: Machine) -> int:
    """The agent's pid inside; 0 while it does not run."""
    return int(machine.show(UNIT, "MainPID")["MainPID"])


def is_active(machine: Machine) -> bool:
    return machine.show(UNIT, "ActiveState")["ActiveState"] == "active"


def journal(machine: Machine) -> str:
    return machine.run("journalctl", "--unit", UNIT, "--no-pager", "--lines=60", check=False)


def processes_of_the_agent(machine: Machine) -> list[str]:
    return machine.run("ps", "-u", "mldebug", "-o", "pid=,args=", check=False).splitlines()


def status(machine: Machine) -> dict[str, Any]:
    """What `mldebug status --json` says; its exit code 1 only tells of an open incident."""
    done = machine.run("sh", "-c", f"mldebug status --json --config {CONFIG} || test $? = 1")
    return dict(json.loads(done))


def answers(machine: Machine) -> bool:
    """Whether an agent runs and says something."""
    return bool(status(machine)["agent"])


def runs(machine: Machine) -> list[dict[str, Any]]:
    """The runs that the agent tells root of."""
    return list((status(machine)["agent"] or {}).get("runs", ()))


def incident(machine: Machine) -> str:
    return next((run["incident"] for run in runs(machine) if run.get("incident")), "")


def reports(machine: Machine) -> list[dict[str, Any]]:
    folder = machine.file(f"{STATE}/reports")
    # not what is still being written, under a name that begins with a dot
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[!.]*/report.json"))]


def add_drop_in(machine: Machine, unit: str, name: str) -> None:
    """As its own comment says."""
    example = DEPLOY / f"systemd/mldebug.service.d/{name}.conf.example"
    machine.put(f"{unit}.d/{name}.conf", example.read_bytes())


def in_the_sandbox(machine: Machine, program: str) -> dict[str, Any]:
    """Run a program once, with everything that the unit says, and return the JSON it prints."""
    unit = machine.file(f"/usr/lib/systemd/system/{UNIT}").read_text()
    unit = re.sub("(?m)^Type=.*", "Type=oneshot\nStandardOutput=truncate:/srv/said", unit)
    unit = re.sub("(?m)^ExecStart=.*", f"ExecStart={program}", unit)
    machine.put(EXAMINE, re.sub("(?m)^Restart=.*", "", unit))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "examine")
    answer: dict[str, Any] = json.loads(machine.file("/srv/said").read_text())
    return answer


@contextmanager
def hung_mounts(machine: Machine, *places: str) -> Iterator[None]:
    """FUSE mounts whose servers are stopped: whoever touches one waits for ever."""
    machine.run("mkdir", "-p", "/tmp/source", *places)
    units = [place.strip("/").replace("/", "-") for place in places]
    try:
        for unit, place in zip(units, places, strict=True):
            argv = ("bindfs", "-f", "/tmp/source", place)
            machine.run("systemd-run", "--quiet", "--collect", f"--unit={unit}", *argv)
            wait_for("the mount", partial(_is_mounted, machine, place), 10)
        for unit in units:
            machine.run("systemctl", "kill", "--signal=STOP", unit)
        yield
    finally:
        for unit in units:
            machine.run("systemctl", "kill", "--signal=KILL", unit, check=False)
        for place in places:
            machine.run("umount", "--lazy", place, check=False)
        machine.run("rmdir", *places)


def _is_mounted(machine: Machine, place: str) -> bool:
    return f" {place} " in machine.file("/proc/1/mounts").read_text()


def files(machine: Machine) -> list[str]:
    """Everything on the machine's disk, except where programs write for themselves."""
    closed = ("/proc", "/sys", "/dev", "/run", "/tmp", "/srv", "/root", "/var/log", "/var/lib/dpkg")
    prune = [word for path in closed for word in ("-path", path, "-prune", "-o")]
    return sorted(machine.run("find", "/", "-xdev", *prune, "-print").splitlines())
