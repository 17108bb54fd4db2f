"""Which rank works on which GPU, to join with every metric that has `uuid` or `gpu`, and the GPU memory of each rank."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.hardware.gpu.readings import GpuReading, LostGpu
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

UNSURE = "while the GPU of a rank is not known, or only its environment says which one it should be"
TABLE = FamilyTable(absent=UNSURE, importance=Importance.RANK)
RANK = TABLE.labelled("run", "rank")
INFO = RANK.info(
    "rank_gpu",
    "The GPU that a rank works on, as the driver or its open device says: to join on `uuid` with the metrics of GPUs here, and with"
    " those of other exporters on `uuid` or `gpu` (the index).",
    "gpu",
    "uuid",
)
MEMORY = RANK.gauge(
    "rank_gpu_memory_bytes",
    "Memory of the GPU that the rank's own process uses, as the driver counts it.",
    "uuid",
    absent="where the driver does not tell it, as of a process in another pid namespace",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The GPU of each rank that is surely known, also of one that is lost since, and what its process uses of it."""
    full = snapshot.gpus
    gpus: dict[str, GpuReading | LostGpu] = {}
    if full is not None:
        gpus = {one.uuid: one for one in full.lost} | {gpu.uuid: gpu for gpu in full.gpus}
    for run in snapshot.runs:
        for rank, uuid in sorted(run.gpus.items()):
            if uuid in gpus and rank not in run.gpus_guessed:
                yield from _rank(run, rank, gpus[uuid])


def _rank(run: RunState, rank: int, gpu: GpuReading | LostGpu) -> Iterator[Sample]:
    labels = (run.id, str(rank))
    yield Sample(INFO, (*labels, str(gpu.index), gpu.uuid))
    if isinstance(gpu, LostGpu):
        return
    pid = run.ranks.get(rank)
    counted = [one.memory_bytes for one in gpu.processes or () if one.pid == pid]
    known = [size for size in counted if size is not None]
    if known:
        yield Sample(MEMORY, (*labels, gpu.uuid), sum(known))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `rank_gpus`: which rank works on which GPU, to join with every metric that has `uuid` or `gpu`, and the GPU memory of each rank."""
    return MetricGroup(TABLE.families, samples)
