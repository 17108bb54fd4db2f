"""What is measured of a rank beside its stack, while its stack is sampled: for the cause why it is slow."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

GPU_LIMITS = {
    "hw_thermal_slowdown": "heat",
    "sw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "the power brake of its server",
    "hw_slowdown": "its hardware",
    "sw_power_cap": "its power limit",
}
"""Reasons of NVML for which clocks are cut, as words to follow "held back by"."""


class RankEvidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured of one rank during a stretch. Shares are 0 to 1 of the time; None and "": not known, or there is none."""

    throttled: float = 0.0  # its control group had used up its CPU quota
    quota: float | None = None  # CPUs that this quota allows
    cpus: int | None = None  # on which it may run
    neighbour: str = ""  # another program that was found running on these: `stress-ng (pid 12)`
    major_faults: float = 0.0  # a second: pages that were read back from a disk
    swapped: int = 0  # bytes of it on swap
    memory_pressure: float = 0.0  # some task of its node waited for memory
    file_waiting: float = 0.0  # it, or a process of its own, waited in the kernel for a file
    mount: str = ""  # of that file: `/data (nfs4)`
    mount_device: str = ""  # of that mount, on its node: `0:52`
    mount_slow: str = ""  # what has become slow there: `reads of /data (nfs01:/data) take 48 ms instead of 3 ms …`
    worker: int = 0  # pid of the child that waited for files most often; 0: none did
    busy_workers: int = 0  # children that were on a CPU nearly all the time
    link: str = ""  # a network port of its node that is not well: `port mlx5_3/1 has 12 symbol errors a second, for ten minutes`
    port_gigabits: float = (
        0.0  # a second: what the ports of its node carry that its job may use; 0: not known
    )
    gpu_clock: float | None = None  # of the multiprocessors, Hz
    gpu_limits: tuple[str, ...] = ()  # keys of `GPU_LIMITS` that hold now
    gpu_power_limit: float | None = None  # watts
    gpu_memory: int | None = None  # bytes that its process has on its GPU
    gpu_memory_since: float = (
        0.0  # unix time when it was first found to have a tenth more than before; 0.0: it was not
    )
    gpu_neighbour: str | None = (
        None  # another program that computes on its GPU: `python3 (pid 12)`; "": surely none does
    )
    gpu_neighbour_since: float = 0.0  # unix time when it was first found to compute there


class RankShares(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank spent its time in one stretch of samples, as shares from 0 to 1. `waiting` + `loading` + the time at work is
    1.
    """

    rank: int
    node: str = ""  # where it was sampled, for a run with ranks on several nodes
    samples: int
    waiting: float
    loading: float = 0.0
    exchanging: float = 0.0  # the part of `waiting` in sends and receives between two ranks
    idle_waiting: float = 0.0  # the part of `waiting` in which its thread was on no CPU
    recorded: float | None = (
        None  # share in which its GPU waited for others, by its Flight Recorder; None: not timed
    )
    on_gpu: float = 0.0  # the part of `waiting` for its own GPU, which may be at work
    places: dict[
        str, float
    ] = {}  # by function of the job, `fetch (train.py)`, where it works: the largest shares
    asleep: dict[str, float] = {}  # of each of these functions the part in which it was on no CPU
    lines: dict[str, int] = {}  # of each, the line in which it was found most often
    delayed: float = 0.0  # share of the time in which it was ready to run and no CPU was free
    evidence: RankEvidence = RankEvidence()


def mean_evidence(some: Sequence[RankEvidence]) -> RankEvidence:
    """Return the measurements of several sampling periods of one rank as one: the mean of shares and rates; of what does
    not change the newest known value.
    """
    last = some[-1]
    mounted = next((one for one in reversed(some) if one.mount), last)
    return msgspec.structs.replace(
        last,
        throttled=fmean(one.throttled for one in some),
        neighbour=next((one.neighbour for one in reversed(some) if one.neighbour), ""),
        major_faults=fmean(one.major_faults for one in some),
        memory_pressure=fmean(one.memory_pressure for one in some),
        file_waiting=fmean(one.file_waiting for one in some),
        link=next((one.link for one in reversed(some) if one.link), ""),
        worker=next((one.worker for one in reversed(some) if one.worker), 0),
        busy_workers=min(one.busy_workers for one in some),
        mount=mounted.mount,
        mount_device=mounted.mount_device,
        mount_slow=mounted.mount_slow,
        gpu_neighbour=_neighbour([one.gpu_neighbour for one in some]),
        gpu_limits=tuple(
            sorted(set(last.gpu_limits).intersection(*(one.gpu_limits for one in some)))
        ),
    )


def _neighbour(found: Sequence[str | None]) -> str | None:
    """The last program that computes on a GPU, where most readings found one (a program that has just begun is not found at once); None where only some did."""
    count = sum(map(bool, found))
    return found[-1] if not count or (found[-1] and 2 * count > len(found)) else None
