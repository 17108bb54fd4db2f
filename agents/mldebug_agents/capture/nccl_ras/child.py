"""Asks NCCL RAS of one job, in a child process of its own, because it may have to enter the job's
network namespace and the answer may be large.

It connects to this node only, and takes an answer only from a process of the job that tells of the
job's own processes: several jobs of a user share the port, and which of them answers is chance.
Containers on the host's network may use the same pids, so one of our ranks must hold the
connection; where nobody may see who holds it, the answer has to name all ranks that live here.
"""

import ctypes
import os
import socket
import time
from collections.abc import Iterable

import msgspec

from mldebug.capture.nccl_ras.answer import MAX_BYTES, parse
from mldebug.capture.nccl_ras.communicators import few
from mldebug.capture.nccl_ras.process_map import RasWorld, home, pids_at, world_of
from mldebug.capture.nccl_ras.progress import brief
from mldebug.core.model import NcclRas
from mldebug.core.redact import clean
from mldebug_agents.capture.nccl_ras.conversation import RasConnection, RasConnectionError
from mldebug_agents.capture.nccl_ras.netinfo import holds_socket, own_addresses, socket_owner
from mldebug_agents.jobs.ranks.ras_address import RasAddress, addresses, is_own
from mldebug_agents.system.child.link import ChildLink
from mldebug_agents.system.host import Host

NAME = "ras"
MAX_REASON = 300  # characters
TRIES = 6  # connections: other jobs may answer at the same port, and stopped processes accept and say nothing
_CLONE_NEWNET = 0x40000000
_ENDED = "ZX"  # states of a process
_ANOTHER = "another job answers there, and this one not"


class RasOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A question about one job.

    `network`: inode of the network namespace of process `pid`, which is entered first; 0: the
    agent's own.
    """

    address: str  # `RankIdentity.nccl_ras`
    pids: tuple[int, ...]  # of the job's ranks here, in their own pid namespace
    host_pids: tuple[int, ...]  # the same processes, as the host sees them
    uid: int  # of the job
    seconds: float
    pid: int = 0
    network: int = 0
    whole: bool = True  # with the ranks that matter; else the sums, and which process is which rank


class RasReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of NCCL RAS, or in `error` why there is none."""

    answer: NcclRas | None = None
    world: RasWorld | None = None  # with the sums alone
    error: str = ""
    way_out: str = ""
    silent: bool = False  # nobody listens there


def serve(connection: socket.socket) -> None:
    """The main function of the child process: reads one order, sends one answer."""
    link = ChildLink(connection, msgspec.msgpack.Decoder(RasOrder))
    link.send(carry_out(link.receive()))


def carry_out(order: RasOrder) -> RasReply:
    """Ask NCCL RAS as ordered; never raises, whatever answers at the address."""
    deadline = time.monotonic() + order.seconds
    try:
        where = addresses(order.address)
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


def _ask(order: RasOrder, where: list[RasAddress], deadline: float) -> RasReply:
    """Until one answer is our job's; else why the last try failed."""
    if not where:
        return _refused(f"NCCL_RAS_ADDR is {order.address}, which is no address of this node")
    last = RasReply(error="nobody answers")
    for number in range(TRIES):
        place = where[number % len(where)]
        last, again = _try(order, place, deadline)
        if not again:
            where.remove(place)
        if last.answer is not None or not where or time.monotonic() >= deadline:
            break
    return last


def _try(order: RasOrder, place: RasAddress, deadline: float) -> tuple[RasReply, bool]:
    """The reply of one address, and whether another try there may reach another process."""
    living = _living(order)
    shown: list[bool] = []
    try:
        data = RasConnection(place, deadline).ask(
            MAX_BYTES, lambda link: shown.append(_is_held(link, order.uid, living))
        )
        answer = parse(data)
    except RasConnectionError as error:
        return _refused(str(error), silent=error.silent), error.again
    except ValueError as error:
        return _refused(f"its answer is not believed: {error}"), False
    answer = msgspec.structs.replace(answer, own=own_addresses())
    here = home(answer, order.pids)
    if not here or not (shown[0] or pids_at(answer, here).issuperset(living.values())):
        return RasReply(error=_ANOTHER), True
    if order.whole:
        return RasReply(answer=few(answer, order.pids)), False
    return RasReply(answer=brief(answer), world=world_of(answer, order.pids)), False


def _refused(why: str, *, silent: bool = False) -> RasReply:
    """What the job or its peer has written may stand in it, so it is cleaned and cut."""
    return RasReply(error=clean(why, MAX_REASON), silent=silent)


def _living(order: RasOrder) -> dict[int, int]:
    """Those of its ranks that have not ended: pid as we see it -> as it sees it itself."""
    host = Host()
    found = {pid: host.brief(pid) for pid in order.host_pids}
    both = zip(order.host_pids, order.pids, strict=True)
    return {
        pid: own for pid, own in both if (one := found[pid]) is not None and one.state not in _ENDED
    }


def _is_held(link: socket.socket, uid: int, living: Iterable[int]) -> bool:
    """Is the other end shown to be one of these processes? False: nobody may see. Raises RasConnectionError where it is not."""
    found = socket_owner(link)
    if found is None:
        raise RasConnectionError("the kernel does not tell whose process answers there", again=True)
    if found.uid != uid:
        raise RasConnectionError(f"a process of another user (uid {found.uid}) answers there")
    unreadable = False
    for pid in living:
        if held := holds_socket(pid, found.inode):
            return True
        unreadable = unreadable or held is None
    if not unreadable:
        raise RasConnectionError(_ANOTHER, again=True)
    return False
