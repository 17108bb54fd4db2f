"""A Debian that really boots: debootstrap makes its files once, systemd-nspawn boots a throw-away copy of them."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shared.system.patience import PATIENCE

SUITE = "bookworm"
PACKAGES = "systemd,systemd-sysv,dbus,python3,procps,bindfs"
NAME = "mldebug-test"
BOOT_SECONDS = 60.0
ENTER = ("--all", "--wd=/")
TOOLS = ("debootstrap", "systemd-nspawn", "nsenter", "dpkg-deb")


def need(*programs: str) -> None:
    """Skip where this is not root, or a program is missing; in CI a missing program is a failure."""
    if os.geteuid() != 0:
        pytest.skip("this test needs root")
    missing = [program for program in programs if shutil.which(program) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"this test needs {', '.join(missing)}")
    if missing:
        pytest.skip(f"this test needs {', '.join(missing)}")


def wait_for(what: str, condition: Callable[[], Any], seconds: float) -> Any:
    """Poll until `condition()` is true and return its value; fail with the sentence `what`."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds * PATIENCE:g} s in vain: {what}"
        time.sleep(0.1)
    return value


@contextmanager
def base_files(suite: str = SUITE, packages: str = PACKAGES) -> Iterator[Path]:
    """The files of a small Debian; MLDEBUG_TEST_ROOTFS names a folder that keeps them for the next run."""
    kept = os.environ.get("MLDEBUG_TEST_ROOTFS", "")
    with ExitStack() as stack:
        making = tempfile.TemporaryDirectory(prefix="mldebug-rootfs-", dir=kept or None)
        folder = Path(stack.enter_context(making))
        base = Path(kept or folder) / f"{suite}-{zlib.crc32(packages.encode()):08x}"
        if not base.is_dir():
            fresh = folder / "fresh"
            more = [f"--include={packages}"] if packages else []
            argv = ["debootstrap", "--variant=minbase", *more, suite, str(fresh)]
            done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            fresh.rename(base)
        yield base


