"""Asking a training process by a signal of its hook, without ever harming it. This is the one place that sends one.

A signal that nobody catches ends a process. So it is sent to a pidfd only, and only after a record that is believed, the
open file of the stacks, and the kernel's own word (SigCgt) all say that this very process catches it, and only where every
thread but the hook's has it blocked (SigBlk): another one would take it and say nothing. Processes that are stopped or in
state D could not answer, and are not asked.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mldebug.core.model import RankIdentity
from mldebug.jobs.heartbeat import STACKS, Heartbeat, record_name
from mldebug_agents.jobs.hook import threads
from mldebug_agents.jobs.hook.records import FOLDER, Heartbeats
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

DEAF = "TtDZX"  # states in which a process cannot answer


class Hooked(NamedTuple):
    """A process that can be asked, held by its pidfd."""

    identity: RankIdentity
    pidfd: int
    beat: Heartbeat  # with its signal and the file of its stacks
    name: str  # of its record
    position: int  # how far it has written into the file of its stacks

    @property
    def pid(self) -> int:
        """As the host sees it."""
        return self.identity.pid

    @property
    def key(self) -> tuple[int, int]:
        """Pid and start: never used twice."""
        return self.pid, self.identity.start_ticks


class Asking:
    """Finds out who can be asked, and asks. Keep one: it remembers who has no record."""

    def __init__(
        self,
        host: Host,
        reader: Reader,
        send: Callable[[int, int], None] = signal.pidfd_send_signal,
    ) -> None:
        self._host = host
        self._heartbeats = Heartbeats(host, reader)
        self._send = send

    @contextmanager
    def hold(self, pid: int) -> Iterator[Hooked | None]:
        """Hold a process as long as it is asked; None where it cannot or may not be. Opened first: what is read then is of it."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            yield None
            return
        try:
            yield self._hooked(pid, pidfd)
        finally:
            os.close(pidfd)

    def _hooked(self, pid: int, pidfd: int) -> Hooked | None:
        identity = self._identity(pid)
        beat = self._beat(identity) if identity else None
        if identity is None or beat is None or beat.signal is None or beat.stacks_fd is None:
            return None
        name = record_name(identity.namespace_pid or pid, identity.start_ticks)
        position = self._position(pid, beat.stacks_fd, name)
        return None if position is None else Hooked(identity, pidfd, beat, name, position)

    def _identity(self, pid: int) -> RankIdentity | None:
        stat, status = self._host.brief(pid), self._host.status(pid)
        if stat is None or stat.state in DEAF:
            return None
        inside = status.pids[-1] if status.pids else pid
        return RankIdentity(
            rank=0,
            world_size=1,
            pid=pid,
            start_ticks=stat.start_ticks,
            uid=status.uid,
            namespace_pid=inside if inside != pid else None,
        )

    def ask(self, one: Hooked, number: int) -> bool:
        """Send it this signal, if it catches it. Raises OSError where that is not allowed or it is gone."""
        if not threads.only_the_hooks(self._host, one.pid, one.beat.signal or 0):
            return False
        if not self._catches(one.pid, number, one.identity.start_ticks):
            return False
        self._send(one.pidfd, number)
        return True

    def _catches(self, pid: int, number: int, start_ticks: int) -> bool:
        """The kernel's word, asked last: an exec in between has taken all handlers away."""
        status, stat = self._host.status(pid), self._host.brief(pid)
        if stat is None or stat.start_ticks != start_ticks or stat.state in DEAF:
            return False
        return bool(status.caught_signals >> (number - 1) & 1)

    def pends(self, pid: int, number: int) -> bool:
        """Was it sent and not yet taken?"""
        return bool(self._host.status(pid).pending_signals >> (number - 1) & 1)

    def stuck(self, one: Hooked) -> bool:
        """Does no thread of it run, so that no Python can? Takes a second."""
        return threads.still(self._host, one.pid)

    def beat(self, one: Hooked) -> Heartbeat | None:
        """What its record says now."""
        return self._beat(one.identity)

    def _beat(self, identity: RankIdentity) -> Heartbeat | None:
        return self._heartbeats.read([identity]).get(identity.rank)

    def position(self, one: Hooked) -> int | None:
        """How far it has written into the file of its stacks by now."""
        return (
            None
            if one.beat.stacks_fd is None
            else self._position(one.pid, one.beat.stacks_fd, one.name)
        )

    def _position(self, pid: int, fd: int, name: str) -> int | None:
        """None where that descriptor is something else."""
        if not self._host.link(pid, f"fd/{fd}").endswith(f"/{name}{STACKS}"):
            return None
        told = self._host.text(pid, f"fdinfo/{fd}")
        found = re.search(r"^pos:\s*(\d+)$", told, re.MULTILINE)
        return int(found[1]) if found else None

    def path(self, one: Hooked, suffix: str) -> str:
        """A file beside its record, as it is found from here."""
        return f"{self._host.root_of(one.pid)}{FOLDER}/{one.name}{suffix}"
