"""What the pages about storage, GPUs and probes show, as the agent's own parts tell it: for builders and for Chromium."""

import random
from collections.abc import Iterable

from msgspec.structs import replace

from mldebug.core.model import Gap, RankDevice
from mldebug.hardware.gpu.expected import GpuCount, KnownGpu, MissingGpu
from mldebug.hardware.gpu.readings import (
    LOST,
    EccCount,
    GpuReading,
    LostGpu,
    NodeGpus,
    NodeWatch,
    NvLink,
)
from mldebug.hardware.health.model import ComponentHealth, HealthState, SuggestedAction
from mldebug.hardware.host_memory.parse import Level, RankMemory
from mldebug.hardware.host_memory.state import NodeMemory, judged
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.probes.history import JudgedSeries, ProbeRun, ProbeSeries, judge_all
from mldebug.status.snapshot import RunState, Snapshot, SourceState
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.model import Completeness as Save
from mldebug.storage.checkpoints.state import SeriesState
from mldebug.storage.filesystems import fullness
from mldebug.storage.filesystems.forecast import Forecast
from mldebug.storage.filesystems.fullness import Fullness
from mldebug.storage.filesystems.limits import default_limit
from mldebug.storage.filesystems.state import CollectorState, Row, StorageAlert, StorageState
from mldebug_agents.storage.child.messages import MountAnswer, Space
from mldebug_agents.storage.filesystems.mounts import UsedMount
from mldebug_agents.storage.filesystems.state import FilesystemReading, filesystem_row, stuck_alert
from mldebug_agents.system.procfs import Mount
from shared.hardware.kernellines import fold, parse_line
from shared.web.snapshots import AT, moving, snapshot

GIB, TIB = 1 << 30, 1 << 40
STILL = Forecast()
JOB = "5c01"
SOURCES = tuple(
    SourceState(name=name, seconds=0.05, last_success=AT - 2)
    for name in ("watch", "gpus", "memory", "checkpoints", "probes", "storage-filesystems")
)


def quiet(*runs: RunState, **changes: object) -> Snapshot:
    """A healthy agent of which all sources answer."""
    calm: dict[str, object] = {"sources": SOURCES, "gaps": (), "reports_lost": 0}
    return snapshot(*runs, **(calm | changes))


# --- storage -------------------------------------------------------------------------------------


def mounted(point: str, source: str, kind: str, share: float, size: int, ahead: Forecast = STILL) -> FilesystemReading:  # fmt: skip
    """One filesystem at one look, used by 8 ranks."""
    left = int(size * (1 - share))
    space = Space(size=size, free=left, available=left, inodes=10**7, inodes_free=9_700_000)
    now = Fullness(size=size, left=left, inodes=1e7, inodes_left=9.7e6)
    return FilesystemReading(used=_used(point, source, kind), answer=MountAnswer(mount=1, space=space), now=now, ahead=(ahead, Forecast()))  # fmt: skip


def hanging_mount(point: str, source: str, seconds: float) -> FilesystemReading:
    """One that does not answer."""
    why = f"it has not answered for {fullness.duration_words(seconds)}"
    return FilesystemReading(
        used=_used(point, source, "nfs4"), answer=MountAnswer(mount=2, reason=why, stuck=seconds)
    )


def _used(point: str, source: str, kind: str) -> UsedMount:
    mount = Mount(id=1, point=point, fstype=kind, source=source, device=f"0:{len(point)}")
    return UsedMount(mount=mount, path=point.encode(), ranks=set(range(100, 108)), public=True)


def filesystems(*reading: FilesystemReading) -> CollectorState:
    """The part that looked at these, with the alarms that it would raise."""
    gaps = [Gap(what=f"filesystem {one.used.title}", reason=one.answer.reason) for one in reading if one.answer.reason]  # fmt: skip
    return CollectorState(
        name="filesystems",
        at=AT,
        rows={"filesystems": tuple(map(filesystem_row, reading))},
        alarms=tuple(alarm for one in reading for alarm in _alarms(one)),
        gaps=tuple(gaps),
    )