class Machine:
    """A booted container, entered through the namespaces of its first process."""

    def __init__(self, root: Path, leader: int, console: Path) -> None:
        self.root = root
        self.leader = leader
        self.console = console

    def run(self, *argv: str, check: bool = True, seconds: float = 60.0) -> str:
        """Run a program inside and return its stdout; a failure shows both streams."""
        done = subprocess.run(
            ["nsenter", "--target", str(self.leader), *ENTER, *argv], cwd="/", text=True,
            check=False, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"},
        )  # fmt: skip
        assert not check or done.returncode == 0, (argv, done.returncode, done.stdout, done.stderr)
        return done.stdout + ("" if check else done.stderr)

    def put(self, path: str, content: bytes | str) -> None:
        """Write a file inside, with its folders."""
        target = self.file(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def file(self, path: str) -> Path:
        """The place of an inside path, seen from outside; inside mounts are crossed."""
        return Path(f"/proc/{self.leader}/root") / path.lstrip("/")

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """What `systemctl show` says."""
        done = self.run("systemctl", "show", unit, "-p", ",".join(properties))
        return dict(line.split("=", 1) for line in done.splitlines())


@contextmanager
def booted(base: Path, binds: Mapping[Path, str]) -> Iterator[Machine]:
    """Boot a copy of `base`; `binds` are host folders that appear read-only inside. Nothing of it is left at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mldebug-machine-")))
        root = stack.enter_context(_copy(base, folder))
        process = stack.enter_context(_nspawn(root, folder / "console", binds))
        leader = wait_for("the first process", lambda: _first_child(process), 20)
        machine = Machine(root, leader, folder / "console")
        try:
            wait_for("the boot", lambda: _is_up(machine, process), BOOT_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{_why_not_up(machine)}") from None
        yield machine


@contextmanager
def _copy(base: Path, folder: Path) -> Iterator[Path]:
    """An overlay whose changes lie in memory."""
    layer, root = folder / "layer", folder / "root"
    for path in (layer, root):
        path.mkdir()
    with mounted("-t", "tmpfs", "tmpfs", str(layer)):
        for name in ("upper", "work"):
            (layer / name).mkdir()
        layers = f"lowerdir={base},upperdir={layer}/upper,workdir={layer}/work"
        with mounted("-t", "overlay", "overlay", "-o", layers, str(root)):
            (root / "etc/hostname").write_text(f"{NAME}\n")
            (root / "etc/hosts").write_text(f"127.0.0.1 localhost {NAME}\n")
            yield root


@contextmanager
def mounted(*arguments: str) -> Iterator[None]:
    """Mount something; the last argument is where."""
    subprocess.run(["mount", *arguments], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", arguments[-1]], check=True)


@contextmanager
def _nspawn(
    root: Path, console: Path, binds: Mapping[Path, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    argv = [
        *("systemd-nspawn", "--quiet", f"--directory={root}", f"--machine={NAME}", "--boot"),
        # what a node has and a container has not: the kernel log, FUSE, a clock to ask; and a network that is nobody else's
        *("--register=no", "--keep-unit", "--private-network", "--capability=CAP_SYSLOG"),
        *("--bind=/dev/fuse", "--bind=/dev/kmsg", "--system-call-filter=adjtimex clock_adjtime"),
        *(f"--bind-ro={outside}:{inside}" for outside, inside in binds.items()),
    ]
    before = _control_groups()
    with console.open("wb") as file:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        end_container(process)
        for group in sorted(_control_groups() - before, reverse=True):
            wait_for(f"{group} to be empty", partial(_removed, group), 10)


def end_container(process: "subprocess.Popen[bytes]") -> None:
    """Killing the first process of a pid namespace kills all of it."""
    leader = _first_child(process)
    for pid in (leader, process.pid):
        if pid and process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait(20)


def _first_child(process: "subprocess.Popen[bytes]") -> int:
    """The process that is the first one inside; 0 before it is there. nspawn makes it by way of one that ends soon."""
    below = [process.pid]
    while below:
        pid = below.pop()
        with suppress(OSError):
            if _number_inside(pid) == 1:
                return pid
            below += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return 0


def _number_inside(pid: int) -> int:
    """Its pid in a pid namespace below ours; 0 where it is in ours."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    numbers = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
    return int(numbers[-1]) if len(numbers) > 1 else 0


def _control_groups() -> set[Path]:
    """What nspawn makes beside our own control group, and leaves there."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = {name: path for _, name, path in (line.split(":", 2) for line in lines)}
    root = Path("/sys/fs/cgroup")
    places = [root / "systemd" / own.get("name=systemd", "/").lstrip("/")]
    places += [place / own.get("", "/").lstrip("/") for place in (root / "unified", root)]
    made = [place / name for place in places for name in ("payload", "supervisor")]
    return {Path(found) for place in made for found, _, _ in os.walk(place)}


def _removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _is_up(machine: Machine, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "it has ended"
    assert Path(f"/proc/{machine.leader}").exists(), "nspawn is left, its first process is not"
    state = machine.run("systemctl", "is-system-running", check=False).strip()
    return state in ("running", "degraded")


def _why_not_up(machine: Machine) -> str:
    """What it waits for, and the end of what it has printed. It boots in half a second: who waits long is stuck."""
    if not Path(f"/proc/{machine.leader}").exists():
        jobs = "its first process is gone"
    else:
        jobs = machine.run("systemctl", "list-jobs", "--no-pager", check=False)
        jobs += machine.run("ps", "axf", check=False)
    return f"{jobs}\n{machine.console.read_text(errors='replace')[-3000:]}"


def capabilities(names: Sequence[str]) -> int:
    """The mask that /proc/PID/status shows for these capabilities."""
    numbers = {"DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "KILL": 5, "SYS_PTRACE": 19}
    numbers |= {"SYS_ADMIN": 21, "SYSLOG": 34}
    return sum(1 << numbers[name] for name in names)
