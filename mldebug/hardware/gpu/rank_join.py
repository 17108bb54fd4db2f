"""Which rank uses which GPU: by the driver's list of compute processes, by open device files, by the environment.

Pure.

The driver's list counts more than the one device that a process has open (CUDA opens all that it
may use, so several prove nothing), and that more than the convention that local rank N takes the
N-th visible GPU. Contradictions are reported.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from mldebug.core.model import MeasuredData
from mldebug.core.ranksets import fold_ranks
from mldebug.hardware.gpu.readings import NVIDIA, GpuReading
from mldebug.hardware.gpu.visible_devices import (
    CUDA,
    VisibleDevice,
    VisibleDevices,
    in_pci_order,
    visible_gpus,
    whole_gpu,
)


class JoinEvidence(StrEnum):
    """What shows that a rank uses a GPU, the strongest evidence first."""

    COMPUTE_PROCESS = "compute process"
    OPEN_DEVICE = "only open device"
    ENVIRONMENT = "environment"


class RankProcess(MeasuredData, frozen=True, kw_only=True):
    """A rank's process on this node, and what shows which GPUs it uses."""

    rank: int
    pid: int  # as the agent counts
    start_ticks: int = 0
    local_rank: int | None = None
    open_minors: tuple[int, ...] | None = None  # N of each open /dev/nvidiaN; None: not readable
    environment: dict[str, str] | None = None  # visible.VARIABLES of it; None: not readable


class RankGpu(MeasuredData, frozen=True, kw_only=True):
    """A rank, the GPU that it uses, and the evidence for that."""

    rank: int
    uuid: str
    index: int
    bus_id: str = ""
    evidence: JoinEvidence
    words: str = ""  # "compute process 4711, 63.2 GiB", "local rank 3 of CUDA_VISIBLE_DEVICES"
    instance: str = ""  # uuid of a MIG slice
    also: tuple[str, ...] = ()  # uuids of other GPUs on which the driver counts its process
    conflicts: tuple[str, ...] = ()

    @property
    def sure(self) -> bool:
        """Whether the driver or open files show which GPU this rank uses. Otherwise it is only what its local rank suggests, and a script may
        choose another.
        """
        return self.evidence is not JoinEvidence.ENVIRONMENT


class RankGpuMap(MeasuredData, frozen=True, kw_only=True):
    """Which rank uses which GPU, for all ranks of a job on this node."""

    ranks: tuple[RankGpu, ...] = ()  # sorted by rank
    unknown: dict[int, str] = {}  # rank -> why its GPU is not known
    remarks: tuple[str, ...] = ()
    processes: dict[int, tuple[int, int]] = {}  # rank -> pid and start, of all that were looked at
    shared: tuple[
        str, ...
    ] = ()  # uuids of GPUs of these ranks on which processes compute that are none of the job's

    def of_rank(self, rank: int) -> RankGpu | None:
        """The entry of this rank; None where it has none."""
        return next((one for one in self.ranks if one.rank == rank), None)

    def on_gpu(self, uuid: str) -> tuple[int, ...]:
        """The ranks that use one GPU, given its uuid or that of a MIG slice of it."""
        return tuple(rank.rank for rank in self.ranks if uuid in (rank.uuid, rank.instance))

    def guessed(self) -> frozenset[int]:
        """The ranks whose GPU is only guessed from a convention (local rank = index)."""
        return frozenset(rank.rank for rank in self.ranks if not rank.sure)


class _GpuClaim(MeasuredData, frozen=True, kw_only=True):
    device: VisibleDevice
    evidence: JoinEvidence
    words: str


