"""Readings ("looks") of the GPUs of a job that stands still, and whether they may be used to tell its ranks apart.

Pure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from mldebug.core.model import ClassifiedRank, NodeCapture, RankDevice
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.flight_recorder import FlightRecorders
from mldebug.diagnosis.classify.nccl_ras import ras_alike

BUSY = 0.9  # share of the time with a kernel, from which on a GPU is always busy
AT_REST = 0.6  # share of its usual power, above which a GPU does more than wait
LATELY = 30.0  # seconds before a capture whose looks count, at most
SETTLED = 3.0  # seconds after the last progress in which utilization may still be that of before
LOOKS, SPAN = 2, 1.5  # fewest looks, and seconds from the first to the last
MANY_LOOKS, LONG_SPAN = 3, 5.0  # from which on they are no passing moment
FOR_ITS_GPU = "device_sync"
FOR_OTHERS = frozenset((FOR_ITS_GPU, "collective", "backward_wait"))

Devices = Mapping[int, RankDevice]  # by rank


def judged_devices(case: Case, captures: Sequence[NodeCapture]) -> Devices:
    """The GPU readings of every rank, by rank; empty where they must not be used to tell ranks apart.

    They may be used where all ranks wait and none is missing or moved, each GPU is surely one
    rank's alone, each was read often enough, and all in the same period.
    """
    if case.suspects or case.moved or not case.complete or len(case.ranks) < 2:
        return {}
    if len(captures) > 1 and any(one.quiet_seconds <= 0 for one in captures):
        return {}  # perhaps they are of different moments
    devices = devices_of(captures)
    if not all(may_be_judged(one, devices) for one in case.ranks) or not _apart(devices):
        return {}
    found = {one.rank: devices[one.rank] for one in case.ranks}
    return found if _at_once(found) else {}


def called_alike(case: Case, captures: Sequence[NodeCapture]) -> str:
    """The names of the sources that show that all ranks launched the same collectives; "" where NCCL RAS does not show it, or the Flight Recorder contradicts."""
    if not ras_alike(captures):
        return ""
    if not any(one.groups for one in case.flight_records.values()):
        return "NCCL RAS"
    return "the Flight Recorder and NCCL RAS" if recorded_alike(case) else ""


def recorded_alike(case: Case) -> bool:
    """Whether the Flight Recorders show exactly one pending collective, called in the same way by all ranks."""
    claim = FlightRecorders(case).alike
    whole = claim is not None and len(claim.members) == len(case.ranks)
    sizes = claim is not None and claim.view.one_size(claim.sequence)
    pairs = any(one.transfers or one.sends for one in case.flight_records.values())
    return whole and sizes and not pairs


def devices_of(captures: Sequence[NodeCapture]) -> Devices:
    """The GPU of each rank, with the readings made since the last progress.

    Their times are seconds since that progress, so that clocks of nodes are not compared.
    """
    return dict(_devices(captures))


def _devices(captures: Sequence[NodeCapture]) -> Iterator[tuple[int, RankDevice]]:
    for capture in captures:
        here = {one.identity.rank for one in capture.ranks}
        devices = Counter(one.rank for one in capture.gpus)
        for one in capture.gpus:
            if one.rank in here and devices[one.rank] == 1:
                yield one.rank, _now(one, capture)


def _now(one: RankDevice, capture: NodeCapture) -> RankDevice:
    quiet = capture.quiet_seconds
    back = min(LATELY, quiet - SETTLED) if quiet > 0 else LATELY
    begin, end = capture.taken_at - back, capture.taken_at + max(LATELY, capture.duration_seconds)
    looks = tuple(
        replace(each, at=each.at - capture.taken_at + quiet)
        for each in one.samples
        if begin <= each.at <= end
    )
    active = one.sm_active_ratio if begin <= one.sm_since and one.sm_read_at <= end else None
    clock = one.clock_ratio if begin <= one.read_at <= end else None
    return replace(
        one,
        uuid=f"{capture.node}/{one.uuid}",
        samples=looks,
        sm_active_ratio=active,
        clock_ratio=clock,
        slowed=one.slowed if clock is not None else (),
    )


def may_be_judged(rank: ClassifiedRank, devices: Devices) -> bool:
    """Whether a rank's GPU tells something about the rank: it is surely the rank's own, no other process uses it, it was sampled often enough, and the rank waits for others."""
    one = devices.get(rank.rank)
    if one is None or rank.is_.name not in FOR_OTHERS or rank.is_.thread:
        return False
    own = one.sure and not one.sliced and not one.others and one.pids == (rank.pid,)
    return own and len(one.samples) >= LOOKS and span(one) >= SPAN


def _apart(devices: Devices) -> bool:
    return len({one.uuid for one in devices.values()}) == len(devices)


def _at_once(devices: Devices) -> bool:
    """Is there a time in which all were looked at? What differs at different times is no difference."""
    begins = max(one.samples[0].at for one in devices.values())
    return begins < min(one.samples[-1].at for one in devices.values())


def span(one: RankDevice) -> float:
    """Seconds from the first reading of the GPU to the last."""
    return one.samples[-1].at - one.samples[0].at


def looked_at_for_long(devices: Devices) -> bool:
    """Whether each of these GPUs was read so often and for so long that a passing state is excluded."""
    return all(
        len(one.samples) >= MANY_LOOKS and span(one) >= LONG_SPAN for one in devices.values()
    )


def rests(one: RankDevice) -> bool:
    """Whether every reading of the GPU shows far less power than its usual work takes, as of a GPU that waits.

    True where the usual power is not known; False where a reading has no power.
    """
    usual = one.usual_watts or 0.0
    return usual <= 0.0 or all(
        look.power_watts is not None and look.power_watts <= AT_REST * usual for look in one.samples
    )


def range_words(values: Sequence[float], scale: float) -> str:
    """The range of values, each multiplied by `scale`: `121 to 129`, or `125` where both ends are the same."""
    low, high = (f"{each * scale:.0f}" for each in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
