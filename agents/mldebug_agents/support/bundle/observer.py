"""Records GPU readings and agent statuses for a while: the agent's where one answers, else readings of its own.

A second reader beside an agent that does not answer could hang in the same call, so then the GPUs are left alone.
"""

import time
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.model import Gap, Job, RankIdentity
from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch
from mldebug.status.snapshot import Snapshot
from mldebug_agents.hardware.gpu.errors import NoGpuLibraryError
from mldebug_agents.hardware.gpu.holders import Holders
from mldebug_agents.hardware.gpu.reads import GpuOrder, GpuReads, GpuSource
from mldebug_agents.support.bundle.layout import GpuReadFailure
from mldebug_agents.watch.runs import found_state

STATUS_EVERY = 1.0  # seconds between two statuses that are kept
FULL_EVERY = 5.0  # seconds between two full reads of our own

Reader = Literal["agent", "mldebug support-bundle", "nobody"]


class Observations(msgspec.Struct, kw_only=True):
    """All that was recorded of a node, the oldest first."""

    read_by: Reader = "nobody"
    watch: list[NodeWatch] = []
    full: list[NodeGpus] = []
    failed: list[GpuReadFailure] = []
    statuses: list[Snapshot] = []  # without what stands in the other lists
    last: Snapshot | None = None  # whole
    gaps: list[Gap] = []


class AgentObserver:
    """Records the new readings and states in each snapshot of the agent."""

    def __init__(self) -> None:
        self.observations = Observations(read_by="agent")

    def take(self, snapshot: Snapshot) -> None:
        """Record one snapshot; one with the same time as the last is ignored."""
        before = self.observations.last
        if before is not None and before.at == snapshot.at:
            return
        self._watch(snapshot)
        self._full(snapshot)
        kept = self.observations.statuses
        if not kept or snapshot.at - kept[-1].at >= STATUS_EVERY:
            kept.append(slim(snapshot))
        self.observations.last = snapshot

    def finish(self) -> Observations:
        """Return all that was observed. The last snapshot is added to the statuses."""
        last, kept = self.observations.last, self.observations.statuses
        if last is not None and kept[-1].at < last.at:
            kept.append(slim(last))
        return self.observations

    def _watch(self, snapshot: Snapshot) -> None:
        new, kept = snapshot.gpu_watch, self.observations.watch
        if new is None:
            self._failed(snapshot, "watch")
        elif not kept or new.at > kept[-1].at:
            kept.append(new)

    def _full(self, snapshot: Snapshot) -> None:
        new, kept = snapshot.gpus, self.observations.full
        if new is None:
            self._failed(snapshot, "full")
        elif not kept or new.at > kept[-1].at:
            kept.append(new)

    def _failed(self, snapshot: Snapshot, read: Literal["watch", "full"]) -> None:
        """The first of several failures, and none where there are no GPUs at all."""
        before = self.observations.last
        had = before is not None and (before.gpu_watch if read == "watch" else before.gpus)
        source = next((one for one in snapshot.sources if one.name == "gpus"), None)
        first = before is None and source is not None and bool(source.error)
        if had or first:
            error = source.error if source else ""
            self.observations.failed.append(GpuReadFailure(at=snapshot.at, read=read, error=error))


class DirectObserver:
    """Records a node by reading its GPUs directly, where no agent answers."""

    def __init__(
        self,
        gpus: GpuSource,
        holders: Holders,
        node: str,
        version: str,
        forbidden: Callable[[], tuple[ExcludedGpu, ...]] = tuple,
    ) -> None:
        """`forbidden`: GPUs that must not be asked now."""
        self.observations = Observations(read_by="mldebug support-bundle")
        self._gpus, self._forbidden = gpus, forbidden
        self._reads = GpuReads(self, holders)
        self._status = Snapshot(node=node, at=time.time(), started_at=time.time(), version=version)
        self._full_at = -FULL_EVERY
        self._resting = ""

    def watch(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeWatch:
        """Make a quick reading of the GPUs and record it. `excluded`: GPUs that must not be touched."""
        self.observations.watch.append(read := self._gpus.watch(excluded))
        return read

    def full(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeGpus:
        """Make a full reading of the GPUs and record it with its raw counters. `excluded`: GPUs that must not be touched."""
        self.observations.full.append(read := self._gpus.full(excluded))
        return read

    def look(self, jobs: tuple[Job, ...]) -> None:
        """Make a quick reading of the GPUs and, every `FULL_EVERY` seconds, a full one. `jobs`: whose ranks are matched
        with GPUs.
        """
        now = time.monotonic()
        ranks = {job.id: job.ranks for job in jobs}
        if now - self._full_at >= FULL_EVERY:
            self._full_at = now
            self._read("full", ranks, jobs)
        self._read("watch", None, jobs)

    def finish(self) -> Observations:
        """Return all that was observed. If no GPU was read, its `gaps` say why."""
        if (
            not self.observations.watch
            and not self.observations.full
            and not self.observations.failed
        ):
            self.observations.read_by = "nobody"
            self.observations.gaps.append(
                Gap(what="GPUs", reason=self._resting or "nothing was read")
            )
        self.observations.last = (
            self.observations.statuses[-1] if self.observations.statuses else None
        )
        return self.observations

    def _read(
        self,
        read: Literal["watch", "full"],
        ranks: Mapping[str, tuple[RankIdentity, ...]] | None,
        jobs: tuple[Job, ...],
    ) -> None:
        try:
            source = self._reads(GpuOrder(ranks, self._forbidden()))
            if source.full is None and source.watch is None:
                self._resting = "no GPU library: no GPU here, or no driver"
            joined = {id: {rank.rank: rank.uuid for rank in rank_map.ranks} for id, rank_map in source.joined.items()}  # fmt: skip
        except NoGpuLibraryError as error:
            self._resting, joined = error.message, {}
        except MldebugError as error:
            self.observations.failed.append(
                GpuReadFailure(at=time.time(), read=read, error=error.message)
            )
            joined = {}
        if ranks is not None:
            runs = tuple(
                msgspec.structs.replace(
                    found_state(job, self._status.node), gpus=joined.get(job.id, {})
                )
                for job in jobs
            )
            self.observations.statuses.append(
                msgspec.structs.replace(self._status, at=time.time(), runs=runs)
            )


def slim(snapshot: Snapshot) -> Snapshot:
    """The snapshot without parts that the bundle records elsewhere or that can be computed from them."""
    return msgspec.structs.replace(
        snapshot, gpus=None, gpu_watch=None, kernel=None, kernel_events=(), health=()
    )
