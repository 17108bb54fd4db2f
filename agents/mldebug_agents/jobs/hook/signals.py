"""Sends the hook's signals to a training process without ever harming it. No other module sends one.

A signal that nobody catches ends a process. So it is sent to a pidfd only, and only after a valid record of the hook, the open file
of its stacks, and the kernel (SigCgt) all say that this very process catches it, and only where every thread but the hook's has it
blocked (SigBlk): another thread would take it and write no answer. Processes that are stopped or in state D cannot answer, and get none.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mldebug.core.model import RankIdentity
from mldebug.jobs.heartbeat import STACKS, Heartbeat, record_name
from mldebug_agents.jobs.hook.records import FOLDER, HeartbeatReader
from mldebug_agents.system import procfs
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

DEAF = "TtDZX"  # states in which a process cannot answer
LOOKS = 6
ASLEEP = 2  # of them at least: on a crowded machine who polls for a lock is often seen waiting for a processor
PAUSE = 0.2  # seconds between two of them
_FAMILY = 3  # signals of the hook: the one that asks and the two below
_BUSY = 0.015  # CPU seconds between the first look and the last: more than one clock tick, which who polls for a lock may take


class SignalTarget(NamedTuple):
    """A process in which mldebug's hook can be asked by a signal, held by its pidfd."""

    identity: RankIdentity
    pidfd: int
    beat: Heartbeat  # with its signal and the file of its stacks
    name: str  # of its record
    position: int  # how far it has written into the file of its stacks

    @property
    def pid(self) -> int:
        """The process's pid as the host sees it, not as its container does."""
        return self.identity.pid

    @property
    def key(self) -> tuple[int, int]:
        """Pid and start time, which identify a process also after its pid is used again."""
        return self.pid, self.identity.start_ticks


class HookSignals:
    """Sends ranks the signals by which mldebug's hook in them is asked to write something, where that is safe. There is one per
    agent: it remembers processes without a record.
    """

    def __init__(
        self,
        host: Host,
        reader: Reader,
        send: Callable[[int, int], None] = signal.pidfd_send_signal,
    ) -> None:
        self._host = host
        self._heartbeats = HeartbeatReader(host, reader)
        self._send = send

    @contextmanager
    def hold(self, pid: int) -> Iterator[SignalTarget | None]:
        """A context that holds a process for signals; None where it must not be signalled.

        Its pidfd is opened first, so all later reads concern this very process.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            yield None
            return
        try:
            yield self._hooked(pid, pidfd)
        finally:
            os.close(pidfd)

    def _hooked(self, pid: int, pidfd: int) -> SignalTarget | None:
        identity = self._identity(pid)
        beat = self._beat(identity) if identity else None
        if identity is None or beat is None or beat.signal is None or beat.stacks_fd is None:
            return None
        name = record_name(identity.namespace_pid or pid, identity.start_ticks)
        position = self._position(pid, beat.stacks_fd, name)
        return None if position is None else SignalTarget(identity, pidfd, beat, name, position)

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

    def ask(self, process: SignalTarget, number: int) -> bool:
        """Send signal `number` to a process. Returns False, without sending, unless the kernel says
        that it catches it and only the hook's thread can take it.

        Raises OSError where sending is not allowed, or the process is gone.
        """
        if not only_hook_takes_signals(self._host, process.pid, process.beat.signal or 0):
            return False
        if not self._catches(process.pid, number, process.identity.start_ticks):
            return False
        self._send(process.pidfd, number)
        return True

    def _catches(self, pid: int, number: int, start_ticks: int) -> bool:
        """Does the kernel say that it catches this signal? Checked last: an exec would have removed all handlers."""
        status, stat = self._host.status(pid), self._host.brief(pid)
        if stat is None or stat.start_ticks != start_ticks or stat.state in DEAF:
            return False
        return bool(status.caught_signals >> (number - 1) & 1)

    def pends(self, pid: int, number: int) -> bool:
        """Whether this signal is pending for the process."""
        return bool(self._host.status(pid).pending_signals >> (number - 1) & 1)

    def stuck(self, process: SignalTarget) -> bool:
        """Whether no thread of the process runs, so that none executes Python code. Takes up to a second."""
        return all_threads_sleep(self._host, process.pid)

    def beat(self, process: SignalTarget) -> Heartbeat | None:
        """The process's present hook record; None where it has no valid one."""
        return self._beat(process.identity)

    def _beat(self, identity: RankIdentity) -> Heartbeat | None:
        return self._heartbeats.read([identity]).get(identity.rank)

    def position(self, process: SignalTarget) -> int | None:
        """The offset (bytes) at which the process writes next into its file of stacks; None where
        that file is not open.
        """
        return (
            None
            if process.beat.stacks_fd is None
            else self._position(process.pid, process.beat.stacks_fd, process.name)
        )

    def _position(self, pid: int, fd: int, name: str) -> int | None:
        """None where that descriptor is something else."""
        if not self._host.link(pid, f"fd/{fd}").endswith(f"/{name}{STACKS}"):
            return None
        info = self._host.text(pid, f"fdinfo/{fd}")
        found = re.search(r"^pos:\s*(\d+)$", info, re.MULTILINE)
        return int(found[1]) if found else None

    def rights(self, one: SignalTarget) -> Rights:
        """The rights with which this target's files are read: those of the rank's user."""
        return self._host.rights.of(one.identity)

    def path(self, one: SignalTarget, suffix: str) -> str:
        """The path of a file beside the process's heartbeat record, as this process can open it."""
        return f"{self._host.root_of(one.pid)}{FOLDER}/{one.name}{suffix}"


