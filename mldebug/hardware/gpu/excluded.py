"""GPUs that the agent must not touch: after an Xid that makes calls into the driver hang, or while a reset is due.

Pure.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from mldebug.core.model import Gap, MeasuredData
from mldebug.hardware.gpu.readings import LostGpu, NodeGpus

XIDS = frozenset({79, 119, 120})
"""Off the bus; the firmware (GSP) does not answer."""
PAUSE = 60.0  # seconds after such an Xid, or the last line that belongs to it
CODE = "xid_"  # begins the code of a GPU that is left alone because of one
WAY_OUT = "`mldebug doctor --gpus` says what to do about it; it is asked again then"
RESETS = frozenset({"reset", "drain_and_reset", "bus_reset"})


class ExcludedGpu(MeasuredData, frozen=True, kw_only=True):
    """A GPU that must not be touched for the next `seconds`, by its PCI address: the only name that the kernel's log has for it."""

    bus_id: str  # PCI address, 0000:3b:00.0
    xid: int
    seconds: float  # from when this is handed on
    place: int | None = (
        None  # its number among all GPUs that the driver has, by address; and how many these are
    )
    of: int = 0


def placed(these: Iterable[ExcludedGpu], slots: Iterable[str]) -> tuple[ExcludedGpu, ...]:
    """The entries, each with its GPU's position in the list of all GPUs of the driver.

    `slots`: the PCI addresses of all GPUs in that order, like `0000:3b:00.0`. Positions are needed because to ask a GPU for its
    address would touch it.
    """
    ordered = sorted(slots)
    return tuple(
        ExcludedGpu(
            bus_id=one.bus_id,
            xid=one.xid,
            seconds=one.seconds,
            place=ordered.index(one.bus_id) if one.bus_id in ordered else None,
            of=len(ordered),
        )
        for one in these
    )


def why(xid: int, until: float) -> str:
    """The reason, for people, why a GPU is not read after this Xid. `until`: unix time."""
    moment = datetime.fromtimestamp(until, UTC).strftime("%H:%M:%S UTC")
    return f"Xid {xid}: it is left alone until {moment}, because calls to it may hang"


def gaps(lost: Iterable[LostGpu]) -> tuple[Gap, ...]:
    """Report entries ("gaps") for GPUs that were not read, because a read could have done harm."""
    return tuple(
        Gap(
            what=f"GPU {one.index} ({one.bus_id or 'address unknown'})",
            reason=one.reason,
            way_out=WAY_OUT,
        )
        for one in lost
        if one.code.startswith(CODE)
    )


def wants_release(node: NodeGpus) -> bool:
    """Whether some GPU needs a reset, and no process uses any GPU, so that the agent should let go of the driver.

    No GPU may be in use, because a reset includes those linked to it. False where processes could not be
    read.
    """
    reset_due = any(gpu.recovery_action in RESETS for gpu in node.gpus)
    return reset_due and all(gpu.processes == () for gpu in node.gpus)
