"""Turns the answers of the reader child into values, and its errors into reasons in words."""

import contextlib
import errno
import os
from typing import NamedTuple

import msgspec

from mldebug_agents.system.child.job_paths import OPERATOR, Rights
from mldebug_agents.system.child.reader_child import ReadAnswer
from mldebug_agents.system.child.refusals import Refusal

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
