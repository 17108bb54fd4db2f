"""Starts real training jobs, waits until they are really stuck, asks mldebug about them, and leaves nothing behind.

Nothing here sleeps and hopes: every wait polls for an event and fails with what it saw when its deadline passes.
"""

import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.system.patience import PATIENCE

JOBS = Path(__file__).parent.parent / "jobs"
SCRIPTS = Path(sysconfig.get_path("scripts"))
MARK = "MLDEBUG_TEST_JOB"  # in the environment of everything that a test starts
START_SECONDS = 150.0  # a 4-rank job needs 7 s on two idle cores
# of a job that only has to live: it leaves most of the cores to everybody else
PACE = ("--pace", "0.15")
STILL_ROUNDS = 5  # looks in a row at which nothing moved
LOOK_SECONDS, LOOK_AT_ONCE = 0.2, 0.05


# --- /proc ---------------------------------------------------------------------------------------


def state_of(pid: int) -> str:
    """Return the state letter of a process, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wchan_of(pid: int) -> str:
    """Return the kernel function the main thread waits in, "" when it runs or is gone."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def switches_of(pid: int) -> int:
    """Return how often the main thread has gone to sleep of its own accord, -1 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return int(text.partition("voluntary_ctxt_switches:")[2].split()[0])


def marked(mark: str) -> list[int]:
    """Return the pids of all living processes that carry the mark, zombies excluded."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in _pids() if wanted in _environ(pid) and state_of(pid) not in ("", "Z")]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def wait_for(what: str, condition: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
    """Poll until `condition()` is true and return its value; fail with the sentence `what`.

    What has not come for long is looked for less often: two cores are shared with the jobs that are waited for.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        if waited > seconds * PATIENCE:
            raise AssertionError(f"waited {seconds * PATIENCE:.0f} s in vain: {what}")
        time.sleep(min(max(LOOK_AT_ONCE, waited / 40), LOOK_SECONDS))
    return value


# --- users ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class User:
    """Who runs a job and the mldebug that looks at it; None stands for whoever runs the tests."""

    name: str | None = None

    def popen(self) -> dict[str, Any]:
        """Return the arguments that make subprocess start a program as this user."""
        if self.name is None:
            return {}
        entry = pwd.getpwnam(self.name)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give a directory to this user."""
        if self.name is not None:
            entry = pwd.getpwnam(self.name)
            os.chown(path, entry.pw_uid, entry.pw_gid)


# --- a job ---------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What to start: see the options of tests/jobs/train.py."""

    fault: str = "none"
    struck: tuple[int, ...] = (2,)
    world_size: int = 4
    after: int = 10
    options: tuple[str, ...] = ()
    launch: tuple[int, ...] | None = None  # these ranks by plain environment instead of torchrun
    stdin: str = "null"  # null or pipe (open, silent)
    stdout: str = "file"  # file or pipe (that nobody reads)
    server: int = 0  # the file system's server that the fault stops
    hook: bool = False  # under `mldebug run`
    user: User = field(default_factory=User)


