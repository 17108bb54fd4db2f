"""What the GPUs and the agent say for a while: the agent's own reads where one answers, else reads of our own.

A second reader beside an agent that does not answer could hang where it hangs, so then the GPUs are left alone.
"""

import time
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.model import Gap, Job, RankIdentity
from mldebug.hardware.gpu.hands_off import HandsOff
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
    """All that was seen, the oldest first."""

    read_by: Reader = "nobody"
    watch: list[NodeWatch] = []
    full: list[NodeGpus] = []
    failed: list[GpuReadFailure] = []
    statuses: list[Snapshot] = []  # without what stands in the other lists
    last: Snapshot | None = None  # whole
    gaps: list[Gap] = []


class AgentObserver:
    """Takes what each new snapshot of an agent brings."""

    def __init__(self) -> None:
        self.seen = Observations(read_by="agent")

    def take(self, snapshot: Snapshot) -> None:
        """One more snapshot, maybe the same as before."""
        before = self.seen.last
        if before is not None and before.at == snapshot.at:
            return
        self._watch(snapshot)
        self._full(snapshot)
        kept = self.seen.statuses
        if not kept or snapshot.at - kept[-1].at >= STATUS_EVERY:
            kept.append(slim(snapshot))
        self.seen.last = snapshot

    def finish(self) -> Observations:
        """All of it; the last snapshot is a status whenever it came."""
        last, kept = self.seen.last, self.seen.statuses
        if last is not None and kept[-1].at < last.at:
            kept.append(slim(last))
        return self.seen

    def _watch(self, snapshot: Snapshot) -> None:
        told, known = snapshot.gpu_watch, self.seen.watch
        if told is None:
            self._failed(snapshot, "watch")
        elif not known or told.at > known[-1].at:
            known.append(told)

    def _full(self, snapshot: Snapshot) -> None:
        told, known = snapshot.gpus, self.seen.full
        if told is None:
            self._failed(snapshot, "full")
        elif not known or told.at > known[-1].at:
            known.append(told)

    def _failed(self, snapshot: Snapshot, read: Literal["watch", "full"]) -> None:
        """The first of several failures, and none where there are no GPUs at all."""
        before = self.seen.last
        had = before is not None and (before.gpu_watch if read == "watch" else before.gpus)
        source = next((one for one in snapshot.sources if one.name == "gpus"), None)
        first = before is None and source is not None and bool(source.error)
        if had or first:
            error = source.error if source else ""
            self.seen.failed.append(GpuReadFailure(at=snapshot.at, read=read, error=error))


class DirectObserver:
    """Reads the GPUs itself. `status` is what the node was known to be without an agent."""

    def __init__(
        self,
        gpus: GpuSource,
        holders: Holders,
        node: str,
        version: str,
        forbidden: Callable[[], tuple[HandsOff, ...]] = tuple,
    ) -> None:
        """`forbidden`: GPUs that must not be asked now."""
        self.seen = Observations(read_by="mldebug support-bundle")
        self._gpus, self._forbidden = gpus, forbidden
        self._reads = GpuReads(self, holders)
        self._status = Snapshot(node=node, at=time.time(), started_at=time.time(), version=version)
        self._full_at = -FULL_EVERY
        self._resting = ""

    def watch(self, hands_off: tuple[HandsOff, ...] = ()) -> NodeWatch:
        """As `GpuSource` has it; keeps the read as it is."""
        self.seen.watch.append(told := self._gpus.watch(hands_off))
        return told

    def full(self, hands_off: tuple[HandsOff, ...] = ()) -> NodeGpus:
        """As `GpuSource` has it; keeps the read as it is, its counters too."""
        self.seen.full.append(told := self._gpus.full(hands_off))
        return told

    def look(self, jobs: tuple[Job, ...]) -> None:
        """Read what is due."""
        now = time.monotonic()
        ranks = {job.id: job.ranks for job in jobs}
        if now - self._full_at >= FULL_EVERY:
            self._full_at = now
            self._read("full", ranks, jobs)
        self._read("watch", None, jobs)

    def finish(self) -> Observations:
        """All of it."""
        if not self.seen.watch and not self.seen.full and not self.seen.failed:
            self.seen.read_by = "nobody"
            self.seen.gaps.append(Gap(what="GPUs", reason=self._resting or "nothing was read"))
        self.seen.last = self.seen.statuses[-1] if self.seen.statuses else None
        return self.seen

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
            joined = {id: {one.rank: one.uuid for one in told.ranks} for id, told in source.joined.items()}  # fmt: skip
        except NoGpuLibraryError as error:
            self._resting, joined = error.message, {}
        except MldebugError as error:
            self.seen.failed.append(GpuReadFailure(at=time.time(), read=read, error=error.message))
            joined = {}
        if ranks is not None:
            runs = tuple(
                msgspec.structs.replace(found_state(job), gpus=joined.get(job.id, {}))
                for job in jobs
            )
            self.seen.statuses.append(
                msgspec.structs.replace(self._status, at=time.time(), runs=runs)
            )


def slim(snapshot: Snapshot) -> Snapshot:
    """Without what is recorded elsewhere, or is made anew from it."""
    return msgspec.structs.replace(
        snapshot, gpus=None, gpu_watch=None, kernel=None, kernel_events=(), health=()
    )
