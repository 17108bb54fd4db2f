"""The helper process of `spawn`: forks, kills and reaps children on request, and never waits for any of them.

It is forked from the main process before anything can hang, has one thread, keeps nothing of what it inherited
but its control socket, and ends with the main process. Why a process of its own: a process that starts a program by
vfork or posix_spawn (as subprocess does) waits until the exec is through, for ever if the file lies on a hung
mount. The helper forks plainly, so only the new child waits.
"""

import contextlib
import ctypes
import errno
import gc
import os
import resource
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import msgspec

from mldebug_agents.system.child.gpu_driver import inside_gpu_driver

Workers = Mapping[str, Callable[[socket.socket], None]]

NEWS = struct.Struct(
    "<cq"
)  # on a status pipe: b"P" pid, b"E" errno (exec or fork failed), b"X" wait status
MAX_REQUEST = 1 << 20

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
SOONER = 300  # of the kernel's 1,000: a child with as much memory goes long before the agent
_OOM_SCORE = "/proc/self/oom_score_adj"
_MUTED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGALRM),
    *(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXFSZ, signal.SIGTTOU),
)


class HelperRequest(msgspec.Struct, omit_defaults=True):
    """A request of the main process to the helper, to start a program or a worker, or to kill one.

    File descriptors travel beside it. A program: [status, stdout, stderr] and, where it has one,
    its stdin; a worker: [status, its socket]; a kill: none, `number` says whom.
    """

    number: int
    argv: list[bytes] = []
    env: dict[str, bytes] | None = None  # None: the environment that the helper inherited
    worker: str = ""
    kill: bool = False
    leave: float = 0.0  # seconds that a worker has to take back what it has begun, where the main process is gone
    memory: int = (
        0  # bytes of its own that the program may have at most; 0: as many as this process
    )


def fork_helper(control: socket.socket, workers: Workers) -> int:
    """Fork the helper, which serves `control` until its other end closes. Returns its pid; raises OSError."""
    main = os.getpid()
    gc.collect()
    gc.freeze()  # a collection writes to each object that it looks at, and its page would be shared no longer
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, _MUTED
    )  # a Ctrl-C must not hit a helper half made
    try:
        pid = os.fork()
    finally:
        if os.getpid() == main:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid:
        return pid
    code = 1
    try:
        _leave_main(control)
        _Helper(control, workers).loop()
        code = 0
    finally:
        os._exit(code)


