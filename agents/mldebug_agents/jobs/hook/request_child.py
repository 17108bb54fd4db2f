"""Writes a request beside the record of a rank's hook, in a child process with the rights of the rank's user.

So that the hook finds a file of its own user, and no link that the job has made misleads root. The file lies below the rank's root in /dev/shm.
"""

import os
import socket
import time
from typing import Literal

import msgspec

from mldebug.core.errors import AccessError, MldebugError
from mldebug_agents.jobs.hook.records import FOLDER
from mldebug_agents.jobs.hook.switches import become
from mldebug_agents.system.child.job_paths import Rights, held
from mldebug_agents.system.child.link import ChildLink, ask_once
from mldebug_agents.system.child.refusals import Refused
from mldebug_agents.system.spawn import Spawner

NAME = "hook-requests"
TIMEOUT = 5.0
MAX_REQUEST = 4096  # bytes
STALE = 60.0  # seconds after which no hook believes a request, so another may take its place
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class HookRequestFile(msgspec.Struct, frozen=True, kw_only=True):
    """An order to the child: write `data` to a new file `name` in the /dev/shm of a process, or remove the one that has this content.

    `root`: the path of that process's root; `owner`: the user of the rank. Without `data`, a file of any content is removed.
    """

    verb: Literal["write", "remove"]
    root: str
    name: str
    owner: Rights
    data: bytes = b""


class HookRequestReply(msgspec.Struct, frozen=True, kw_only=True):
    """The child's answer to a `HookRequestFile`. `error`: why it was not carried out, "" where it was; `denied`: because a right is
    missing; `exists`: another request of that name lies there.
    """

    error: str = ""
    denied: bool = False
    exists: bool = False


def place(spawner: Spawner, order: HookRequestFile) -> bool:
    """Carry the order out, in `TIMEOUT` seconds at most. False where another request lies there already.

    Raises AccessError where a right is missing, MldebugError for any other reason.
    """
    worker = spawner.fork_worker(NAME)
    try:
        reply = ask_once(worker, order, msgspec.msgpack.Decoder(HookRequestReply), TIMEOUT)
    except OSError as error:
        raise MldebugError(f"the rank's /dev/shm does not answer: {error}") from error
    if reply.denied:
        raise AccessError(reply.error, "ask as the job's user, or as root")
    if reply.error:
        raise MldebugError(reply.error)
    return not reply.exists


def serve(connection: socket.socket) -> None:
    """The main function of a child process that writes or removes one request file for the hook, which is our code inside a rank of the job and looks for
    such files in /dev/shm. It receives a `HookRequestFile` over `connection`, carries it out with the rights of the job's user, sends a
    `HookRequestReply` (errors among it) over the same connection, and returns; the process ends with it.
    """
    link = ChildLink(connection, msgspec.msgpack.Decoder(HookRequestFile))
    link.send(carry_out(link.receive()))


def carry_out(order: HookRequestFile) -> HookRequestReply:
    """Carry out an order with the rights of the rank's user. Never raises: errors become the reply."""
    folder = os.fsencode(f"{order.root}{FOLDER}")
    try:
        with held(folder, order.owner) as (found, _):
            handle = os.dup(found)
        become(order.owner)
        if order.verb == "remove":
            _remove(handle, order)
        else:
            _write(handle, order)
    except FileExistsError:
        return HookRequestReply(exists=True)
    except FileNotFoundError as error:
        gone = order.verb == "remove"
        return HookRequestReply(error="" if gone else f"{FOLDER}: {error.strerror}")
    except (PermissionError, Refused) as error:
        return HookRequestReply(error=f"{FOLDER} of the rank: {error}", denied=True)
    except OSError as error:
        return HookRequestReply(error=f"{FOLDER} of the rank: {error.strerror or error}")
    return HookRequestReply()


def _write(handle: int, order: HookRequestFile) -> None:
    if _is_stale(handle, order.name):
        os.unlink(order.name, dir_fd=handle)
    file = os.open(order.name, _NEW, 0o600, dir_fd=handle)
    try:
        os.write(file, order.data[:MAX_REQUEST])
    except OSError:  # a full /dev/shm: an empty request would keep out all others
        os.unlink(order.name, dir_fd=handle)
        raise
    finally:
        os.close(file)


def _remove(handle: int, order: HookRequestFile) -> None:
    """Another's request stays: its asker waits for the answer."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(order.name, flags, dir_fd=handle)
    try:
        if os.read(file, MAX_REQUEST) == order.data[:MAX_REQUEST] or not order.data:
            os.unlink(order.name, dir_fd=handle)
    finally:
        os.close(file)


def _is_stale(handle: int, name: str) -> bool:
    """Whether a request of this user lies there that its asker left behind."""
    try:
        found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return found.st_uid == os.geteuid() and abs(time.time() - found.st_mtime) > STALE