class RunningJob:
    """A started job: its launcher, its ranks, its events."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.events = folder / "events"
        self.mark = uuid.uuid4().hex
        self.log = folder / "job.log"
        self.started: list[subprocess.Popen[bytes]] = []
        self.began = time.time()

    @property
    def pid(self) -> int:
        """The launcher, or the first rank of a job that has none."""
        return self.started[0].pid

    @property
    def ranks(self) -> dict[int, int]:
        """Rank -> pid of all ranks that have announced themselves."""
        return {int(p.suffix[1:]): int(p.read_text()) for p in self.events.glob("started.*[0-9]")}

    def step(self, rank: int) -> int:
        """The step a rank works on, -1 before the first."""
        try:
            return int((self.events / f"step.{rank}").read_text())
        except FileNotFoundError:
            return -1

    def has(self, event: str, rank: int) -> bool:
        """Tell whether a rank has announced an event."""
        return (self.events / f"{event}.{rank}").exists()

    # start

    def start(self) -> None:
        """Start the launcher, or the ranks one by one."""
        if self.plan.launch is None:
            count = str(self.plan.world_size)
            torchrun = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", count]
            self._spawn([*torchrun, *self._script()], {})
        else:
            port = str(free_port())
            for rank in self.plan.launch:
                self._spawn([sys.executable, "-u", *self._script()], self._plain(rank, port))

    def _plain(self, rank: int, port: str) -> dict[str, str]:
        size = str(self.plan.world_size)
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
        } | where

    def _script(self) -> list[str]:
        plan = self.plan
        ranks = ",".join(map(str, plan.struck))
        return [
            *(str(JOBS / "train.py"), "--events", str(self.events), "--fault", plan.fault),
            *("--ranks", ranks, "--after", str(plan.after), "--server-pid", str(plan.server)),
            *plan.options,
        ]

    def _spawn(self, argv: list[str], extra: dict[str, str]) -> None:
        own = {MARK: self.mark, "OMP_NUM_THREADS": "1"}
        environment = environment_of_jobs(self.folder) | own | extra
        if self.plan.hook:
            argv = [str(SCRIPTS / "mldebug"), "run", "--", *argv]
        stdin = subprocess.PIPE if self.plan.stdin == "pipe" else subprocess.DEVNULL
        with self.log.open("ab") as log:
            stdout = subprocess.PIPE if self.plan.stdout == "pipe" else log
            child = subprocess.Popen(
                argv, stdin=stdin, stdout=stdout, stderr=log, env=environment, cwd=self.folder,
                start_new_session=True, **self.plan.user.popen(),
            )  # fmt: skip
        self.started.append(child)

    # wait

    def wait_for_step(self, step: int) -> None:
        """Wait until every rank has got as far as `step`."""
        everyone = range(self.plan.world_size)
        self._wait(f"all ranks at step {step}", lambda: all(self.step(r) >= step for r in everyone))

    def wait_for_event(self, event: str, ranks: tuple[int, ...]) -> None:
        """Wait until these ranks have announced `event`."""
        self._wait(f"{event} of {ranks}", lambda: all(self.has(event, r) for r in ranks))

    def wait_until_stuck(self, busy: tuple[int, ...] = ()) -> None:
        """Wait until the fault has struck and no rank moves any more.

        A rank moves when its step changes or its main thread goes to sleep anew; the ranks in `busy` are judged by
        their step alone (they compute, or their wait polls).
        """
        expected = self.plan.launch or tuple(range(self.plan.world_size))
        self.wait_for_event("started", expected)
        if self.plan.fault != "none":
            self.wait_for_event("strike", self.plan.struck)
        still = 0
        before: Any = None
        deadline = time.monotonic() + START_SECONDS * PATIENCE
        while still < STILL_ROUNDS:
            now = {rank: self._motion(rank, pid, rank in busy) for rank, pid in self.ranks.items()}
            still = still + 1 if now == before else 0
            before = now
            assert time.monotonic() < deadline, f"the job still moves: {now}\n{self.tail()}"
            time.sleep(LOOK_SECONDS)

    def _motion(self, rank: int, pid: int, busy: bool) -> tuple[int, int, str]:
        return (
            (self.step(rank), 0, "") if busy else (self.step(rank), switches_of(pid), wchan_of(pid))
        )

    def _wait(self, what: str, condition: Callable[[], Any]) -> None:
        def alive_or_done() -> bool:
            if condition():
                return True
            codes = [child.poll() for child in self.started]
            assert any(code is None for code in codes), f"the job ended ({codes})\n{self.tail()}"
            return False

        try:
            wait_for(what, alive_or_done)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None

    def tail(self) -> str:
        """Return the end of the job's output."""
        return self.log.read_text(errors="replace")[-3000:]

    # end

    def end(self) -> None:
        """Kill whatever carries the job's mark, however it sits, and reap what is ours.

        A rank that reads from a stopped file system dies only when the server goes on.
        """
        deadline = time.monotonic() + 90  # a machine full of hung file systems lets them go slowly
        while pids := marked(self.mark):
            if self.plan.server:  # at every turn: a rank that just strikes would stop it again
                send_signal(self.plan.server, signal.SIGCONT)
            for pid in pids:
                for number in (signal.SIGCONT, signal.SIGKILL):
                    send_signal(pid, number)
            assert time.monotonic() < deadline, (
                f"processes survive SIGKILL: {[(pid, state_of(pid), wchan_of(pid)) for pid in pids]}"
            )
            time.sleep(0.05)
        for pid in self.ranks.values() if self.plan.hook else ():
            for path in Path("/dev/shm").glob(f"mldebug-{pid}-*"):
                path.unlink()
        for child in self.started:
            child.wait(timeout=30)
            for pipe in (child.stdin, child.stdout):
                if pipe:
                    pipe.close()


