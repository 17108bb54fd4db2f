"""The child that counts the sizes of directory trees, in turns of a quarter of a second, until the agent closes the connection.

It reports each tree before it touches it: if no message follows, the agent knows which one hangs.
"""

import contextlib
import resource
import select
import socket
import time

import msgspec

from mldebug_agents.storage.dir_sizes.messages import MAX_BODY, DirSizeRequests, DirSizeUpdate
from mldebug_agents.storage.dir_sizes.updater import DirSizeUpdater
from mldebug_agents.system.child.link import ChildLink

SLICE = 0.25  # seconds of work on one tree
GATHER = 0.1  # seconds in which events gather before they are read
CALM = 1.0  # the same where few came the last time, and nobody else has anything to do: each wake costs
LONGEST = 5.0  # seconds without a word: what is told of an idle tree is no older


def serve(connection: socket.socket) -> None:
    """Keep the sizes of the requested directories current until the agent closes the connection: the child's main function."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    updaters: list[DirSizeUpdater] = []
    link = ChildLink(connection, msgspec.msgpack.Decoder(DirSizeRequests), max_body=MAX_BODY)
    with contextlib.suppress(OSError):  # the agent is gone
        updaters = _ordered(link.receive(), updaters)
        while True:
            ready = _wait(connection, updaters)
            if ready is None:
                updaters = _ordered(link.receive(), updaters)
            for number in ready or ():
                _work(link, updaters[number])
    for updater in updaters:
        updater.close()


def _ordered(message: DirSizeRequests, before: list[DirSizeUpdater]) -> list[DirSizeUpdater]:
    """Those that are wanted from now on; what is counted already goes on, and the others are closed."""
    known = {one.order: one for one in before}
    wanted = [known[order] if order in known else DirSizeUpdater(order) for order in message.orders]
    for order in message.orders:
        known.pop(order, None)
    for updater in known.values():
        updater.close()
    return wanted


def _work(link: ChildLink[DirSizeRequests], updater: DirSizeUpdater) -> None:
    link.send(DirSizeUpdate(path=updater.order.path))
    updater.tick(SLICE)
    link.send(DirSizeUpdate(path=updater.order.path, state=updater.state()))


def _wait(connection: socket.socket, updaters: list[DirSizeUpdater]) -> list[int] | None:
    """Sleep until one of them has something to do; their numbers. None where the agent has sent something, or is gone."""
    now = time.monotonic()
    dues = [updater.due(now) for updater in updaters]
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    fds = {updater.fd: number for number, updater in enumerate(updaters) if updater.fd is not None}
    for fd in fds:
        poll.register(fd, select.POLLIN)
    ready = [
        fd
        for fd, _ in poll.poll(
            1000 * min([LONGEST, *dues]) + 1 if min(dues, default=LONGEST) else 0
        )
    ]
    if connection.fileno() in ready:
        return None
    readable = {fds[fd] for fd in ready}
    if readable:
        calm = min(dues) > 0 and not any(updaters[number].is_busy for number in readable)
        time.sleep(CALM if calm else GATHER)
    now = time.monotonic()
    late = {number for number, updater in enumerate(updaters) if not updater.due(now)}
    if not readable | late:  # a sign of life, and what is idle is fresh
        return list(range(len(updaters)))
    return sorted(readable | late)