def only_hook_takes_signals(host: Host, pid: int, ask: int) -> bool:
    """Whether at most one thread of the process, the hook's, can receive signal `ask`.

    False where the kernel does not say.
    """
    opened = [_is_open(host.text(pid, f"task/{tid}/status"), ask) for tid in _tids(host, pid)]
    return bool(opened) and sum(opened) <= 1


def all_threads_sleep(host: Host, pid: int) -> bool:
    """Whether all threads of a process sleep, the main thread without waking up once. Takes up to a second.

    A thread that waits for the interpreter lock wakes 200 times a second to ask for it: it may be
    seen running, but takes hardly any CPU time. One that only lacks a free CPU is seen running at
    every look.
    """
    woken = host.status(pid).voluntary_switches
    looks = [_look(host, pid)]
    while len(looks) < LOOKS and looks[-1].get(pid, ("", 0))[0] == "S":
        time.sleep(PAUSE)
        looks.append(_look(host, pid))
    first, last = looks[0], looks[-1]
    if len(looks) < LOOKS or any(look.keys() != first.keys() for look in looks):
        return False
    states = {tid: "".join(look[tid][0] for look in looks) for tid in first}
    return (
        set(states[pid]) == {"S"}
        and host.status(pid).voluntary_switches == woken
        and all(
            set(letters) <= set("SR") and letters.count("S") >= ASLEEP
            for letters in states.values()
        )
        and all(last[tid][1] - first[tid][1] < _BUSY for tid in first)
    )


def _look(host: Host, pid: int) -> dict[int, tuple[str, float]]:
    """State and CPU seconds of each thread."""
    stats = {tid: procfs.parse_stat(host.text(pid, f"task/{tid}/stat")) for tid in _tids(host, pid)}
    return {tid: (one.state, one.cpu_seconds) for tid, one in stats.items() if one is not None}


def _is_open(status: str, ask: int) -> bool:
    """Does a thread with this status take one of the signals? One that has just ended has no status, and takes none."""
    found = re.search(r"^SigBlk:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if found is None:
        return bool(status)
    blocked = int(found[1], 16)
    return any(not blocked >> (ask - below - 1) & 1 for below in range(_FAMILY))


def _tids(host: Host, pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"{host.proc}/{pid}/task") if name.isdecimal()]
    except OSError:
        return []