def send_signal(pid: int, number: int) -> None:
    """Send it unless the process is gone by now."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def folder_for(user: User) -> Iterator[Path]:
    """A folder that this user may write: pytest's own temporary folders are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    (folder / "events").mkdir()
    for path in (folder, folder / "events"):
        user.own(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def running(plan: Plan, folder: Path | None = None) -> Iterator[RunningJob]:
    """Start a job; at the end nothing of it is left."""
    with folder_for(plan.user) as own:
        job = RunningJob(plan, folder or own)
        try:
            job.start()
            yield job
        finally:
            job.end()


def clean_environment(home: Path) -> dict[str, str]:
    """Return an environment without anything that belongs to another job."""
    keep = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "PYTHONPATH")
    kept = {name: os.environ[name] for name in keep if name in os.environ}
    return kept | {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}


def environment_of_jobs(home: Path, paths: str | None = None) -> dict[str, str]:
    """The same for ranks and their launcher, which import as little of PyTorch as they can: tests/jobs/startup.

    Not for what compiles: the hook then begins before there is a compiler that it could tell to leave it out. `paths` in place
    of our PYTHONPATH.
    """
    clean = clean_environment(home)
    after = clean.get("PYTHONPATH") if paths is None else paths
    return clean | {"PYTHONPATH": os.pathsep.join(filter(None, (str(JOBS / "startup"), after)))}


def light_python(folder: Path, fault: str = "") -> Path:
    """The same for what keeps no PYTHONPATH: a Python whose processes have it, and run `fault` as they start."""
    site, python = folder / "site", folder / "python"
    if not site.exists():
        site.mkdir()
        startup = (JOBS / "startup/sitecustomize.py").read_text()
        (site / "sitecustomize.py").write_text(startup + textwrap.dedent(fault))
        python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
    return python


OUTSIDE = (20_000, 32_000)  # of what the kernel gives to whoever asks for any port


def free_port() -> int:
    """Return a TCP port that was free a moment ago, and that no connection of anybody gets by chance until it is used."""
    while True:
        port = random.randrange(*OUTSIDE)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


# --- a file system that hangs ----------------------------------------------------------------------


@contextmanager
def fuse_mount(folder: Path, user: User) -> Iterator[tuple[Path, int]]:
    """Mount a copy of a folder through bindfs; yields a file on it and the pid of its server."""
    source, mount = folder / "source", folder / "mount"
    for path in (source, mount):
        path.mkdir()
        user.own(path)
    for name in ("shard-0", "shard-1"):
        (source / name).write_text("data " * 10_000)
    argv = ["bindfs", "-f", "--no-allow-other", str(source), str(mount)]
    server = subprocess.Popen(argv, **user.popen())
    try:
        wait_for("the mount", lambda: _mounted(mount) or server.poll() is not None, 20)
        assert server.poll() is None, f"bindfs ended; may {user.name or 'root'} open /dev/fuse?"
        yield mount / "shard-0", server.pid
    finally:
        for number in (signal.SIGCONT, signal.SIGTERM):
            send_signal(server.pid, number)
        server.wait(timeout=20)
        if _mounted(mount):
            subprocess.run(["fusermount3", "-u", "-z", str(mount)], check=True, **user.popen())


def _mounted(mount: Path) -> bool:
    return f" {mount} " in Path("/proc/self/mounts").read_text()


# --- a pretended GPU runtime ------------------------------------------------------------------------


def build_fake_cuda(folder: Path) -> Path:
    """Compile tests/jobs/fake_cuda.c; returns the shared object."""
    library = folder / "libcudart.so"
    argv = ["gcc", "-O1", "-g", "-fPIC", "-fno-omit-frame-pointer", "-shared", "-o", str(library)]
    subprocess.run([*argv, str(JOBS / "fake_cuda.c")], check=True)
    return library


# --- mldebug -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What one `mldebug` command said."""

    code: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        """The report that `--json` printed."""
        try:
            value: dict[str, Any] = json.loads(self.stdout)
        except ValueError:
            raise AssertionError(
                f"no JSON, exit {self.code}: {self.stdout!r} {self.stderr}"
            ) from None
        return value


MLDEBUG = (str(SCRIPTS / "mldebug"),)
UNATTACHED = (sys.executable, str(Path(__file__).with_name("training") / "unattached.py"))


def mldebug(
    job: RunningJob, *arguments: str, seconds: float = 120.0, program: Sequence[str] = MLDEBUG
) -> Answer:
    """Run the real command line as the user of the job."""
    done = subprocess.run(
        [*program, "--debug", *arguments],
        check=False, capture_output=True, text=True, timeout=seconds, cwd=job.folder,
        env=clean_environment(job.folder), **job.plan.user.popen(),
    )  # fmt: skip
    return Answer(done.returncode, done.stdout, done.stderr)