def _alarms(one: FilesystemReading) -> Iterable[StorageAlert]:
    if one.now is None:
        return [stuck_alert(one)]
    limits = (default_limit(one.used.name), 0.85)
    return fullness.fullness_alerts(one.used.title, one.now, limits, one.ahead, (86400.0, 3))


def part(name: str, *rows: Row, alarms: tuple[StorageAlert, ...] = ()) -> CollectorState:
    """Another part with these rows under its own name."""
    return CollectorState(name=name, at=AT, rows={name: rows}, alarms=alarms)


def kept(
    step: int, state: Save = Save.COMPLETE, minutes: float = 12.0, why: str = ""
) -> KnownCheckpoint:
    """One save."""
    at = AT - 60 * minutes
    return KnownCheckpoint(name=f"step_{step}", state=state, why=why, layout="distributed", size=412 * GIB,
                shards=8, began=at - 95, ended=at, step=step, world_size=8)  # fmt: skip


def saved(run: str = JOB, **changes: object) -> SeriesState:
    """One series of saves."""
    newest = kept(1300, Save.WRITING, 0.1)
    listed = (newest, *(kept(1200 - 100 * one, minutes=12.0 + 28 * one) for one in range(4)))
    made = SeriesState(
        run=run, folder="/scratch/ada/ckpt", series="step_#", last=listed[1], newest=newest, listed=listed,
        lost_seconds=815.0, lost_steps=104, period=1680.0,
        sentence="last complete checkpoint step_1200 12 min ago (412 GiB in 1 min 35 s, 4.3 GiB/s); if it dies now 13 min 35 s of work and"
                 " 104 steps are lost; step_1300 is being written, 118 GiB so far",
    )  # fmt: skip
    return replace(made, **changes)


def memory(ranks: int = 8, run: str = JOB) -> NodeMemory:
    """A host that is fine, and a control group that is nearly full."""
    levels = (
        judged(Level(scope="host", name="", limit=2 * TIB, used=812 * GIB), 1e6, 900.0),
        judged(Level(scope="cgroup", name="/slurm/uid_1000/job_77", limit=512 * GIB, used=497 * GIB), 3.1e7, 900.0),
    )  # fmt: skip
    each = tuple(
        RankMemory(run=run, rank=one, anon=(58 + one % 7) * GIB, shmem=3 * GIB, file=9 * GIB, growth=4e6 * (one == 3))
        for one in range(ranks)
    )  # fmt: skip
    return NodeMemory(at=AT, levels=levels, ranks=each)


SAVING = Forecast(per_second=2.6e8, seconds_left=5040.0, saves_left=3, checkpoint_bytes=412.0 * GIB, period=1680.0, trusted=True)  # fmt: skip


