"""Asks the reader child, waits for it no longer than agreed, and turns its errors into reasons in words."""

import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from posixpath import dirname
from typing import NamedTuple

import msgspec

from mldebug_agents.system.child.job_paths import OPERATOR, Rights
from mldebug_agents.system.child.link import ChildLink, WorkerStarter
from mldebug_agents.system.child.reader_child import (
    MAX_BODY,
    ReadAnswer,
    ReadOperation,
    ReadRequest,
)
from mldebug_agents.system.child.refusals import Refusal
from mldebug_agents.system.process.held_reads import Owner, process_owner
from mldebug_agents.system.spawn import ForkedWorker

# apart: a hung mount must not hide new jobs, nor a hung job all logs
MAX_STUCK_KERNEL, MAX_STUCK_FILES = 40, 24
# of one owner: who makes his own hang does not hide what others have
MAX_OF_ONE_KERNEL, MAX_OF_ONE_FILES = 10, 6
HASTY = 0.1  # seconds for files of /proc of an owner who has some that hang already
TOTAL = 4.0  # seconds for all paths of one question
# bytes of all answers to one question: environments have 6 MiB where their user wants
MAX_TOGETHER = 64 << 20
_PROCESS = re.compile(r"(.*/proc/\d+)(?:/|$)", re.DOTALL)
_ANSWERS = msgspec.msgpack.Decoder(ReadAnswer)
_REASONS = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.ESRCH: "no such process",
    errno.ELOOP: "a symbolic link, which is not followed",
}
_REFUSALS = {
    Refusal.NOT_REGULAR: "not a regular file",
    Refusal.TOO_LARGE: "larger than allowed",
    Refusal.NO_SUCH_LINE: "no such line",
    Refusal.NOT_A_FIFO: "not a FIFO",
    Refusal.NOT_THEIRS: "not of the rank's user",
    Refusal.NOT_A_SOCKET: "not a socket",
    Refusal.OTHER_PROCESS: "another process listens there",
    Refusal.NO_WORKER_SERVER: "no worker server answers there, or it refuses",
    Refusal.SHARED_PORT: "not asked: other processes answer at its port; give each rank a port of its own",
    Refusal.UNSEEN: "not asked: its open files may not be read, and so not whose answer it would be",
    Refusal.NO_RIGHTS: "not read: its user may not look into that process, or is not known",
}


class Unreadable(msgspec.Struct, frozen=True):
    """Why nothing was read. `stuck`: the path did not answer in time, which is evidence of a hanging file system."""

    reason: str
    stuck: bool = False
    errno: int | None = None


_NO_TIME = Unreadable("not read: no time left", errno=errno.EAGAIN)


class Tail(msgspec.Struct, frozen=True):
    """The end of a file, its whole size (bytes) and its modification time (unix)."""

    data: bytes
    size: int
    mtime: float


class FilePiece(msgspec.Struct, frozen=True):
    """Bytes of a file from an offset on, and what the file was at that moment: size (bytes), mtime (unix), identity."""

    data: bytes
    size: int
    mtime: float
    inode: int
    device: int
    mode: int = 0o100644
    uid: int = 0
    gid: int = 0


class SourceLines(NamedTuple):
    """Some lines of a source file; `first`: the number of the first of them."""

    first: int
    lines: tuple[str, ...]

    def at(self, line: int) -> str:
        """The text of the line with this number; "" where it is not among them."""
        index = line - self.first
        return self.lines[index] if 0 <= index < len(self.lines) else ""


def judge(answer: ReadAnswer, rights: Rights = OPERATOR) -> ReadAnswer | Unreadable:
    """The answer, or the reason in words why it is an error. `rights`: those that were used."""
    status = answer.status
    if status == 0:
        return answer
    if status > 0:
        return Unreadable(_REASONS.get(status) or os.strerror(status), errno=status)
    if status == Refusal.NOT_REACHED:
        whose = f"user {rights.uid} of the job" if rights.uid >= 0 else "the job's user"
        return Unreadable(f"{whose} may not read it", errno=errno.EACCES)
    return Unreadable(_REFUSALS[Refusal(status)])


def encode(path: str, answers: dict[str, ReadAnswer | Unreadable]) -> bytes | None:
    """The path as bytes. None where it cannot be a path; then `answers` gets the error."""
    with contextlib.suppress(UnicodeEncodeError):
        raw = os.fsencode(path)
        if b"\0" not in raw:
            return raw
    answers[path] = Unreadable("not a path")
    return None


class _StuckRead(NamedTuple):
    """A read that has not come back: the child that hangs in it, and whose path or process it is."""

    operation: ReadOperation
    worker: ForkedWorker
    owner: Owner | None  # None: the node's