def join(
    processes: Iterable[RankProcess],
    gpus: Sequence[GpuReading],
    strangers: Collection[int] = (),
) -> RankGpuMap:
    """Give each rank the GPU that the strongest evidence names.

    Ranks without evidence are listed with the reason; contradictions become remarks. `strangers`: pids of processes that
    surely are none of the job's.
    """
    found: list[RankGpu] = []
    unknown: dict[int, str] = {}
    remarks: list[str] = []
    ranks = sorted(processes, key=lambda one: one.rank)
    for process in ranks:
        claims, problem = _claims(process, gpus)
        if claims:
            found.append(_choose(process, claims, gpus))
        else:
            unknown[process.rank] = problem or "nothing tells it"
    remarks += _foreign(ranks, gpus)
    remarks += _shared(found, _slices(ranks, gpus))
    return RankGpuMap(
        ranks=tuple(found),
        unknown=unknown,
        remarks=tuple(remarks),
        processes={rank.rank: (rank.pid, rank.start_ticks) for rank in ranks},
        shared=tuple(_with_strangers(found, gpus, strangers)),
    )


def _with_strangers(
    found: Sequence[RankGpu], gpus: Sequence[GpuReading], strangers: Collection[int]
) -> Iterator[str]:
    """GPUs on which the driver counts both a rank and a process that is none of the job's, and that is not known to leave the GPU
    alone: a program that only holds memory there (a desktop, a forgotten notebook) does none of its work.
    """
    ours = {one.uuid for one in found if one.evidence is JoinEvidence.COMPUTE_PROCESS}
    for gpu in gpus:
        if gpu.uuid in ours and any(
            one.pid in strangers and one.active is not False for one in gpu.processes or ()
        ):
            yield gpu.uuid


def _claims(process: RankProcess, gpus: Sequence[GpuReading]) -> tuple[list[_GpuClaim], str]:
    """All that is said of one rank, the strongest first; a problem of the weakest where nothing is."""
    cuda = [gpu for gpu in gpus if gpu.vendor == NVIDIA]
    claims = [*_by_driver(process, gpus), *_by_device(process, cuda)]
    claim, problem = _by_environment(process, cuda)
    return (claims if claim is None else [*claims, claim]), problem


def _by_driver(process: RankProcess, gpus: Sequence[GpuReading]) -> list[_GpuClaim]:
    """GPUs on which the driver counts it, the one with most of its memory first."""
    held = [
        (one.memory_bytes or 0, gpu)
        for gpu in gpus
        for one in gpu.processes or ()
        if one.pid == process.pid
    ]
    held.sort(key=lambda item: -item[0])
    return [
        _GpuClaim(
            device=whole_gpu(gpu),
            evidence=JoinEvidence.COMPUTE_PROCESS,
            words=f"compute process {process.pid}"
            + (f", {memory / 2**30:.1f} GiB" if memory else ""),
        )
        for memory, gpu in held
    ]


def _by_device(process: RankProcess, gpus: Sequence[GpuReading]) -> list[_GpuClaim]:
    minors = set(process.open_minors or ())
    if len(minors) != 1:
        return []
    (minor,) = minors
    return [
        _GpuClaim(
            device=whole_gpu(gpu),
            evidence=JoinEvidence.OPEN_DEVICE,
            words=f"/dev/nvidia{minor} is the only one open",
        )
        for gpu in gpus
        if gpu.minor == minor
    ]


def _by_environment(
    process: RankProcess, gpus: Sequence[GpuReading]
) -> tuple[_GpuClaim | None, str]:
    """What the convention says, as far as the open devices allow it: a claim outside them is none."""
    if process.open_minors == ():
        return None, "it has no GPU open"
    if process.environment is None:
        return None, "its environment is not readable"
    counted = [
        _counted(process, sight, gpus)
        for sight in visible_gpus(process.environment, gpus, process.open_minors)
    ]
    whole = [one for one in counted if one[0] is not None and not one[1]]
    claims = whole or [one for one in counted if one[0] is not None]
    devices = {(one.device.uuid, one.device.instance) for one, _ in claims if one is not None}
    if len(devices) > 1:
        return None, "its environment fits more than one of the GPUs that it has open"
    return (claims or counted)[0]


