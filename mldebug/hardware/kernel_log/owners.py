"""Whose processes and whose GPUs are on this node: what `joining.join` compares the kernel's events with."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from mldebug.core.model import Job
from mldebug.hardware.gpu.rank_join import Joined
from mldebug.hardware.kernel_log.attribution import Owner
from mldebug.hardware.kernel_log.line_readers import bus_id


def process_owners(jobs: Iterable[Job], children: Mapping[int, Iterable[int]]) -> dict[int, Owner]:
    """Pid -> owner, for all ranks, the lost ones whose pid is known, and `children` (rank's pid -> pids below it)."""
    return {pid: owner for job in jobs for pid, owner in _processes(job, children)}


def _processes(job: Job, children: Mapping[int, Iterable[int]]) -> Iterator[tuple[int, Owner]]:
    """When a lost rank or a child started is not known: not before its job, or its parent."""
    began = _began(job)
    for one in job.lost:
        if one.pid is not None:
            yield one.pid, Owner(run=job.id, rank=one.rank, started_at=began)
        for pid in one.leftovers:
            yield pid, Owner(run=job.id, rank=one.rank, started_at=began, child=True)
    for rank in job.ranks:
        owner = Owner(run=job.id, rank=rank.rank, started_at=rank.started_at)
        for pid in children.get(rank.pid, ()):
            yield pid, msgspec.structs.replace(owner, child=True)
        yield rank.pid, owner


def _began(job: Job) -> float:
    """The earliest time that is known of it; 0.0 where none is."""
    return min(
        (one for one in (job.started_at, *(r.started_at for r in job.ranks)) if one), default=0.0
    )


def gpu_owners(joined: Iterable[tuple[Job, Joined]]) -> dict[str, tuple[Owner, ...]]:
    """PCI address -> the ranks that use this GPU, of all jobs."""
    found: dict[str, tuple[Owner, ...]] = {}
    for job, ranks in joined:
        started = {one.rank: one.started_at for one in job.ranks}
        for one in ranks.ranks:
            if address := bus_id(one.bus_id):
                owner = Owner(
                    run=job.id,
                    rank=one.rank,
                    started_at=started.get(one.rank, _began(job)),
                    by="gpu" if one.sure else "environment",
                )
                found[address] = (*found.get(address, ()), owner)
    return found
