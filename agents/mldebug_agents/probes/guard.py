"""Keeps probes away from jobs: finds processes on the GPUs and training jobs on this node, before a probe and while it runs."""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mldebug.core.errors import MldebugError
from mldebug.core.model import Job
from mldebug.core.redact import clean
from mldebug.hardware.gpu.readings import GpuReading, NodeGpus
from mldebug_agents.hardware.gpu.errors import GpuCrashedError, NoGpuLibraryError
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.file_locks import parse_locks

log = logging.getLogger("mldebug")

PATIENCE = 3  # looks in a row that may fail while a probe runs
WAIT = "wait until it has ended"
TELL = "mldebug doctor --gpus"


class GpuReader(Protocol):
    """Reads the GPUs of this node; implemented by `NodeReader`."""

    def full(self) -> NodeGpus:
        """A full reading of all GPUs."""
        ...


class JobFinder(Protocol):
    """Finds the training jobs on this node."""

    def find(self) -> Discovery:
        """Search all processes of this node once."""
        ...


class Guard:
    """Refuses to start or to continue a probe while another process uses this node for computing. One object for each probe."""

    def __init__(
        self, gpus: GpuReader, finder: JobFinder, uses_gpus: bool, proc: Path = Path("/proc")
    ) -> None:
        self._gpus, self._finder, self._proc = gpus, finder, proc
        self._uses_gpus = uses_gpus
        self._failures = 0

    def refuse(self) -> None:
        """Raise BusyError where a training job or another process on the GPUs uses this node, MldebugError where that
        cannot be found out.
        """
        for reason in self._strangers(None):
            raise BusyError(reason, WAIT)

    def look(self, session: int | None) -> str:
        """Why the probe must end now; "" while it may go on. `session`: the process session of the probe. Raises
        MldebugError after `PATIENCE` failed looks in a row; fewer count as nothing found.
        """
        try:
            reason = next(self._strangers(session), "")
        except MldebugError:
            self._failures += 1
            if self._failures >= PATIENCE:
                raise
            return ""
        self._failures = 0
        return reason

    def _strangers(self, session: int | None) -> Iterator[str]:
        for gpu in self._readings():
            yield from self._on(gpu, session)
        for job in self._finder.find().jobs:
            if not self._is_ours(job, session):
                pids = ", ".join(str(rank.pid) for rank in job.ranks[:4])
                yield f"the training job {job.name} runs on this node (pid {pids})"

    def _readings(self) -> tuple[GpuReading, ...]:
        try:
            full = self._full()
        except NoGpuLibraryError as error:
            if not self._uses_gpus:
                return ()
            raise MldebugError(f"who computes on the GPUs is not known: {error.message}") from None
        if full.lost and self._uses_gpus:
            raise MldebugError("a GPU does not answer", TELL)
        return full.gpus

    def _full(self) -> NodeGpus:
        """A vendor's library crashes now and then; the next question starts a new reader."""
        try:
            return self._gpus.full()
        except GpuCrashedError:
            return self._gpus.full()

    def _on(self, gpu: GpuReading, session: int | None) -> Iterator[str]:
        if gpu.processes is None:
            if self._uses_gpus:
                raise MldebugError(f"GPU {gpu.index} does not tell who computes on it", TELL)
            return
        unseen = 0  # of another PID namespace: one of them may be our rank as the driver sees it
        for process in gpu.processes:
            if not (self._proc / str(process.pid)).exists():
                unseen += 1
            elif session is None or _session(process.pid) != session:
                yield f"a process computes on GPU {gpu.index} (pid {process.pid})"
        if unseen > (session is not None):
            yield f"a process of another container computes on GPU {gpu.index}"

    def _is_ours(self, job: Job, session: int | None) -> bool:
        return session is not None and all(_session(rank.pid) == session for rank in job.ranks)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


class BusyError(MldebugError):
    """The node is in use by a job or by another probe; this is no fault of the node."""


LONGEST = 25 * 3600.0  # seconds that a probe runs: `--duration` may be a day
USUAL = "/tmp/mldebug-probe.lock"  # noqa: S108 - the one place that all users of a node share


# containers of one node share another place
LOCK = Path(os.environ.get("MLDEBUG_PROBE_LOCK") or USUAL)


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def only_probe(path: Path = LOCK) -> Iterator[None]:
    """A context that holds the lock file of this node; raises BusyError where another probe has it. The kernel releases it when
    the process dies.

    Any user can lock the file and keep it for ever, so the lock of a process that has run longer than any probe is ignored. Each probe
    therefore locks a second file as well, which keeps probes apart in that case, and when that process releases the first.
    """
    with contextlib.ExitStack() as held:
        for one in (path, path.with_name(f"{path.name}.2")):
            fd = _lock(one)
            if fd is not None:
                held.callback(os.close, fd)
        yield


def _lock(path: Path) -> int | None:
    """The descriptor that holds the lock; None where somebody has it who is no probe."""
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        inode = os.fstat(fd).st_ino
        os.close(fd)
        who, seconds = _holder(inode)
        if seconds > LONGEST:
            log.warning("%s holds %s for longer than a probe takes: it is passed over", who, path)
            return None
        wait = "wait for it: two at once would measure each other. Any user may hold the lock: where that is no probe, end it, or name another file in MLDEBUG_PROBE_LOCK"
        raise BusyError(f"another probe runs on this node ({who} holds {path})", wait) from None
    return fd


def _holder(inode: int) -> tuple[str, float]:
    """Who has a lock on a file with this inode, as far as /proc says it ("python3 (pid 12 of user bob)"), and the seconds that
    the process has run; 0 where it cannot be seen.
    """
    host = Host()
    pids = (lock.pid for lock in parse_locks(_locks()) if lock.inode == inode and not lock.blocked)
    pid = next((pid for pid in pids if pid > 0), None)
    stat = host.brief(pid) if pid is not None else None
    if stat is None:
        return "somebody in another container", 0.0
    user = host.user(host.status(stat.pid).uid)
    age = host.clock() - host.started_at(stat.start_ticks)
    return f"{clean(stat.name, 40)} (pid {stat.pid} of user {user})", age


def _locks() -> str:
    with contextlib.suppress(OSError):  # then nobody can be named
        return Path("/proc/locks").read_text(errors="replace")
    return ""


def _open(path: Path) -> int:
    """Opened for reading, which locks as well, so that it may belong to any user."""
    try:
        with contextlib.suppress(FileExistsError):
            made = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(made, 0o644)  # whatever our umask is: other users must be able to open it
            os.close(made)
        return os.open(path, _FLAGS)
    except OSError as error:
        there = os.path.lexists(path)
        way = (
            "remove it: it is no lock file"
            if there
            else "name a file in a folder that is there: MLDEBUG_PROBE_LOCK"
        )
        raise MldebugError(f"{path}: {error.strerror}", way) from None
