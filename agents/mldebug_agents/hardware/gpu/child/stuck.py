"""GPU reader children that do not answer: where in the kernel they wait, whether they may be killed, and the errors that say so.

Children that were given up are remembered until they have ended.
"""

import time
from collections.abc import Iterable
from pathlib import Path

from mldebug_agents.hardware.gpu.child.messages import NAME
from mldebug_agents.hardware.gpu.errors import GpuBlockedError
from mldebug_agents.system import procfs
from mldebug_agents.system.child.gpu_driver import inside_gpu_driver
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import ForkedWorker

HOPELESS = 120.0  # seconds after which a child that hangs outside the kernel is ended
SAMPLE = 0.2  # seconds over which the CPU time of one that runs is looked at
REBOOT = "look for Xid lines in the kernel log; a node whose driver hangs needs a reboot"
DIES_WITHIN = 0.5  # seconds in which one that was killed outside the kernel is gone


def state_of(host: Host, worker: ForkedWorker) -> str:
    """The state letter of the child's one thread, from /proc: D while it sits in the kernel; "" where it cannot be read."""
    stat = host.brief(worker.pid) if worker.pid else None
    return stat.state if stat else ""


def sits(host: Host, worker: ForkedWorker) -> bool:
    """Whether the child is inside the kernel: in state D, or in a call on a GPU's device file. Killing it there could harm the
    GPU.
    """
    inside = worker.pid is not None and inside_gpu_driver(worker.pid, Path(host.proc))
    return inside or state_of(host, worker) == "D"


def may_be_ended(host: Host, worker: ForkedWorker, waited: float) -> bool:
    """Whether the child may be killed: it has not answered for `waited` seconds, which is longer than `HOPELESS`, and it is not
    inside the kernel. Where it runs (state R), this takes a short sample of its CPU time.
    """
    if waited <= HOPELESS or worker.pid is None or sits(host, worker):
        return False
    state = state_of(host, worker)
    return _computes(host, worker.pid) if state == "R" else bool(state)


def _computes(host: Host, pid: int) -> bool:
    """Of one that runs: does it spend its time in the library, and not in the kernel?"""
    before = _ticks(host, pid)
    time.sleep(SAMPLE)
    after = _ticks(host, pid)
    return after[0] - before[0] > after[1] - before[1]


def _ticks(host: Host, pid: int) -> tuple[int, int]:
    """User and system time; zeros where that cannot be told."""
    words = host.text(pid, "stat").rpartition(")")[2].split()
    return (int(words[11]), int(words[12])) if len(words) > 12 else (0, 0)


def blocked(host: Host, worker: ForkedWorker, waited: float) -> GpuBlockedError:
    """The error for a child that has not answered for `waited` seconds; it says where the child sits."""
    where = f"state {state_of(host, worker) or 'unknown'}"
    wchan = procfs.parse_wchan(host.text(worker.pid, "wchan")) if worker.pid else ""
    where += f", waits in {wchan}" if wchan else ""
    return GpuBlockedError(
        f"the GPU reader has not answered for {waited:.0f} s (pid {worker.pid}, {where}):"
        " a call into the GPU driver does not come back",
        REBOOT,
    )


def still_there(worker: ForkedWorker) -> GpuBlockedError:
    """The error that says why no other child is started to read GPUs: an earlier one still hangs in a call of the GPU driver, and a
    new one would hang there too.
    """
    message = f"an earlier GPU reader (pid {worker.pid}) still sits in a call into the GPU driver"
    return GpuBlockedError(message, REBOOT)


def as_leftovers(host: Host, workers: Iterable[ForkedWorker]) -> tuple[Leftover, ...]:
    """The GPU reader children that still exist, as records for the agent that runs after this one."""
    found = [host.brief(worker.pid) for worker in workers if worker.pid]
    return tuple(Leftover(one.pid, one.start_ticks, f"{NAME}: {one.name}") for one in found if one)


class ChildReaper:
    """Remembers GPU children that were given up until they have ended. Not thread-safe: callers take turns."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._let_go: list[ForkedWorker] = []  # ends by itself when it comes back
        self._ended: list[
            ForkedWorker
        ] = []  # the helper was told to kill it, and spares it inside a GPU driver

    def let_go(self, worker: ForkedWorker) -> None:
        """Close the connection to a child and remember it: an idle child then closes its GPU handles and ends, a stuck one
        does when its call returns.
        """
        worker.hang_up()
        self._let_go.append(worker)

    def end(self, worker: ForkedWorker) -> None:
        """Have the process that starts children kill this one, and wait up to `DIES_WITHIN` seconds for its death. A child that is inside a
        call of the GPU driver by then is not killed; it stays remembered, as does one that does not die in time.
        """
        worker.end()
        self._ended.append(worker)
        deadline = time.monotonic() + DIES_WITHIN
        while not worker.gone() and time.monotonic() < deadline:
            time.sleep(0.005)

    def refuse_another(self) -> None:
        """Raise GpuBlockedError while a child that was given up still sits in the kernel, or should have died and has not."""
        self.forget_ended()
        for one in self.still_there():
            raise still_there(one)

    def still_there(self) -> tuple[ForkedWorker, ...]:
        """Return the children that were killed and still exist, and those that were let go and still sit in the kernel."""
        left = [one for one in self._let_go if not one.gone()]
        sitting = [one for one in left if sits(self._host, one)]
        return (*(one for one in self._ended if not one.gone()), *sitting)

    def forget_ended(self) -> bool:
        """Forget the children that have ended. Returns True where none is left."""
        for some in (self._let_go, self._ended):
            for one in [one for one in some if one.gone()]:
                one.kill()  # it has ended: this closes its pipe
                some.remove(one)
        for one in self._ended:  # it was spared, and may have come out of the driver since
            if not sits(self._host, one):
                one.end()
        return not (self._let_go or self._ended)