class ReaderClient:
    """Has a reader child, and asks it; what hangs is left behind with its path, and a new child takes the next question.

    Any thread may call; calls take turns.
    """

    def __init__(self, spawner: WorkerStarter) -> None:
        self._spawner = spawner
        self._lock = threading.Lock()
        self._worker: ForkedWorker | None = None
        self._stuck: dict[str, _StuckRead] = {}

    def close(self) -> None:
        """Kill the reader child, and those that hang."""
        with self._lock:
            stuck = [one.worker for one in self._stuck.values()]
            for worker in filter(None, [self._worker, *stuck]):
                worker.kill()
            self._worker = None
            self._stuck.clear()

    @property
    def stuck(self) -> tuple[str, ...]:
        """The paths at which a reader child still hangs."""
        with self._lock:
            self._forgive()
            return tuple(self._stuck)

    def take_back(self, other: "ReaderClient") -> None:
        """Close another client; the paths at which its children hang count as stuck here until they are gone."""
        with other._lock, self._lock:
            for path, one in other._stuck.items():
                one.worker.end()
                self._stuck[path] = one
            other._stuck.clear()
        other.close()

    def ask(
        self, wanted: ReadRequest, paths: Sequence[str], *, timeout: float
    ) -> dict[str, ReadAnswer | Unreadable]:
        """Ask the same of all these paths. Every path has an entry in the result; `timeout`: seconds for each."""
        answers: dict[str, ReadAnswer | Unreadable] = {}
        with self._lock:
            until = time.monotonic() + TOTAL
            self._forgive()
            todo = {path: raw for path in paths if (raw := encode(path, answers)) is not None}
            while todo := {
                path: raw
                for path, raw in todo.items()
                if not self._is_answered(wanted, path, answers)
            }:
                if answers and (time.monotonic() >= until or _size(answers) >= MAX_TOGETHER):
                    return answers | dict.fromkeys(todo, _NO_TIME)
                try:
                    worker = self._worker = self._worker or self._spawner.fork_worker("reader")
                except OSError as error:
                    lost = Unreadable(f"not read: {error.strerror or error}", errno=error.errno)
                    return answers | dict.fromkeys(todo, lost)
                request = msgspec.structs.replace(wanted, paths=tuple(todo.values()))
                self._converse(worker, request, list(todo), (timeout, until), answers)
        return answers

    def _converse(
        self,
        worker: ForkedWorker,
        request: ReadRequest,
        paths: list[str],
        limits: tuple[float, float],
        answers: dict[str, ReadAnswer | Unreadable],
    ) -> None:
        """Ask for all paths and take answers until all are there, one fails to come, or the time of all is over."""
        timeout, until = limits
        link = ChildLink(worker.socket, _ANSWERS, max_body=MAX_BODY)
        size = _size(answers)
        for number, path in enumerate(paths):
            # it is not stuck, but we cannot wait for it, or not keep it
            if number and (time.monotonic() >= until or size >= MAX_TOGETHER):
                worker.kill()
                self._worker = None
                return
            try:
                if not number or self._stuck:
                    timeout = self._patience(path, request, limits[0])
                    worker.socket.settimeout(timeout)
                if not number:
                    link.send(request)
                answers[path] = answer = judge(link.receive(), request.rights)
                size += len(answer.data) if isinstance(answer, ReadAnswer) else 0
            except TimeoutError:
                answers[path] = Unreadable(f"timed out after {timeout:.1f} s", stuck=True)
                worker.hang_up()
                owner = _owner(path, request.rights)
                self._stuck[path] = _StuckRead(request.operation, worker, owner)
                self._worker = None
                return
            except OSError as error:
                answers[path] = Unreadable(
                    f"the reader process ended: {error}", errno=error.errno or errno.ECONNRESET
                )
                worker.kill()
                self._worker = None
                return

    def _patience(self, path: str, request: ReadRequest, timeout: float) -> float:
        """How long to wait for this path."""
        if not self._stuck or request.operation is not ReadOperation.KERNEL:
            return timeout
        owner = _owner(path, request.rights)
        again = owner is not None and any(one.owner == owner for one in self._stuck.values())
        return min(timeout, HASTY) if again else timeout

    def _is_answered(
        self, wanted: ReadRequest, path: str, answers: dict[str, ReadAnswer | Unreadable]
    ) -> bool:
        """Say whether the path has its answer; gives it one if it, or its folder, is stuck, or too many of its kind are."""
        if path in answers:
            return True
        if not self._stuck:
            return False
        kernel = wanted.operation is ReadOperation.KERNEL
        alike = [
            one for one in self._stuck.values() if (one.operation is ReadOperation.KERNEL) == kernel
        ]
        where = _folder(path, wanted.operation)
        if any(where == _folder(stuck, one.operation) for stuck, one in self._stuck.items()):
            answers[path] = Unreadable("an earlier read there has not come back", stuck=True)
        elif len(alike) >= (MAX_STUCK_KERNEL if kernel else MAX_STUCK_FILES):
            why = f"not read: {len(alike)} paths are stuck already"
            answers[path] = Unreadable(why, errno=errno.EAGAIN)
        else:
            owner = _owner(path, wanted.rights)
            count = sum(one.owner == owner is not None for one in alike)
            if count >= (MAX_OF_ONE_KERNEL if kernel else MAX_OF_ONE_FILES):
                why = f"not read: {count} paths of the same user are stuck already"
                answers[path] = Unreadable(why, errno=errno.EAGAIN)
        return path in answers

    def _forgive(self) -> None:
        for path, one in list(self._stuck.items()):
            if one.worker.gone():
                one.worker.kill()
                del self._stuck[path]


def _owner(path: str, rights: Rights) -> Owner | None:
    """Whose path it is: the owner of the process that it names, else of the one whose rights open it; None for the node's.

    A process that holds its files up does not hold up who it belongs to.
    """
    process = _PROCESS.match(path)
    if process is not None:
        return process_owner(process[1])
    if rights.uid < 0:
        return None
    return process_owner(f"{rights.root}/proc/{rights.pid}") or (rights.uid, "")


def _folder(path: str, operation: ReadOperation) -> str:
    """What hangs together: the files of a folder, those of a process; but its descriptors lead anywhere."""
    if operation is ReadOperation.LIST:
        return path
    return path if dirname(path).endswith("/fd") else dirname(path)


def _size(answers: Mapping[str, ReadAnswer | Unreadable]) -> int:
    """Bytes of all these answers together."""
    return sum(len(one.data) for one in answers.values() if isinstance(one, ReadAnswer))
