"""GPUs: load, memory, power, heat, clocks, errors, links; `uuid` and `gpu` name a GPU, the rest stands in its info."""

from collections.abc import Iterator

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.hardware.gpu.readings import GpuReading, NodeGpus, NodeWatch
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample
from mldebug_exporters.metrics.hardware import _gpu_table

NO_LIBRARY = "where there is no GPU library, and after a read that failed"

TABLE = FamilyTable(absent=NO_LIBRARY)
GPUS = TABLE.gauge("gpus", "GPUs that answered the last read.")
GPU = TABLE.labelled("uuid", "gpu")
UP = GPU.gauge(
    "gpu_up",
    "1 where the GPU answered the last read, 0 where it was there before and does not answer.",
    absent="before a GPU has answered once",
    importance=Importance.RUN,
)
INFO = GPU.info(
    "gpu",
    "Who a GPU is, to join on `uuid`.",
    "name",
    "driver_version",
    "vbios",
    "pci_bus_id",
    "serial",
    "mig_mode",
    absent=_gpu_table.UNREADABLE,
    importance=Importance.RUN,
)
READ = TABLE.gauge(
    "gpu_read_duration_seconds",
    "Duration of the last watch read (every few seconds) and full read of all GPUs.",
    "read",
)
READ_CPU = TABLE.gauge(
    "gpu_read_cpu_seconds", "CPU time that the last read took in the child that reads GPUs.", "read"
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The last readings of the GPUs of this node. A GPU that is lost has only `up` 0."""
    node, watch = snapshot.gpus, snapshot.gpu_watch
    yield from _cost("full", node)
    yield from _cost("watch", watch)
    if node is None:
        return
    newest = watch if watch is not None and watch.at >= node.at else None
    lost = {one.uuid: one for one in (*node.lost, *(newest.lost if newest else ()))}
    here = [gpu for gpu in node.gpus if gpu.uuid not in lost]
    yield Sample(GPUS, (), len(here))
    for one in lost.values():
        if one.uuid:
            yield Sample(UP, (one.uuid, str(one.index)), 0)
    for gpu in _updated(here, newest):
        yield from _gpu(gpu, node.driver_version)


def _gpu(gpu: GpuReading, driver: str) -> Iterator[Sample]:
    one = (gpu.uuid, str(gpu.index))
    mig = {None: "", True: "enabled", False: "disabled"}[gpu.mig_mode]
    yield Sample(UP, one)
    yield Sample(INFO, (*one, gpu.name, driver, gpu.vbios, gpu.bus_id, gpu.serial, mig))
    yield from _gpu_table.gpu_samples(gpu)


def _updated(gpus: list[GpuReading], watch: NodeWatch | None) -> Iterator[GpuReading]:
    """The full readings, with what the watch has seen since."""
    looks = {one.uuid: one for one in watch.gpus} if watch else {}
    for gpu in gpus:
        look = looks.get(gpu.uuid)
        yield (
            gpu
            if look is None
            else msgspec.structs.replace(
                gpu,
                utilization_ratio=look.utilization_ratio,
                memory_utilization_ratio=look.memory_utilization_ratio,
                power_instant_watts=gpu.power_instant_watts and look.power_watts,
            )
        )


def _cost(name: str, read: NodeGpus | NodeWatch | None) -> Iterator[Sample]:
    if read is not None:
        yield Sample(READ, (name,), read.read_seconds)
        yield Sample(READ_CPU, (name,), read.cpu_seconds)


def create(options: NoOptions) -> MetricGroup:
    """Build the group."""
    return MetricGroup((*TABLE.families, *_gpu_table.TABLE.families), samples)
