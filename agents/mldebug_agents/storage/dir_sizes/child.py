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
LONGEST = 5.0  # seconds without a word: what is told of an idle tree is no older


def serve(connection: socket.socket) -> None:
    """Keep the sizes of the requested directories current until the agent closes the connection: the child's main function."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    updaters: list[DirSizeUpdater] = []
    link = ChildLink(connection, msgspec.msgpack.Decoder(DirSizeRequests), max_body=MAX_BODY)
    with contextlib.suppress(OSError):  # the agent is gone
        updaters += [DirSizeUpdater(order) for order in link.receive().orders]
        while True:
            for number in _wait(connection, updaters):
                _work(link, number, updaters[number])
    for updater in updaters:
        updater.close()


def _work(link: ChildLink[DirSizeRequests], number: int, updater: DirSizeUpdater) -> None:
    link.send(DirSizeUpdate(number=number))
    updater.tick(SLICE)
    link.send(DirSizeUpdate(number=number, state=updater.state()))


def _wait(connection: socket.socket, updaters: list[DirSizeUpdater]) -> list[int]:
    """Sleep until one of them has something to do; their numbers. Raises ConnectionError when nobody listens."""
    now = time.monotonic()
    dues = [updater.due(now) for updater in updaters]
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    fds = {updater.fd: number for number, updater in enumerate(updaters) if updater.fd is not None}
    for fd in fds:
        poll.register(fd, select.POLLIN)
    ready = [fd for fd, _ in poll.poll(1000 * min([LONGEST, *dues]) + 1 if min(dues) else 0)]
    if connection.fileno() in ready:
        raise ConnectionError("it hung up")
    readable = {fds[fd] for fd in ready}
    if readable:
        time.sleep(GATHER)
    now = time.monotonic()
    late = {number for number, updater in enumerate(updaters) if not updater.due(now)}
    if not readable | late:  # a sign of life, and what is idle is fresh
        return list(range(len(updaters)))
    return sorted(readable | late)
