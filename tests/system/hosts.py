"""Several hosts on one machine: each has its own name and processes; files and the loopback interface are shared.

A daemon that runs as a host's first process ends with all that it has started when its `unshare` is killed.
"""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from processes.harness import JOBS, MARK, environment_of_jobs, free_port, marked, wait_for
from shared.system.own_names import own_name
from shared.system.patience import PATIENCE

MASTER = "master"  # resolves on every host


def on_host(name: str, folder: Path, argv: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """The words that run a program as the first process of a host of this name."""
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {MASTER} {' '.join(sorted({name, *others}))}\n")
    setting = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
    return [
        *("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--uts"),
        *("sh", "-c", setting, "host", name, str(hosts), *argv),
    ]


class Host:
    """One host that runs."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.process = process

    @property
    def pid(self) -> int:
        """Its first process, as it is known outside."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(text.split()[0])

    def inside(self, *argv: str) -> list[str]:
        """The words that run a program there."""
        spaces = ("--pid", "--mount", "--uts")
        return ["nsenter", f"--target={self.pid}", *spaces, *argv]


class Hosts:
    """Hosts with sshd, and how to reach them."""

    def __init__(self, folder: Path, hosts: dict[str, Host]) -> None:
        self.folder = folder
        self.hosts = hosts

    @property
    def options(self) -> str:
        """For ssh."""
        return f"-F {self.folder}/ssh_config"

    def names(self) -> str:
        """All of them, as a person writes them."""
        return f"h[1-{len(self.hosts)}]"


@contextmanager
def ssh_hosts(count: int) -> Iterator[Hosts]:
    """`h1`, `h2` and so on, each with an sshd on a port of the loopback interface; root's key opens all."""
    folder = Path("/run") / own_name()
    folder.mkdir(parents=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    names = [f"h{number + 1}" for number in range(count)]
    ports = {name: free_port() for name in names}
    _keys(folder, ports)
    try:
        with ExitStack() as stack:
            yield Hosts(folder, {n: stack.enter_context(_host(n, folder, names)) for n in names})
    finally:
        shutil.rmtree(folder)


def _keys(folder: Path, ports: dict[str, int]) -> None:
    for name in ("host", "user", "stranger"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / f"{name}_key")]
        subprocess.run(argv, check=True)
    public = (folder / "host_key.pub").read_text()
    known = "".join(f"[127.0.0.1]:{port} {public}" for port in ports.values())
    (folder / "known_hosts").write_text(known)
    places = "".join(
        f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" for name, port in ports.items()
    )
    (folder / "ssh_config").write_text(
        f"{places}Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  LogLevel ERROR\n"
    )
    for name, port in ports.items():
        (folder / f"sshd-{name}.conf").write_text(
            f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host_key\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/user_key.pub\nPidFile none\nPermitRootLogin yes\n"
            f"Banner {folder}/banner\nMaxStartups 100\n"
        )
    (folder / "banner").write_text(
        "*** nodes are for authorised training only ***"
    )  # without an end of line


@contextmanager
def _host(name: str, folder: Path, names: Sequence[str]) -> Iterator[Host]:
    argv = ["/usr/sbin/sshd", "-D", "-e", "-f", f"{folder}/sshd-{name}.conf"]
    with (folder / f"sshd-{name}.log").open("ab") as log:
        process = subprocess.Popen(
            on_host(name, folder, argv, names), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    file = folder / f"sshd-{name}.log"
    try:
        wait_for("sshd", lambda: "listening" in file.read_text() or process.poll() is not None, 20)
        assert process.poll() is None, file.read_text()
        yield Host(name, process)
    finally:
        process.kill()
        process.wait(10)


@contextmanager
def job_on(
    hosts: Sequence[Host],
    folder: Path,
    each: int,
    *options: str,
    first_alone: bool = False,
    master: str = MASTER,
    environ: Mapping[str, str] = {},
    script: str = "",
    before: Sequence[str] = (),
) -> Iterator[Path]:
    """A real gloo job, `each` ranks on each host; yields its events. At the end nothing of it is left.

    `script`: in place of train.py, one that writes no events; it prints into job.log beside them.

    `first_alone`: only rank 0 has a log. `before`: words in front of each rank's, such as `mldebug run --`.
    """
    mark, port, started = uuid.uuid4().hex, str(free_port()), []
    events = folder / "events"
    events.mkdir(parents=True)
    world = len(hosts) * each
    own = {
        **environ,
        MARK: mark,
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    try:
        for rank in range(world):
            of_rank = {
                "RANK": rank,
                "WORLD_SIZE": world,
                "LOCAL_RANK": rank % each,
                "LOCAL_WORLD_SIZE": each,
            }
            environment = own | {name: str(value) for name, value in of_rank.items()}
            first = () if script else ("--events", str(events))
            argv = [
                *before,
                sys.executable,
                "-u",
                str(JOBS / (script or "train.py")),
                *first,
                *options,
            ]
            log = Path(os.devnull) if first_alone and rank else folder / "job.log"
            started.append(_start(hosts[rank // each].inside(*argv), folder, environment, log))
        yield events
    finally:
        end_marked(mark)
        for one in started:
            one.wait(20)


def _start(
    argv: Sequence[str], folder: Path, environment: dict[str, str], file: Path
) -> "subprocess.Popen[bytes]":
    with file.open("ab") as log:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True,
            env=environment_of_jobs(folder) | environment,
        )  # fmt: skip


def end_marked(mark: str) -> None:
    """Kill whatever carries the mark."""
    deadline = time.monotonic() + 30 * PATIENCE
    while pids := marked(mark):
        for pid in pids:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        assert time.monotonic() < deadline, f"processes survive SIGKILL: {pids}"
        time.sleep(0.05)
