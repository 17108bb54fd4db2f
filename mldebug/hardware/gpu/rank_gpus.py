"""The GPU of each rank in figures: the newest looks at it, how sure it is that it is the rank's, and who else is on it. Pure."""

from collections.abc import Iterator, Mapping

from mldebug.core.model import GpuSample, RankDevice
from mldebug.hardware.gpu.fingerprint import Fingerprint, GpuFingerprint
from mldebug.hardware.gpu.rank_join import RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import GpuReading, GpuWatch, NodeGpus, NodeWatch
from mldebug.hardware.gpu.samples import ratio, watts

KEPT = 12  # looks at one GPU …
SPAN = 60.0  # … of the last seconds
MAX_PIDS = 32

Samples = Mapping[str, tuple[GpuSample, ...]]  # by uuid, oldest first


def with_looks(samples: Samples, watch: NodeWatch | None) -> Samples:
    """The same with one more look; GPUs that it does not tell of are left out."""
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
    """By rank; only GPUs of which there is a look. `fingerprint`: the run's fingerprint; `full`: the last full read."""
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
    for one in joined.ranks:
        if looks := samples.get(one.uuid):
            yield _device(one, looks, prints.get(one.rank), read.get(one.uuid), at)


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
        samples=looks,
    )
