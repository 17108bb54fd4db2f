"""Start programs that may never come back: nothing else in mldebug starts a process.

Make the `Spawner` first, before threads exist and before anything can hang: it forks the helper (`child/helper.py`) that
does all the forking later. The main process only waits on pipes, always with a deadline.

    main --(SOCK_SEQPACKET: request + pipe ends)--> helper --fork--> child --exec--> program
    main <--(one status pipe per child)------------ helper and child
"""

import contextlib
import errno
import itertools
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import msgspec

from mldebug_agents.system.child import reader_child
from mldebug_agents.system.child.children import ChildRegistry, command_words
from mldebug_agents.system.child.helper import MAX_REQUEST, HelperRequest, Workers, fork_helper
from mldebug_agents.system.child.leftovers import Leftover, children_of, survivors
from mldebug_agents.system.child.pipes import ChildProcess, OutputPipe
from mldebug_agents.system.child.programs import Completed, FakeSpawner, ProgramStarter
from mldebug_agents.system.child.structs import learn_structs
from mldebug_agents.system.child.worker import ForkedWorker
from mldebug_agents.system.process.held_reads import process_owner

__all__ = [
    "Completed",
    "FakeSpawner",
    "ForkedWorker",
    "OutputListener",
    "ProgramStarter",
    "Spawner",
]

MAX_ABANDONED = (
    16  # programs that are stuck at the processes of one owner, and as many that look at nobody's
)
MEMORY = 1 << 30
"""Bytes of its own that a program which reads another process may have: what it reads there a job has written, its symbols, too."""
GRACE = 0.5  # seconds in which a killed process should be dead
HEARING = 0.2  # seconds at most between two calls of `on_output`
WORKERS: Workers = {"reader": reader_child.serve}

OutputListener = Callable[[int | None, bytes], bool]  # pid, what stdout has brought; False: enough

_HUNG_UP = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)


