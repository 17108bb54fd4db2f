"""Which GPUs must be left alone because of recent Xids in the kernel's log or from NVML. Pure."""

from collections.abc import Iterable, Iterator

from mldebug.hardware.gpu.excluded import PAUSE, XIDS, ExcludedGpu
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.hardware.kernel_log.model import KernelEventKind, Origin

_XIDS = (KernelEventKind.XID, KernelEventKind.GPU_LOST)  # an SXid has numbers of its own


def excluded_gpus(bursts: Iterable[Burst], now: float) -> tuple[ExcludedGpu, ...]:
    """The GPUs that the agent must make no driver calls to, because of an Xid after which such calls hang (`XIDS`):
    until `PAUSE` seconds after the last line of its burst. Each once, by PCI address, with the seconds that are left.

    `bursts`: errors of one device in quick succession; those that user space wrote are ignored. `now`: unix time.
    """
    found: dict[str, ExcludedGpu] = {}
    for one in (off for burst in bursts for off in _of(burst, now)):
        before = found.get(one.bus_id)
        if before is None or one.seconds > before.seconds:
            found[one.bus_id] = one
    return tuple(found[address] for address in sorted(found))


def _of(burst: Burst, now: float) -> Iterator[ExcludedGpu]:
    if burst.root.origin is Origin.USER_SPACE:  # anybody may have written it
        return
    xid = next((one for one in burst.xids if one in XIDS), None)
    address = bus_id(burst.root.device)
    left = burst.last_at + PAUSE - now
    # one from far in the future was dated by a clock that was set back since
    if xid is None or not address or burst.root.kind not in _XIDS or not 0 < left <= 2 * PAUSE:
        return
    yield ExcludedGpu(bus_id=address, xid=xid, seconds=min(left, PAUSE))
