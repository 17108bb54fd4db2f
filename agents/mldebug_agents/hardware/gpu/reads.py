"""The two readings of the GPUs that a worker takes: quick values at every look, all values about twice a minute.

A node without GPUs is no failure: the result is then empty and says so.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from mldebug.core.model import RankIdentity
from mldebug.hardware.gpu.counters import Counters
from mldebug.hardware.gpu.excluded import ExcludedGpu, placed
from mldebug.hardware.gpu.positions import located, named, with_lost
from mldebug.hardware.gpu.rank_join import RankGpuMap, join
from mldebug.hardware.gpu.readings import GpuReading, NodeGpus, NodeWatch
from mldebug_agents.hardware.gpu.errors import NoGpuLibraryError
from mldebug_agents.hardware.gpu.holders import Holders
from mldebug_agents.hardware.gpu.neighbours import GpuNeighbour, UseOfGpus
from mldebug_agents.system.host import Host

VIEW = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # what narrows what the agent itself sees
FOLDER = "sys/bus/pci/drivers/nvidia"
_SLOT = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class GpuSource(Protocol):
    """What reads the GPUs of this node: `NodeReader`, or a recording of one."""

    def watch(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeWatch:
        """A quick reading of what changes often. `excluded`: GPUs that must not be touched."""
        ...

    def full(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeGpus:
        """A full reading of all GPUs. `excluded`: GPUs that must not be touched."""
        ...


class GpuOrder(NamedTuple):
    """An order to the worker: a quick reading, or with `ranks` (of each job on this node, by job id) a full one."""

    ranks: Mapping[str, tuple[RankIdentity, ...]] | None = None  # None: only what moves
    excluded: tuple[ExcludedGpu, ...] = ()  # GPUs that must not be asked now


class GpuNews(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading the GPUs of this node: of a quick reading `watch`, of a full one `full` and which rank uses which GPU (`joined`).
    Neither: this node has no GPUs, or no driver.
    """

    watch: NodeWatch | None = None
    full: NodeGpus | None = None  # counters are monotone
    joined: dict[str, RankGpuMap] = {}  # by job id
    neighbours: dict[
        str, dict[str, GpuNeighbour | None]
    ] = {}  # by job id, by uuid of a GPU of which it is known
    view: str = ""


class GpuReads:
    """Reads the GPUs of one vendor in a worker thread of its own. A read raises what the vendor's library raises; a library that is not
    installed is no error and gives no GPUs.
    """

    def __init__(
        self, gpus: GpuSource, holders: Holders, slots: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """`slots`: the PCI addresses of all GPUs that the driver has."""
        self._gpus = gpus
        self._slots = slots
        self._holders = holders
        self._counters = Counters()
        self._use = UseOfGpus()

    def __call__(self, order: GpuOrder) -> GpuNews:
        """Read what is wanted."""
        excluded = placed(order.excluded, self._slots()) if order.excluded else ()
        try:
            if order.ranks is None:
                watch = self._gpus.watch(excluded)
                return GpuNews(watch=located(watch, self._slots()) if watch.lost else watch)
            return self._full(order.ranks, excluded)
        except NoGpuLibraryError:
            return GpuNews()

    def _full(
        self, ranks: Mapping[str, tuple[RankIdentity, ...]], excluded: tuple[ExcludedGpu, ...]
    ) -> GpuNews:
        full = self._counters.take(self._gpus.full(excluded))
        full = located(full, self._slots()) if full.lost else full
        everybody = [one for job in ranks.values() for one in job]
        holders = {one.pid: one for one in self._holders.look(everybody)}
        gpus = with_lost(full)
        self._use.update(gpus, full.at)
        strangers = {one: self._strangers(gpus, here, everybody) for one, here in ranks.items()}
        joined = {
            job_id: named(
                join(
                    [holders[one.pid] for one in here if one.pid in holders],
                    gpus,
                    strangers[job_id],
                )
            )
            for job_id, here in ranks.items()
        }
        neighbours = {one: self._neighbours(gpus, some) for one, some in strangers.items()}
        view = "/".join(os.environ.get(name, "") for name in VIEW)
        return GpuNews(full=full, joined=joined, neighbours=neighbours, view=view)

    def _neighbours(
        self, gpus: Iterable[GpuReading], strangers: frozenset[int]
    ) -> dict[str, GpuNeighbour | None]:
        return {
            uuid: one and msgspec.structs.replace(one, name=self._holders.program(one.pid))
            for uuid, one in self._use.neighbours(gpus, strangers).items()
        }

    def _strangers(
        self,
        gpus: Iterable[GpuReading],
        ranks: Iterable[RankIdentity],
        everybody: Iterable[RankIdentity],
    ) -> frozenset[int]:
        """Pids of processes with a compute context that are none of the job's."""
        ours = {one.pid for one in ranks}
        listed = {one.pid for gpu in gpus for one in gpu.processes or ()} - ours
        others = {one.pid for one in everybody} - ours
        return self._holders.strangers(listed, ours, others) if listed else frozenset()


def gpu_slots(host: Host) -> tuple[str, ...]:
    """PCI addresses (`0000:3b:00.0`) of all GPUs that the NVIDIA driver has, whether they answer or not; () without the driver.

    Read from the driver's folder in /sys: it lists names only and never asks a device.
    """
    try:
        names = os.listdir(f"{host.root}/{FOLDER}")
    except OSError:
        return ()
    return tuple(name for name in names if _SLOT.fullmatch(name))
