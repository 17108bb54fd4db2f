"""Which processes compute on each GPU, and since when: for a rank whose GPU another program uses, too. Pure.

The driver counts the use of each process between two readings (`GpuProcess.active`), where several have a context on a GPU. It does not for
a GPU that is divided by MIG, whose instances do not slow each other.
"""

from collections.abc import Collection, Iterable

import msgspec

from mldebug.hardware.gpu.readings import GpuReading


class GpuNeighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A program that computes on the GPU of a rank, and is none of its job's. `since`: unix time of the first reading that has shown it at
    work there; 0.0 where none before shows that it was not.
    """

    pid: int
    since: float = 0.0
    name: str = ""  # `python3 (pid 12)`


def users(gpu: GpuReading) -> frozenset[int] | None:
    """The pids of the processes that compute on the GPU; None where the driver does not tell."""
    if gpu.processes is None or gpu.mig_mode or gpu.mig_instances:
        return None
    if len(gpu.processes) > 1 and any(one.active is None for one in gpu.processes):
        return None
    return frozenset(one.pid for one in gpu.processes if one.active is not False)


class UseOfGpus:
    """Remembers since when which process computes on which GPU."""

    def __init__(self) -> None:
        self._since: dict[str, dict[int, float]] = {}  # uuid -> pid -> unix

    def update(self, gpus: Iterable[GpuReading], at: float) -> None:
        """Add a full reading, taken at unix time `at`. One that does not tell who computes changes nothing."""
        newest: dict[str, dict[int, float]] = {}
        for gpu in gpus:
            known, computing = self._since.get(gpu.uuid), users(gpu)
            listed = {one.pid for one in gpu.processes or ()}
            if computing is None:
                if known is not None:
                    newest[gpu.uuid] = known
                continue
            first = at if known is not None else 0.0
            kept = {pid: since for pid, since in (known or {}).items() if pid in listed}
            newest[gpu.uuid] = dict.fromkeys(computing, first) | kept
        self._since = newest

    def neighbours(
        self, gpus: Iterable[GpuReading], strangers: Collection[int]
    ) -> dict[str, GpuNeighbour | None]:
        """By uuid, for each GPU whose processes the driver lists: the process of `strangers` that computes there, the one with most memory where
        several do; None where none does.
        """
        found: dict[str, GpuNeighbour | None] = {}
        for gpu in gpus:
            computing = users(gpu)
            if computing is None:
                continue
            beside = [
                one for one in gpu.processes or () if one.pid in computing and one.pid in strangers
            ]
            pid = (
                max(beside, key=lambda one: (one.memory_bytes or 0, -one.pid)).pid if beside else 0
            )
            since = self._since.get(gpu.uuid, {}).get(pid, 0.0)
            found[gpu.uuid] = GpuNeighbour(pid=pid, since=since) if pid else None
        return found