def storage(*, ranks: int = 8, writers: int = 4) -> Snapshot:
    """A mount hangs, another will be full in three saves; quotas, folders, writers, saves and memory."""
    cases = (
        mounted("/", "/dev/nvme0n1p2", "ext4", 0.41, 1800 * GIB),
        mounted("/scratch", "10.0.0.7@o2ib:/scratch", "lustre", 0.71, 480 * TIB, SAVING),
        hanging_mount("/data", "nfs01:/data", 194.0),
        mounted("/dev/shm", "tmpfs", "tmpfs", 0.03, 1008 * GIB),
    )
    quota: Row = {"quota": "work", "used_ratio": 0.914, "line": "work: 91.4% used, 18.3 TiB of 20 TiB"}  # fmt: skip
    alarm = StorageAlert(kind="quota", subject="work", sentence=f"quota {quota['line']}")
    tree: Row = {"path": "/scratch/ada/ckpt", "line": "/scratch/ada/ckpt: 3.62 TiB in 4214 inodes, kept fresh by events, as of 2 s ago"}  # fmt: skip
    part_trees: Row = {"path": "/data/cache", "lower_bound": True, "line": "/data/cache: at least 1.1 TiB in 918 inodes, counted anew from time to time, as of 9 min ago; 12 of its entries could not be looked at"}  # fmt: skip
    wrote = tuple[Row, ...](
        {"job": JOB, "rank": one, "line": f"rank {one} of llama-7b writes {1200 - one} MiB/s; /scratch/ada/ckpt/step_1300/{one}.distcp on /scratch grows by {1200 - one} MiB/s"}
        for one in range(writers)
    )  # fmt: skip
    parts = (filesystems(*cases), part("quotas", quota, alarms=(alarm,)), part("trees", tree, part_trees), part("writers", *wrote))  # fmt: skip
    run = replace(moving(JOB, ranks), name="llama-7b", checkpoint_series=(saved(), saved(series="last", last=None, newest=None, listed=(), lost_seconds=None, sentence="no complete checkpoint in /scratch/ada/ckpt")))  # fmt: skip
    return quiet(run, storage=StorageState(parts=parts), memory=memory(ranks))


# --- GPUs ----------------------------------------------------------------------------------------

XID = "3,1,0,-;NVRM: Xid (PCI:0000:6b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."
PAGE = "3,2,0,-;NVRM: Xid (PCI:0000:2b:00): 31, pid=4712, name=python3, MMU Fault"


def gpu(index: int, **changes: object) -> GpuReading:
    """An H200 that waits in a collective, with the figures of tests/fixtures/h200."""
    made = GpuReading(
        uuid=f"GPU-{index}", index=index, bus_id=f"00000000:{index + 1}B:00.0", name="NVIDIA H200",
        utilization_ratio=1.0, memory_used_bytes=118 * GIB, memory_total_bytes=140 * GIB, temperature_celsius=41.0,
        temperature_limits_celsius={"slowdown": 92.0}, power_average_watts=126.1, power_instant_watts=125.4,
        power_limit_watts=700.0, clock_hertz={"sm": 1.98e9}, clock_max_hertz={"sm": 1.98e9}, clock_events=(),
        ecc_mode=True, ecc=tuple(EccCount(type=kind, location="total", scope="volatile", count=0) for kind in ("corrected", "uncorrected")),
        pcie_width=16, pcie_width_max=16, nvlinks=tuple(NvLink(link=one, up=True) for one in range(18)), processes=(),
    )  # fmt: skip
    return replace(made, **changes)


def _health(index: int | None, component: str, state: HealthState = HealthState.HEALTHY, action: SuggestedAction = SuggestedAction.NONE, reason: str = "") -> ComponentHealth:  # fmt: skip
    uuid = "" if index is None else f"GPU-{index}"
    return ComponentHealth(component=component, state=state, action=action, reason=reason, uuid=uuid, gpu=index)  # fmt: skip


def _event(line: str, seconds: float, rank: int | None) -> RankEvent:
    found = parse_line(line, AT - seconds)
    assert found is not None
    (burst,) = fold([found])
    return RankEvent(burst=burst, run=JOB, rank=rank, by="gpu")


