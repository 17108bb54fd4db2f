"""Reads, sets and clears the switches of a job (kill, save) in a child process, because their
folder may lie on a mount that hangs.

The ranks have named the folder beside their hook records. The child takes the rights of the
folder's user before it touches anything, so that links that a job has made cannot mislead root, and
new files belong to the job's user. Below a rank's root it never leaves that root.
"""

import contextlib
import errno
import os
import socket
import stat
import time
from typing import Literal

import msgspec

from mldebug.core.errors import AccessError, MldebugError, UsageError
from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.heartbeat import record_name
from mldebug.jobs.switches import (
    KILL,
    MAX_BYTES,
    POLLED,
    SAVE,
    SUFFIX,
    Switch,
    SwitchState,
    parse_announcement,
    parse_polled,
    parse_switch,
    switch_text,
)
from mldebug_agents.jobs.hook.records import FOLDER, check_owner
from mldebug_agents.system.child.job_paths import Rights, held
from mldebug_agents.system.child.link import ChildLink, ask_once
from mldebug_agents.system.child.refusals import Refused
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece
from mldebug_agents.system.spawn import Spawner

NAME = "switches"
TIMEOUT = 5.0
_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_RANKS = 8  # ranks of a job: rank 0 of the node is enough, if it lives


class SwitchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to read, set or clear switches.

    `pid`: the rank below whose root the folder is, 0 for our own root; `until`: unix time; `by`:
    who asks; `owner`: with whose rights, None: those of the folder's owner.
    """

    verb: Literal["look", "set", "clear"]
    folder: str
    name: str = ""
    until: float | None = None
    by: str = ""
    pid: int = 0
    owner: Rights | None = None


class SwitchReply(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a folder's switches afterwards, or why there is none. `denied`: the right to it is missing."""

    found: SwitchState | None = None
    error: str = ""
    denied: bool = False


def ask(spawner: Spawner, order: SwitchRequest, timeout: float = TIMEOUT) -> SwitchState:
    """Carry out a request about switches in a child process, for at most `timeout` seconds.

    Raises AccessError where a right is missing, UsageError where the folder cannot be used,
    MldebugError where it does not answer.
    """
    worker = spawner.fork_worker(NAME)
    try:
        reply = ask_once(worker, order, msgspec.msgpack.Decoder(SwitchReply), timeout)
    except TimeoutError:
        why = f"{order.folder} does not answer: its file system hangs"
        raise MldebugError(why, "give a folder on another one with --folder") from None
    except ConnectionError as error:
        raise MldebugError(f"the child that looks at {order.folder} has ended: {error}") from error
    if reply.found is not None:
        return reply.found
    if reply.denied:
        raise AccessError(reply.error, "ask as the job's user, or as root")
    raise UsageError(reply.error, "name the folder that the job asks, or make it as the job's user")


def serve(connection: socket.socket) -> None:
    """The main function of the child process that reads and sets switches: carry out one `SwitchRequest` and end."""
    link = ChildLink(connection, msgspec.msgpack.Decoder(SwitchRequest))
    link.send(carry_out(link.receive()))


def carry_out(order: SwitchRequest) -> SwitchReply:
    """Carry out a request with the rights of the folder's owner. Never raises: errors become the reply."""
    try:
        handle = _enter(order)
    except Refused:
        return SwitchReply(error=f"{order.folder}: not for the job's user", denied=True)
    except OSError as error:
        return _failed(order.folder, error)
    try:
        if order.verb == "set":
            _set(handle, order)
        elif order.verb == "clear":
            _clear(handle, order.name)
        return SwitchReply(found=look(handle, order.folder))
    except OSError as error:
        return _failed(f"{order.folder}/{order.name}", error)
    finally:
        os.close(handle)


def look(handle: int, folder: str) -> SwitchState:
    """The state of the switches in the folder behind this descriptor."""
    polled = _read(handle, POLLED)
    everybody = os.fstat(handle).st_mode & stat.S_IWOTH
    return SwitchState(
        folder=folder,
        kill=_switch(handle, KILL),
        save=_switch(handle, SAVE),
        polled=parse_polled(polled) if polled else None,
        trouble="everybody may write this folder, so it is not obeyed: chmod o-w"
        if everybody
        else "",
    )


def _enter(order: SwitchRequest) -> int:
    """Open the folder and become its user: links below a rank's root stay inside it."""
    if order.owner is None:  # the folder that a person has named
        handle = os.open(order.folder, _ROOT)
        found = os.fstat(handle)
        become(Rights(found.st_uid, found.st_gid))
        return handle
    path = os.fsencode(f"/proc/{order.pid}/root{order.folder}" if order.pid else order.folder)
    with held(path, order.owner, place=len(path)) as (found_, _):
        handle = os.dup(found_)
    become(order.owner)
    return handle


def become(owner: Rights) -> None:
    """Only root can, and only root has to; there is no way back."""
    if os.geteuid() == 0 and owner.uid != 0:
        os.setgroups(owner.groups)
        os.setresgid(owner.gid, owner.gid, owner.gid)
        os.setresuid(owner.uid, owner.uid, owner.uid)


def _set(handle: int, order: SwitchRequest) -> None:
    """The whole file at once, in place of whatever had its name; a folder of that name is refused."""
    if os.fstat(handle).st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EACCES, "everybody may write this folder, so no job obeys it")
    fresh = f".{order.name}-{os.getpid()}-{time.monotonic_ns()}"
    file = os.open(fresh, _NEW, 0o644, dir_fd=handle)
    try:
        os.write(file, switch_text(order.until, order.by))
        os.rename(fresh, order.name, src_dir_fd=handle, dst_dir_fd=handle)
    except OSError:
        os.unlink(fresh, dir_fd=handle)
        raise
    finally:
        os.close(file)


def _clear(handle: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=handle)


def _switch(handle: int, name: str) -> Switch | None:
    try:
        found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return parse_switch(_read(handle, name), found.st_mtime)


def _read(handle: int, name: str) -> bytes:
    """The beginning of a regular file; nothing of anything else."""
    try:
        file = os.open(name, _READ, dir_fd=handle)
    except OSError:
        return b""
    try:
        return os.read(file, MAX_BYTES) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)


def _failed(what: str, error: OSError) -> SwitchReply:
    why = (error.strerror or str(error)).lower()
    denied = isinstance(error, PermissionError)
    return SwitchReply(error=f"{what}: {why}", denied=denied)


def switch_request(job: Job, host: Host, reader: Reader) -> SwitchRequest | None:
    """The request that reads the switches of a job; None where no rank on this node has named a folder of switches."""
    for rank in job.ranks[:MAX_RANKS]:
        folder = _announced(rank, host, reader)
        if folder:
            inside = host.link(rank.pid, "ns/mnt") != host.link(os.getpid(), "ns/mnt")
            pid = rank.pid if inside else 0
            return SwitchRequest(verb="look", folder=folder, pid=pid, owner=host.rights.of(rank))
    return None


def _announced(rank: RankIdentity, host: Host, reader: Reader) -> str:
    name = record_name(rank.namespace_pid or rank.pid, rank.start_ticks) + SUFFIX
    path = f"{host.root_of(rank.pid)}{FOLDER}/{name}"
    piece = reader.read_from(path, 0, rights=host.rights.of(rank), max_bytes=MAX_BYTES)
    if not isinstance(piece, FilePiece):
        return ""
    try:
        check_owner(piece, rank.uid)
    except ValueError:
        return ""
    return parse_announcement(piece.data)