def _counted(
    process: RankProcess, sight: VisibleDevices, gpus: Sequence[GpuReading]
) -> tuple[_GpuClaim | None, str]:
    """The GPU that the local rank takes of those that it may use."""
    if not sight.devices:
        return None, sight.problem or f"{sight.source or 'the driver'} lets it see no GPU"
    source = sight.source or "all GPUs"
    if len(sight.devices) == 1:
        return _claim(sight.devices[0], f"the only GPU of {source}"), sight.problem
    local = process.local_rank
    if local is None:
        return None, sight.problem or f"it may use {len(sight.devices)} GPUs and has no local rank"
    if not 0 <= local < len(sight.devices):
        beyond = f"local rank {local} is beyond the {len(sight.devices)} of {source}"
        return None, sight.problem or beyond
    here = {device.uuid for device in sight.devices}
    some = [gpu for gpu in gpus if gpu.uuid in here]
    if sight.source != CUDA and not in_pci_order(process.environment or {}, some):
        return None, "the GPUs differ, and CUDA's order of them is not known"
    return _claim(sight.devices[local], f"local rank {local} of {source}"), sight.problem


def _claim(device: VisibleDevice, words: str) -> _GpuClaim:
    return _GpuClaim(device=device, evidence=JoinEvidence.ENVIRONMENT, words=words)


def _choose(
    process: RankProcess, claims: Sequence[_GpuClaim], gpus: Sequence[GpuReading]
) -> RankGpu:
    first, *others = claims
    device = first.device
    buses = {gpu.uuid: gpu.bus_id for gpu in gpus}
    instance = device.instance or next(
        (one.device.instance for one in others if one.device.uuid == device.uuid), ""
    )
    conflicts = tuple(
        f"{one.evidence.value} says GPU {one.device.index}: {one.words}"
        for one in others
        if one.device.uuid != device.uuid
    )
    return RankGpu(
        rank=process.rank,
        uuid=device.uuid,
        index=device.index,
        bus_id=buses.get(device.uuid, ""),
        evidence=first.evidence,
        words=first.words,
        instance=instance,
        also=tuple(
            one.device.uuid for one in others if one.evidence is JoinEvidence.COMPUTE_PROCESS
        ),
        conflicts=conflicts,
    )


# --- what is odd -----------------------------------------------------------------------------------


def _foreign(ranks: Sequence[RankProcess], gpus: Sequence[GpuReading]) -> Iterator[str]:
    """The driver counts processes, and none is a rank: it counts in another pid namespace, or they are not ours."""
    listed = {process.pid for gpu in gpus for process in gpu.processes or ()}
    if listed and ranks and not listed & {rank.pid for rank in ranks}:
        yield (
            f"the driver lists {len(listed)} compute processes and none is a rank's: "
            "another pid namespace (start the agent with hostPID), or leftovers of another job"
        )


def _slices(
    ranks: Sequence[RankProcess], gpus: Sequence[GpuReading]
) -> dict[tuple[int, str], int | None]:
    """By rank and GPU: the number of the MIG slice on which the driver counts the rank's process."""
    pids = {one.pid: one.rank for one in ranks}
    return {
        (pids[one.pid], gpu.uuid): one.gpu_instance
        for gpu in gpus
        for one in gpu.processes or ()
        if one.pid in pids
    }


def _shared(
    found: Sequence[RankGpu], slices: Mapping[tuple[int, str], int | None]
) -> Iterator[str]:
    """Several ranks on one GPU or slice: where that was not meant, one of them waits for the other for ever."""
    by_device: dict[tuple[str, str | int | None], list[RankGpu]] = {}
    for one in found:
        place = one.instance or slices.get((one.rank, one.uuid))
        by_device.setdefault((one.uuid, place), []).append(one)
    for some in by_device.values():
        if len(some) > 1:
            evidence = sorted({one.evidence.value for one in some})
            yield (
                f"ranks {fold_ranks(one.rank for one in some)} share GPU {some[0].index}"
                f" ({', '.join(evidence)})"
            )