def gpus() -> Snapshot:
    """Seven of eight H200s answer; one of them is hot, one has memory errors."""
    hot = gpu(4, temperature_celsius=91.0, clock_hertz={"sm": 1.2e9}, clock_events=("hw_thermal_slowdown", "sw_power_cap"))  # fmt: skip
    errors = tuple(EccCount(type=kind, location="total", scope="volatile", count=count) for kind, count in (("corrected", 41), ("uncorrected", 2)))  # fmt: skip
    sick = gpu(1, ecc=errors)
    bare = gpu(7, utilization_ratio=None, temperature_celsius=None, power_instant_watts=None, power_average_watts=None, clock_events=None, ecc=())  # fmt: skip
    lost = LostGpu(index=5, uuid="GPU-5", bus_id="00000000:6B:00.0", reason="GPU is lost", code=LOST)  # fmt: skip
    away = MissingGpu(gpu=KnownGpu(uuid="GPU-5", bus_id="00000000:6B:00.0", index=5, name="NVIDIA H200"), since=AT - 754, reason="GPU is lost")  # fmt: skip
    found = (gpu(0), sick, gpu(2), gpu(3), hot, gpu(6), bare)
    health = (
        *(_health(one.index, "gpu_power") for one in found),
        _health(1, "gpu_ecc", HealthState.UNHEALTHY, SuggestedAction.RESET, "2 uncorrected ECC errors since the driver was loaded"),
        _health(4, "gpu_clocks", HealthState.DEGRADED, SuggestedAction.CHECK_COOLING, "clocks are cut 38 % of the time by hw_thermal_slowdown"),
        _health(7, "gpu_temperature", HealthState.UNKNOWN, reason="not readable: temperature"),
        _health(None, "gpu_count", HealthState.UNHEALTHY, SuggestedAction.REBOOT, "GPU 5 (00000000:6B:00.0, GPU-5) is missing: GPU is lost"),
    )  # fmt: skip
    states = tuple(RankDevice(rank=one, uuid=f"GPU-{one}", index=one, state="collective_wait") for one in range(8))  # fmt: skip
    run = replace(moving(JOB, 8), name="llama-7b", gpus={one: f"GPU-{one}" for one in range(8)}, gpu_states=states)  # fmt: skip
    return quiet(
        run,
        gpus=NodeGpus(at=AT - 12, driver_version="580.159.04", library_version="13.580", gpus=found, lost=(lost,)),
        gpu_watch=NodeWatch(at=AT - 2, lost=(lost,)),
        gpu_count=GpuCount(present=7, expected=8, missing=(away,)),
        health=health,
        kernel_events=(_event(PAGE, 4000.0, 1), _event(XID, 754.0, 5)),
        gaps=(Gap(what="kernel log", reason="12 records were overwritten before they were read"),),
    )  # fmt: skip


# --- probes --------------------------------------------------------------------------------------

SERIES = ProbeSeries(op="all_reduce", bytes=1 << 30, dtype="float32", ranks=8, device="NVIDIA H200", nodes="gpu-17",
                torch="2.13.0", nccl="2.28.9", nccl_algo="", variables="")  # fmt: skip


def measured(speeds: Iterable[float], **changes: object) -> tuple[ProbeSeries, list[ProbeRun]]:
    """A series with a run each day, the last one 3 hours ago; GB/s."""
    values = list(speeds)
    runs = [
        ProbeRun(at=AT - 10800 - 86400 * (len(values) - 1 - day), seconds=(1 << 30) / speed / 1e9, busbw=speed * 1e9)
        for day, speed in enumerate(values)
    ]  # fmt: skip
    return replace(SERIES, **changes), runs


def history() -> tuple[JudgedSeries, ...]:
    """One series has shifted, one got better, one is new, the others are steady."""
    dice = random.Random(7)

    def steady(level: float, count: int = 24) -> list[float]:
        return [level * dice.uniform(0.99, 1.01) for _ in range(count)]

    cases = [
        measured([*steady(478), *steady(411, 3)]),
        measured(steady(462), op="all_gather"),
        measured(steady(455), op="reduce_scatter"),
        measured([*steady(318), *steady(352, 3)], op="all_to_all"),
        measured(steady(84), bytes=1 << 20),
        measured(steady(21, 4), op="broadcast"),
        measured(steady(3.1), device="cpu", nccl="", ranks=4, bytes=16 << 20),
        measured([40.2], nccl_algo="Ring"),
    ]
    return judge_all(cases)


def probes() -> Snapshot:
    """The history of one node."""
    return quiet(probes=history())
