"""A booted Debian with the package: built and debootstrapped once, booted for each file of tests."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from system.machine import TOOLS, Machine, base_files, booted, need, wait_for
from system.service import CONFIG, DEPLOY, DROP_INS, REPOSITORY, SETTINGS, UNIT, files, journal


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built from this checkout."""
    need(*TOOLS)
    folder = tmp_path_factory.mktemp("package")
    done = subprocess.run(
        [str(DEPLOY / "debian/build-deb"), str(folder)],
        check=False, capture_output=True, text=True, timeout=700,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def base() -> Iterator[Path]:
    """The files of a small Debian."""
    need(*TOOLS)
    with base_files() as folder:
        yield folder


@pytest.fixture(scope="module")
def machine(package: Path, base: Path) -> Iterator[Machine]:
    """A booted Debian with a user `trainer` who has PyTorch, the package installed, and a list of what was there before."""
    assert sys.version_info[:2] == (3, 11), "PyTorch of this Python must fit the container's 3.11"
    torch = find_spec("torch")
    assert torch is not None, "the job inside trains with PyTorch"
    assert torch.origin is not None
    binds = {
        Path(torch.origin).parents[1]: "/srv/site-packages",
        REPOSITORY / "tests/jobs": "/srv/jobs",
        REPOSITORY / "tests/system": "/srv/system",
        REPOSITORY / "agents/mldebug_training": "/srv/agents/mldebug_training",
    }
    with booted(base, binds) as one:
        for user in ("trainer", "passerby"):
            one.run("useradd", "--create-home", user)
        one.put("/srv/files-before", "\n".join(files(one)))
        one.put("/root/mldebug.deb", package.read_bytes())
        one.run("dpkg", "-i", "/root/mldebug.deb")
        yield one


@pytest.fixture
def service(machine: Machine) -> Iterator[Machine]:
    """The service runs with a short timeout, and with nothing that an earlier test left."""
    machine.run("rm", "-rf", DROP_INS)
    machine.put(CONFIG, SETTINGS)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "reset-failed", UNIT, check=False)
    machine.run("systemctl", "restart", UNIT)
    yield machine
    print(journal(machine))  # pytest shows it beside a failure


@pytest.fixture(scope="module")
def hung_job(machine: Machine) -> Iterator[dict[str, Any]]:
    """A real job of user `trainer`, rank 2 of which sleeps while the others wait."""
    machine.run("install", "-d", "-o", "trainer", "/srv/run", "/srv/run/events")
    torchrun = "exec python3 -m torch.distributed.run --standalone --nproc-per-node 4"
    options = "--events /srv/run/events --fault sleep --ranks 2 --after 20"
    machine.run(
        "systemd-run", "--quiet", "--unit=train", "--uid=trainer", "--working-directory=/srv/run",
        "-E", "PYTHONPATH=/srv/jobs/startup:/srv/site-packages", "-E", "OMP_NUM_THREADS=1", "-E", "HOME=/srv/run",
        "sh", "-c", f"{torchrun} /srv/jobs/train.py {options} >job.log 2>&1",
    )  # fmt: skip
    strike = machine.file("/srv/run/events/strike.2")
    log = machine.file("/srv/run/job.log")
    try:
        wait_for("rank 2 to sleep", lambda: strike.exists() or _over(machine, log), 120)
        yield {"struck": strike.stat().st_mtime, "pid": int(strike.read_text())}
    finally:
        machine.run("systemctl", "kill", "--signal=KILL", "train", check=False)


def _over(machine: Machine, log: Path) -> bool:
    state = machine.show("train", "ActiveState")["ActiveState"]
    assert state in ("active", "activating"), log.read_text(errors="replace")[-2000:]
    return False


@pytest.fixture(scope="module")
def stranger(machine: Machine) -> Iterator[str]:
    """The pid of a waiting process of user `trainer`, in a network namespace of its own."""
    machine.run("install", "-d", "-o", "trainer", "/tmp/stranger")
    machine.run(
        "systemd-run", "--quiet", "--collect", "--unit=stranger", "--uid=trainer", "-E", "RANK=2",
        "--property=PrivateNetwork=yes", "python3", "/srv/system/stranger.py", "/tmp/stranger",
    )  # fmt: skip
    wait_for("the stranger", machine.file("/tmp/stranger/ready").exists, 20)
    yield machine.show("stranger", "MainPID")["MainPID"]
    machine.run("systemctl", "stop", "stranger")
