"""An agent in the background, as `mldebug up` starts one and `mldebug down` ends it. The file `up.pid` in its state dir says which
process it is, so that no other one is ever signalled.
"""

import contextlib
import fcntl
import os
import select
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

from mldebug_agents.system.procfs import parse_stat

PID_FILE = "up.pid"
LOG_FILE = "up.log"
FOLDER_MODE = 0o711  # as the agent makes it: everybody may pass through to its socket
MAX_LOG = 1 << 20  # bytes; a longer log is begun anew at the next start
MAX_TEXT = 4096


class BackgroundAgent(NamedTuple):
    """A process that `mldebug up` has started. `start_ticks`: its start in clock ticks since boot."""

    pid: int
    start_ticks: int


@contextmanager
def only_one(state_dir: Path) -> Iterator[Path]:
    """A context in which no other `up` works on this state dir; gives its pid file. Raises OSError."""
    state_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    file = state_dir / PID_FILE
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(handle)


def running(state_dir: Path) -> BackgroundAgent | None:
    """The agent that `mldebug up` started with this state dir; None unless that process still lives and belongs to this user.

    The file that names it must belong to this user as well, since the process that it names is ended by `mldebug down`.
    """
    with contextlib.suppress(OSError, ValueError):
        pid, ticks = _own_text(state_dir / PID_FILE).split()
        written = BackgroundAgent(int(pid), int(ticks))
        if _same(written) and os.stat(f"/proc/{written.pid}").st_uid == os.geteuid():
            return written
    return None


def launch(argv: Sequence[str], file: Path) -> None:
    """Start a program in a session of its own, with its output in `up.log` beside `file`, and write its pid there.

    Returns when the program runs, or has failed to start (the log says why). Call it before any thread is started.
    """
    log = _open_log(file.with_name(LOG_FILE))
    ready, written = os.pipe()
    first = os.fork()
    if first == 0:
        _detach(argv, file, log, written)
    os.close(written)
    os.close(log)
    os.waitpid(first, 0)
    with open(ready, "rb") as end:
        end.read()  # closed by exec or by the end of the process


def stop(agent: BackgroundAgent, seconds: float) -> bool:
    """Send SIGTERM to this very process and wait for its end. False where it still runs after `seconds`."""
    try:
        handle = os.pidfd_open(agent.pid)
    except ProcessLookupError:
        return True
    try:
        if not _same(agent):
            return True  # the number belongs to somebody else by now
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)


def last_lines(state_dir: Path, count: int = 5) -> list[str]:
    """The last lines of the log, the oldest first; none where it cannot be read."""
    try:
        with (state_dir / LOG_FILE).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_TEXT))
            return log.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _detach(argv: Sequence[str], file: Path, log: int, written: int) -> NoReturn:
    """Between two forks: the program is nobody's child, has no terminal and its pid is in the file before it begins."""
    try:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.set_inheritable(written, False)
        file.write_text(f"{os.getpid()} {_ticks(os.getpid())}\n")
        os.execv(argv[0], list(argv))  # noqa: S606 - an argument list, no shell
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as its parent
        os.write(2, f"{time.strftime('%FT%T')} cannot be started: {error}\n".encode())
    os._exit(1)


def _own_text(path: Path) -> str:
    """What stands in a plain file of this user; "" for any other. Raises OSError, ValueError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        state = os.fstat(handle)
        mine = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid()
        return os.read(handle, MAX_TEXT).decode() if mine else ""
    finally:
        os.close(handle)


def _open_log(path: Path) -> int:
    handle = os.open(
        path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    if os.fstat(handle).st_size > MAX_LOG:
        os.ftruncate(handle, 0)
    return handle


def _same(agent: BackgroundAgent) -> bool:
    return agent.start_ticks > 0 and _ticks(agent.pid) == agent.start_ticks


def _ticks(pid: int) -> int:
    """When it started; 0 where there is none, or it has ended and was not reaped."""
    try:
        found = parse_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return 0
    return 0 if found is None or found.state in "ZX" else found.start_ticks
