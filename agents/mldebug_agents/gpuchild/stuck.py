"""A child that does not answer: where it sits, whether it may be ended, and how that is told."""

from collections.abc import Iterable

from mldebug_agents import procfs
from mldebug_agents.gpuchild.errors import GpuBlockedError
from mldebug_agents.gpuchild.wire import NAME
from mldebug_agents.host import Host
from mldebug_agents.spawn import Worker
from mldebug_agents.starting.leftovers import Leftover

HOPELESS = 120.0  # seconds after which a child that hangs outside the kernel is ended
REBOOT = "look for Xid lines in the kernel log; a node whose driver hangs needs a reboot"


def state_of(host: Host, worker: Worker) -> str:
    """D while it sits in the kernel (it has one thread); "" where that cannot be told."""
    stat = host.brief(worker.pid) if worker.pid else None
    return stat.state if stat else ""


def may_be_ended(host: Host, worker: Worker, waited: float) -> bool:
    """Whether it hangs for long, and where to end it does no harm: not in the kernel."""
    return waited > HOPELESS and state_of(host, worker) not in ("", "D")


def blocked(host: Host, worker: Worker, waited: float) -> GpuBlockedError:
    """Say that it has not answered for so many seconds, and where it sits."""
    where = f"state {state_of(host, worker) or 'unknown'}"
    wchan = procfs.parse_wchan(host.text(worker.pid, "wchan")) if worker.pid else ""
    where += f", waits in {wchan}" if wchan else ""
    return GpuBlockedError(
        f"the GPU reader has not answered for {waited:.0f} s (pid {worker.pid}, {where}):"
        " a call into the GPU driver does not come back",
        REBOOT,
    )


def refuse_beside(host: Host, parting: Iterable[Worker]) -> None:
    """Raise GpuBlockedError while one that was let go sits in the kernel: the next would sit there, too."""
    for one in parting:
        if state_of(host, one) == "D":
            told = f"an earlier GPU reader (pid {one.pid}) still sits in a call into the GPU driver"
            raise GpuBlockedError(told, REBOOT)


def as_leftovers(host: Host, workers: Iterable[Worker]) -> tuple[Leftover, ...]:
    """Those of them that live, as a later agent must know them."""
    found = [host.brief(one.pid) for one in workers if one.pid]
    return tuple(Leftover(one.pid, one.start_ticks, f"{NAME}: {one.name}") for one in found if one)