class Spawner:
    """Runs programs through one helper process. Every method may be called from many threads at once."""

    def __init__(self, workers: Workers = WORKERS) -> None:
        """Fork the helper now. `workers` are the functions that `fork_worker` knows by name."""
        learn_structs()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST)
        self.helper_pid = fork_helper(theirs, workers)
        theirs.close()
        self._control.settimeout(1.0)
        self._numbers = itertools.count(1)
        self._roster = ChildRegistry()
        self._cleared = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def abandoned(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Programs that did not end when killed, as (pid, start in clock ticks since boot, argv),
        as long as they exist.
        """
        return self._roster.abandoned

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        """All children that could not be ended, those of an earlier agent included, as long as they exist."""
        return self._roster.leftovers

    @property
    def trouble(self) -> str:
        """Why no process can be started any more (the helper process is gone), as a sentence; "" while it lives."""
        poll = select.poll()
        if self._control.fileno() >= 0:
            poll.register(self._control, 0)
        return self._helper_gone_sentence() if poll.poll(0) else ""

    def inherit(self, leftovers: Sequence[Leftover]) -> None:
        """Add children that an earlier agent could not end. They are listed until they end."""
        self._roster.inherit(leftovers)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        max_output: int = 16 << 20,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        on_output: OutputListener | None = None,
        looks_at: int | None = None,
    ) -> Completed:
        """Run a program in a session of its own and in `/`, for at most `timeout` seconds. Never
        raises for a program that fails or cannot be started.

        When it is late or writes more than `max_output` bytes to stdout or stderr, its whole
        process group is killed. `env` replaces the environment. `stdin` is all that it can read.
        `on_output` is called in this thread with the pid and new bytes of stdout, at least every
        0.2 s (then b""); if it returns False, the program is ended. A program that hangs already is
        not started again. `looks_at`: the process that it reads: where programs that read processes of its
        owner are stuck, no more of them are started, and those of other owners are. It may have `MEMORY` of its own.
        """
        started = time.monotonic()
        words = tuple(argv)
        owner = None if looks_at is None else process_owner(f"/proc/{looks_at}")
        if any(one.words == command_words(words) for one in self.leftovers):
            reason = "the same program was started before and is stuck in the kernel"
            return Completed(argv=words, error=reason)
        if self._roster.count(owner) >= MAX_ABANDONED:
            at = " at processes of this owner" if owner else ""
            reason = (
                f"{MAX_ABANDONED} programs are stuck in the kernel{at} already: no more are started"
            )
            return Completed(argv=words, error=reason)
        try:
            with (
                OutputPipe(max_output) as out,
                OutputPipe(max_output) as err,
                _file_of(stdin) as source,
            ):
                memory = 0 if looks_at is None else MEMORY
                request = _program(next(self._numbers), words, env, memory)
                fds = (out.inlet, err.inlet, *source)
                child = self._launch(request, fds, words, owner)
                out.close_inlet()
                err.close_inlet()
                return self._supervise(child, (out, err), started, timeout, on_output)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return Completed(argv=words, error=reason, seconds=time.monotonic() - started)

    def fork_worker(self, name: str, leave: float = 0.0) -> ForkedWorker:
        """Fork a child that runs the worker function registered under this name. `leave`: seconds that it has to take back what it has begun
        after this process has ended, or has sent it SIGTERM at its own end.

        Raises OSError where the helper is gone.
        """
        ours, theirs = socket.socketpair()
        try:
            request = HelperRequest(next(self._numbers), worker=name, leave=leave)
            child = self._launch(request, (theirs.fileno(),), (name,))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ForkedWorker(child, ours, self._kill)

    def abandon(self, worker: ForkedWorker, words: str) -> None:
        """Give up a worker that does not come back. It is listed in `leftovers` under these words until it ends."""
        self._roster.abandon(worker.let_go(words))

    def close(self) -> tuple[Leftover, ...]:
        """End the helper process, which kills all its children.

        Waits about 1.5 s at most. Returns the children that could not be ended.
        """
        if self._control.fileno() < 0:
            return ()
        children = self._roster.named(children_of(self.helper_pid))
        with contextlib.suppress(OSError):  # the helper is gone
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._roster.close()
        self._bury_helper(time.monotonic() + 1.0)
        return (*self._roster.inherited(), *survivors(children, GRACE))

    def clear(self, spare: ForkedWorker | None = None) -> tuple[Leftover, ...]:
        """Kill all children but `spare`, and start no more. Those that have something to take back are asked to end.

        Waits half a second at most. Returns those that could not be ended.
        """
        self._cleared = True
        spared = spare.pid if spare else None
        living = self._roster.named(children_of(self.helper_pid))
        children = [one for one in living if one.pid != spared]
        pids = {one.pid for one in children}
        for child in self._roster.recent():
            if child.pid in pids and child.leaves:
                _ask_to_end(child.pid)
            elif child.pid in pids:
                self._kill(child)
        return (*self._roster.inherited(), *survivors(children, GRACE))

    def _bury_helper(self, deadline: float) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.helper_pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.002)

    def _launch(
        self,
        request: HelperRequest,
        fds: Sequence[int],
        words: tuple[str, ...],
        owner: object = None,
    ) -> ChildProcess:
        if self._cleared:
            raise ConnectionError("mldebug ends: it starts no more programs")
        outlet, inlet = os.pipe()
        os.set_blocking(outlet, False)
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(request)], [inlet, *fds])
        except OSError as error:
            os.close(outlet)
            raise (
                ConnectionError(self._helper_gone_sentence()) if error.errno in _HUNG_UP else error
            ) from None
        finally:
            os.close(inlet)
        child = ChildProcess(request.number, outlet, words, owner, leaves=request.leave > 0)
        self._roster.add(child)
        return child

    def _supervise(
        self,
        child: ChildProcess,
        streams: tuple[OutputPipe, OutputPipe],
        started: float,
        timeout: float,
        on_output: OutputListener | None,
    ) -> Completed:
        unwanted = not self._listen(child, streams, started + timeout, on_output)
        truncated = unwanted or any(stream.flooded for stream in streams)
        timed_out = not child.over and not truncated and time.monotonic() >= started + timeout
        lost = child.wait_status is None and not child.errno and not timed_out and not truncated
        if not child.over or lost:
            self._kill(child)
            self._follow(child, (), time.monotonic() + GRACE)
        stdout, stderr = (stream.drain() for stream in streams)
        completed = Completed(
            argv=child.argv,
            pid=child.pid,
            returncode=child.returncode,
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - started,
            timed_out=timed_out,
            truncated=any(stream.flooded for stream in streams),
            abandoned=not child.over and not lost,
            error=os.strerror(child.errno)
            if child.errno
            else self._helper_gone_sentence()
            if lost
            else "",
        )
        self._part(child, completed.abandoned)
        return completed

    def _listen(
        self,
        child: ChildProcess,
        streams: tuple[OutputPipe, OutputPipe],
        deadline: float,
        on_output: OutputListener | None,
    ) -> bool:
        """Follow to the end or the deadline; False where `on_output` wants it to end before."""
        if on_output is None:
            self._follow(child, streams, deadline)
            return True
        while not child.over and time.monotonic() < deadline and self.trouble == "":
            self._follow(child, streams, min(deadline, time.monotonic() + HEARING), once=True)
            if not on_output(child.pid, streams[0].news()):
                return False
            if any(stream.flooded for stream in streams):
                return True
        streams[0].drain()
        on_output(child.pid, streams[0].news())
        return True

    def _follow(
        self,
        child: ChildProcess,
        streams: Sequence[OutputPipe],
        deadline: float,
        *,
        once: bool = False,
    ) -> None:
        """Read until the child is over, a stream floods, the helper is gone, or the deadline passes; `once`: or something came."""
        poll = select.poll()
        poll.register(child.fd, select.POLLIN)
        poll.register(self._control, 0)  # only to see it hang up
        by_fd = {stream.fd: stream for stream in streams}
        for fd, stream in by_fd.items():
            if not stream.ended:
                poll.register(fd, select.POLLIN)
        while not child.over and (left := deadline - time.monotonic()) > 0:
            ready = [fd for fd, _ in poll.poll(math.ceil(min(left, 60.0) * 1000))]
            for stream in [by_fd[fd] for fd in ready if fd in by_fd]:
                stream.read()
                if stream.ended:
                    poll.unregister(stream.fd)  # or poll would return at once for ever
            child.update()
            if any(stream.flooded for stream in streams) or self._control.fileno() in ready:
                return
            if once and ready:
                return

    def _kill(self, child: ChildProcess) -> None:
        packet = msgspec.msgpack.encode(HelperRequest(child.number, kill=True))
        try:
            self._control.send(packet)
        except OSError:  # the helper is gone: its children are ours to end
            if child.pid and _leads_session(child.pid):
                with contextlib.suppress(OSError):  # it has ended
                    os.killpg(child.pid, signal.SIGKILL)

    def _part(self, child: ChildProcess, abandoned: bool) -> None:
        if abandoned:
            self._roster.abandon(child)
        else:
            child.close()

    def _helper_gone_sentence(self) -> str:
        return f"the helper process that starts programs (pid {self.helper_pid}) is gone; restart mldebug"


def _program(
    number: int, words: tuple[str, ...], env: Mapping[str, str] | None, memory: int
) -> HelperRequest:
    if not words:
        raise ValueError("no program was named")
    encoded = None if env is None else {name: os.fsencode(value) for name, value in env.items()}
    argv = [os.fsencode(word) for word in words]
    return HelperRequest(number, argv=argv, env=encoded, memory=memory)


@contextlib.contextmanager
def _file_of(stdin: bytes) -> Iterator[tuple[int, ...]]:
    """A file in memory from which a program reads: unlike a pipe it makes nobody wait. None for no stdin."""
    if not stdin:
        yield ()
        return
    with os.fdopen(os.memfd_create("mldebug-stdin"), "wb", buffering=0) as file:
        file.write(stdin)
        file.seek(0)
        yield (file.fileno(),)


def _leads_session(pid: int) -> bool:
    """Guard against a reused pid: every child of the helper leads its own session."""
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False  # it has ended


def _ask_to_end(pid: int) -> None:
    if _leads_session(pid):
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, signal.SIGTERM)
