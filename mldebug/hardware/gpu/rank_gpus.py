"""The GPU of each rank in figures: its newest readings, how sure it is that the GPU is the rank's, and who else uses it.

Pure.
"""

from collections.abc import Iterator, Mapping

from mldebug.core.model import GpuSample, RankDevice
from mldebug.hardware.gpu.fingerprint import Fingerprint, GpuFingerprint
from mldebug.hardware.gpu.rank_join import RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import (
    GpuActivity,
    GpuReading,
    GpuWatch,
    NodeGpus,
    NodeWatch,
    ecc_count,
)
from mldebug.hardware.gpu.samples import ratio, watts

KEPT = 12  # looks at one GPU …
SPAN = 60.0  # … of the last seconds
MAX_PIDS = 32
MAX_RATE = 1e13  # bytes a second, more than any link has
SLOWED = frozenset(("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"))
"""Reasons for which the hardware itself cuts clocks; power caps and what an operator has set are no fault."""

Samples = Mapping[str, tuple[GpuSample, ...]]  # by uuid, oldest first


def with_looks(samples: Samples, watch: NodeWatch | None) -> Samples:
    """The samples with one more reading added.

    GPUs that the reading lacks are dropped; all are where it is None.
    """
    if watch is None:
        return {}
    return {one.uuid: _joined(samples.get(one.uuid, ()), watch.at, one) for one in watch.gpus}


def _joined(samples: tuple[GpuSample, ...], at: float, one: GpuWatch) -> tuple[GpuSample, ...]:
    earlier = (each for each in samples if at - SPAN <= each.at < at)
    sample = GpuSample(
        at=at,
        busy_ratio=ratio(one.utilization_ratio),
        memory_ratio=ratio(one.memory_utilization_ratio),
        power_watts=watts(one.power_watts),
    )
    return (*earlier, sample)[-KEPT:]


def rank_devices(
    joined: RankGpuMap, samples: Samples, fingerprint: Fingerprint | None, full: NodeGpus | None
) -> tuple[RankDevice, ...]:
    """The GPU of each rank with its samples, for GPUs that have any.

    `fingerprint`: the run's; `full`: the last full reading.
    """
    read = {one.uuid: one for one in full.gpus} if full else {}
    prints = {one.rank: one for one in fingerprint.gpus} if fingerprint else {}
    at = full.at if full else 0.0
    return tuple(_devices(joined, samples, prints, read, at))


def _devices(
    joined: RankGpuMap,
    samples: Samples,
    prints: Mapping[int | None, GpuFingerprint],
    read: Mapping[str, GpuReading],
    at: float,
) -> Iterator[RankDevice]:
    for rank in joined.ranks:
        if looks := samples.get(rank.uuid):
            yield _device(rank, looks, prints.get(rank.rank), read.get(rank.uuid), at)


def _device(
    one: RankGpu,
    looks: tuple[GpuSample, ...],
    fingerprint: GpuFingerprint | None,
    read: GpuReading | None,
    at: float,
) -> RankDevice:
    processes = (read.processes or ()) if read else ()
    activity = read.activity if read else None
    active = ratio(activity.sm_active_ratio) if activity else None
    return RankDevice(
        rank=one.rank,
        uuid=one.uuid,
        index=one.index,
        sure=one.sure,
        sliced=bool(one.instance or (read and read.mig_mode)),
        others=len(one.also),
        pids=tuple(process.pid for process in processes[:MAX_PIDS]),
        state=str(fingerprint.state) if fingerprint else "",
        usual_watts=fingerprint.usual_watts if fingerprint else None,
        sm_active_ratio=active,
        sm_since=at - activity.window_seconds if activity and active is not None else 0.0,
        sm_read_at=at if active is not None else 0.0,
        read_at=at if read else 0.0,
        clock_ratio=_clock(read) if read else None,
        slowed=tuple(sorted(SLOWED & set(read.clock_events or ()))) if read else (),
        link_bytes_per_second=_links(activity) if activity else None,
        sick=tuple(_sick(read)) if read else (),
        samples=looks,
    )


def _clock(read: GpuReading) -> float | None:
    most = read.clock_max_hertz.get("sm")
    now = read.clock_hertz.get("sm")
    return ratio(now / most) if most and now is not None else None


def _links(activity: GpuActivity) -> float | None:
    both = activity.nvlink_receive_bytes_per_second, activity.nvlink_transmit_bytes_per_second
    known = [one for one in both if one is not None and 0 <= one < MAX_RATE]
    return sum(known) if len(known) == len(both) else None


def _sick(read: GpuReading) -> Iterator[str]:
    """What speaks against its health, in phrases."""
    rows = read.remapped_rows
    if rows and rows.failed:
        yield "a row of its memory could not be replaced"
    if rows and rows.pending:
        yield "rows of its memory wait for a reset to be replaced"
    if read.retired_pages_pending:
        yield "pages of its memory wait for a reset to be retired"
    if errors := ecc_count(read, "uncorrected", "total", "volatile"):
        yield f"{errors:,} uncorrected memory errors since its last reset"
    if read.recovery_action not in (None, "none", "unknown"):
        yield f"the driver asks for a recovery ({read.recovery_action})"