class _Helper:
    """The loop of the helper: requests come in by `control`, deaths by SIGCHLD."""

    def __init__(self, control: socket.socket, workers: Workers) -> None:
        self._control = control
        self._workers = workers
        self._pid = os.getpid()
        self._pids: dict[int, int] = {}  # request number -> pid of a living child
        self._children: dict[int, tuple[int, int]] = {}  # pid -> (request number, status pipe)
        self._leaves: dict[int, float] = {}  # pid -> seconds left to it without the main process
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def loop(self) -> None:
        """Serve until the main process hangs up or dies, then kill what can be killed: workers that have something to take back a while later."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        serving = True
        while serving:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    self._reap()
                else:
                    serving = self._handle_request()
        for pid in self._children.keys() - self._leaves.keys():
            _kill_group(pid)
        self._wait_for_leaving(poll)
        for pid in self._children:
            _kill_group(pid)

    def _wait_for_leaving(self, poll: select.poll) -> None:
        """Those that have something to take back know by their socket that the main process is gone."""
        poll.unregister(self._control)
        until = time.monotonic() + max(self._leaves.values(), default=0.0)
        while self._leaves and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self._reap()

    def _handle_request(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self._control, MAX_REQUEST, 4)
        if not packet:
            return False
        request = msgspec.msgpack.decode(packet, type=HelperRequest)
        if request.kill:
            if pid := self._pids.get(request.number):
                _kill_group(pid)
        else:
            self._start(request, fds)
        return True

    def _start(self, request: HelperRequest, fds: list[int]) -> None:
        status, *others = fds
        try:
            pid = os.fork()
        except OSError as error:
            _write_status(status, b"E", error.errno or errno.EAGAIN)
            _close(fds)
            return
        if pid == 0:
            self._become(request, status, others)
        _write_status(status, b"P", pid)
        self._children[pid] = (request.number, status)
        self._pids[request.number] = pid
        if request.leave:
            self._leaves[pid] = request.leave
        _close(others)

    def _become(self, request: HelperRequest, status: int, fds: list[int]) -> NoReturn:
        """Turn this freshly forked child into what was asked for."""
        code = 127
        try:
            if not request.worker:  # one of these sees it by itself, and may sit in a GPU driver
                _die_with(self._pid)
            os.setsid()
            _goes_before_the_agent()
            signal.set_wakeup_fd(-1)
            for number in (*_MUTED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            if request.worker:
                _keep_only({0, 1, 2, *fds})
                self._workers[request.worker](socket.socket(fileno=fds[0]))
                code = 0
            else:
                _execute(request, status, fds)
        except OSError as error:
            _write_status(status, b"E", error.errno or errno.EINVAL)
        except (ValueError, TypeError, LookupError):  # a NUL in an argument, an unknown worker
            _write_status(status, b"E", errno.EINVAL)
        finally:
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with contextlib.suppress(ChildProcessError):  # no children are left
            # WNOWAIT: while the zombie stands, its number cannot be reused, so what is left of its group
            # can be killed without hitting a stranger
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._forget_child(dead.si_pid)

    def _forget_child(self, pid: int) -> None:
        child = self._children.pop(pid, None)
        self._leaves.pop(pid, None)
        if child:
            with contextlib.suppress(OSError):  # nobody of its group is left
                os.killpg(pid, signal.SIGKILL)
        _, wait_status = os.waitpid(pid, 0)
        if child:
            number, status = child
            del self._pids[number]
            _write_status(status, b"X", wait_status)
            os.close(status)


def _leave_main(control: socket.socket) -> None:
    """Drop what the fork inherited: terminal, files, signal handlers, working directory."""
    gc.freeze()  # an inherited file object that is collected later would close a number that is ours by then
    os.setsid()
    for number in _MUTED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _keep_only({0, 1, 2, control.fileno()})
    os.chdir("/")
    # grandchildren come to us when their parent is killed; in a container pid 1 may be the agent, which reaps nobody
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _goes_before_the_agent() -> None:
    """Where memory runs out, the kernel is to end a child, which is replaced or missed, and neither the agent nor this helper."""
    with contextlib.suppress(OSError, ValueError), open(_OOM_SCORE, "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(1000, score + SOONER)))


def _die_with(parent: int) -> None:
    """End with the helper: one that is killed can end nobody, and may not have reported its youngest child yet."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _execute(request: HelperRequest, status: int, fds: list[int]) -> None:
    for target, fd in zip((1, 2, 0), fds, strict=False):
        os.dup2(fd, target)
    # a child that waits in exec for ever must not keep the pipes of others open
    _keep_only({0, 1, 2, status})
    os.set_inheritable(status, False)  # recv_fds ignores MSG_CMSG_CLOEXEC in Python 3.11
    if request.memory:
        resource.setrlimit(resource.RLIMIT_DATA, (request.memory, request.memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if request.env is None:
        os.execvp(request.argv[0], request.argv)  # noqa: S606 - an argument list, no shell
    os.execvpe(request.argv[0], request.argv, request.env)  # noqa: S606


def _kill_group(pid: int) -> None:
    if inside_gpu_driver(pid):
        return
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)  # it may not have made its own group yet
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _write_status(status: int, kind: bytes, value: int) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(status, NEWS.pack(kind, value))


def _keep_only(keep: set[int]) -> None:
    _close(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd not in keep)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):  # that of the listing itself, which is closed
            os.close(fd)
