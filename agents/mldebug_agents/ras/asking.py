"""Asks NCCL RAS of one job, in a child of its own: it may have to enter the job's network, and what comes may be large.

The child connects to this node only, takes an answer only from a process of the job's user, and only one that tells of the
job's own processes: several jobs of a user share the port, and which of them answers is chance.
"""

import ctypes
import os
import socket
import time

import msgspec

from mldebug.model import NcclRas
from mldebug.ras.judge import brief
from mldebug.ras.parse import MAX_BYTES, parse
from mldebug.ras.places import World, home, world_of
from mldebug.ras.rows import few
from mldebug.redact import clean
from mldebug_agents.ras.address import Place, is_own, places
from mldebug_agents.ras.netinfo import own_addresses, owner
from mldebug_agents.ras.talk import Talk, TalkError

NAME = "ras"
MAX_ORDER = 64 << 10
MAX_REASON = 300  # characters
TRIES = 6  # connections: other jobs may answer at the same port, and stopped processes accept and say nothing
_CLONE_NEWNET = 0x40000000


class RasOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask. `network`: inode of the network namespace of `pid`, 0: ours."""

    told: str  # `RankIdentity.nccl_ras`
    pids: tuple[int, ...]  # of the job's ranks here, in their own pid namespace
    uid: int  # of the job
    seconds: float
    pid: int = 0
    network: int = 0
    whole: bool = True  # with the ranks that matter; else the sums, and which process is which rank


class RasReply(msgspec.Struct, frozen=True, kw_only=True):
    """What came, or why nothing did."""

    told: NcclRas | None = None
    world: World | None = None  # with the sums alone
    error: str = ""
    way_out: str = ""
    silent: bool = False  # nobody listens there


def serve(link: socket.socket) -> None:
    """The child: one order, one answer."""
    order = msgspec.msgpack.decode(_all(link), type=RasOrder)
    link.sendall(msgspec.msgpack.encode(carry_out(order)))


def carry_out(order: RasOrder) -> RasReply:
    """Ask; never raises for what is there."""
    deadline = time.monotonic() + order.seconds
    try:
        where = places(order.told)
        if order.network:
            _enter(order.pid, order.network)
    except ValueError as error:
        return _refused(str(error))
    except OSError as error:
        return _closed(error)
    return _ask(order, [one for one in where if is_own(one.host)], deadline)


def _closed(error: OSError) -> RasReply:
    if isinstance(error, PermissionError):
        why = "the job has a network of its own, which the agent may not enter"
        return RasReply(error=why, way_out="give the agent CAP_SYS_ADMIN (docs/rights.md)")
    why = (error.strerror or str(error)).lower()
    return RasReply(error=f"the job's network cannot be entered: {why}")


def _enter(pid: int, inode: int) -> None:
    """Into the network namespace of a process, if it is still the one that was seen."""
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_ino != inode:
            raise ProcessLookupError(0, "its process has changed")
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(handle)


def _ask(order: RasOrder, where: list[Place], deadline: float) -> RasReply:
    """Until one answer is our job's; else why the last try failed."""
    if not where:
        return _refused(f"NCCL_RAS_ADDR is {order.told}, which is no address of this node")
    last = RasReply(error="nobody answers")
    for number in range(TRIES):
        place = where[number % len(where)]
        last, again = _try(order, place, deadline)
        if not again:
            where.remove(place)
        if last.told is not None or not where or time.monotonic() >= deadline:
            break
    return last


def _try(order: RasOrder, place: Place, deadline: float) -> tuple[RasReply, bool]:
    """What came, and whether the same place may answer otherwise."""
    try:
        data = Talk(place, deadline).ask(MAX_BYTES, lambda link: _check_owner(link, order.uid))
        told = parse(data)
    except TalkError as error:
        return _refused(str(error), silent=error.silent), error.again
    except ValueError as error:
        return _refused(f"its answer is not believed: {error}"), False
    told = msgspec.structs.replace(told, own=own_addresses())
    if not home(told, order.pids):
        return RasReply(error="another job answers there, and this one not"), True
    if order.whole:
        return RasReply(told=few(told, order.pids)), False
    return RasReply(told=brief(told), world=world_of(told, order.pids)), False


def _refused(why: str, *, silent: bool = False) -> RasReply:
    """What the job or its peer has written may stand in it, so it is cleaned and cut."""
    return RasReply(error=clean(why, MAX_REASON), silent=silent)


def _check_owner(link: socket.socket, uid: int) -> None:
    found = owner(link)
    if found is None:
        raise TalkError("the kernel does not tell whose process answers there", again=True)
    if found != uid:
        raise TalkError(f"a process of another user (uid {found}) answers there")


def _all(link: socket.socket) -> bytes:
    parts: list[bytes] = []
    while (part := link.recv(65536)) and sum(map(len, parts)) < MAX_ORDER:
        parts.append(part)
    return b"".join(parts)
