"""One look at the GPUs and the kernel log for a command: from the agent of this node where one runs, else read directly.

GPUs that an agent has released are not touched here either. The look has a time limit: where a driver hangs, the GPUs are missing
from the result, and the kernel log is still there.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from mldebug.config.schema import Config
from mldebug.core.model import Gap, Job, RankDevice
from mldebug.core.ranksets import fold_ranks
from mldebug.hardware.gpu.expected import ExpectedGpus, GpuCount
from mldebug.hardware.gpu.rank_gpus import rank_devices, with_looks
from mldebug.hardware.gpu.rank_join import RankGpuMap
from mldebug.hardware.gpu.readings import NodeGpus
from mldebug.hardware.health.faults import gpus_by_address
from mldebug.hardware.health.gpu_rules import gpu_health
from mldebug.hardware.health.model import ComponentHealth
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.kernel_log.attribution import RankEvent, gpu_owners, join, process_owners
from mldebug.hardware.kernel_log.excluded_gpus import excluded_gpus
from mldebug.status.gpu_view import GpuOverview, GpuUser, fresh, of_agent
from mldebug.status.snapshot import Snapshot
from mldebug_agents.hardware.gpu.errors import GpuBlockedError
from mldebug_agents.hardware.gpu.node_reader import NodeReader
from mldebug_agents.hardware.kernel_log import KernelNews, sees_kernel_pids
from mldebug_agents.hardware.own_reads import GpuPart, read_gpus, read_kernel
from mldebug_agents.jobs.ranks.discovery import Discovery, RankChild
from mldebug_agents.system.context import Context

RESERVE = 0.5  # seconds that are left for a second look
LISTEN = 1.0  # seconds at most in which the kernel's log is read before the GPUs are asked
T = TypeVar("T")


class _Task(Generic[T]):
    """A read in a thread of its own, left behind where it does not come back."""

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self._value: list[T] = []
        self._thread = threading.Thread(
            target=lambda: self._value.append(work()), name=f"mldebug-{name}", daemon=True
        )
        self._thread.start()

    def within(self, seconds: float) -> T | None:
        """The result of the work; None where it has not ended by then."""
        self._thread.join(max(0.0, seconds))
        return self._value[0] if self._value else None


class OneShotReader:
    """One look at the GPUs for a command. Reading begins when the object is made. `agent`: returns the snapshot of the node's
    agent, or None.
    """

    def __init__(
        self,
        context: Context,
        gpus: NodeReader,
        found: Discovery,
        seconds: float,
        agent: Callable[[], Snapshot | None] = lambda: None,
        *,
        alone: bool = False,
        between: float = 0.0,
        again: float = 0.0,
    ) -> None:
        """`alone`: look by ourselves even where an agent has looked just now.

        `between`: seconds between two full reads, for what only a movement tells; 0: one read. `again`: seconds between
        two looks at what the GPUs do, fewer where `take` is called before; 0: one look.
        """
        self._context, self._gpu_reader = context, gpus
        self._found, self._alone = found, alone
        self._until = time.monotonic() + seconds
        self._seconds, self._between, self._again = seconds, between, again
        self._wanted = threading.Event()
        self.agent_snapshot: Snapshot | None = None  # by the agent, where one answered
        self._parts = [GpuPart()]  # the newest, which knows most, last
        self._agent = _Task("agent", agent)
        self._kernel = _Task("kernel", lambda: read_kernel(context, self._until))
        self._gpus = _Task("gpus", self._read_gpus)

    def take(self) -> GpuOverview:
        """Wait for the readings until the time is over, and return all that is known then: the agent's where it is recent,
        else our own.
        """
        self._wanted.set()
        done = self._gpus.within(self._left())
        kernel = self._kernel.within(self._left())
        snapshot = self.agent_snapshot = self._agent.within(self._left())
        if snapshot is not None and not self._alone and _is_recent(snapshot):
            return of_agent(snapshot)
        part = self._parts[-1]
        if not done and part.full.full is None:
            reason = f"the driver has not answered within {self._seconds:g} s"
            late = Gap(what="GPUs", reason=reason, way_out="look for Xid lines in the kernel log")
            part = msgspec.structs.replace(part, gap=late)
        kernel = kernel or KernelNews(gap=Gap(what="kernel log", reason="it was not read in time"))
        return _put_together(self._context, self._found, part, kernel, snapshot)

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _wait_again(self) -> None:
        """Until it is time for the second look, or somebody wants to know what there is."""
        self._wanted.wait(min(self._again, max(0.0, self._left() - RESERVE)))

    def _read_gpus(self) -> bool:
        """What has come so far counts, also where the rest does not come."""
        snapshot = self._agent.within(
            self._seconds / 2
        )  # one that does not answer must not cost all
        if snapshot is not None and (stuck := _blocked(snapshot)):
            self._parts.append(GpuPart(gap=stuck))  # a second reader would hang in the same place
        elif snapshot is None or not (
            snapshot.gpus_released_until or (not self._alone and _is_recent(snapshot))
        ):
            news = self._kernel.within(min(LISTEN, self._seconds / 4)) or KernelNews()
            apart = excluded_gpus(news.bursts, time.time())
            jobs, again = self._found.jobs, self._wait_again if self._again else None
            for part in read_gpus(
                self._context, self._gpu_reader, jobs, self._between, apart, again
            ):
                self._parts.append(part)
        return True


def _is_recent(snapshot: Snapshot) -> bool:
    """Has the agent read lately, or said why it does not?"""
    return bool(snapshot.gpus_released_until) or (snapshot.gpus is not None and fresh(snapshot))


def _blocked(snapshot: Snapshot) -> Gap | None:
    """Does its reader sit in a call into the driver?"""
    hangs = any(source.error.startswith(GpuBlockedError.__name__) for source in snapshot.sources)
    return of_agent(snapshot).gpu_gap if hangs else None


def _put_together(
    context: Context, found: Discovery, part: GpuPart, kernel: KernelNews, snapshot: Snapshot | None
) -> GpuOverview:
    full = part.full.full
    events = _events(context, found, part.full.joined, kernel)
    by_agent = of_agent(snapshot) if snapshot else None
    if kernel.gap is not None and by_agent is not None and by_agent.kernel_gap is None:
        kernel, events = msgspec.structs.replace(kernel, gap=None), by_agent.events
    count = by_agent.count if by_agent and by_agent.count else _count(full, context.config)
    return GpuOverview(
        node=context.node,
        at=time.time(),
        gpus=full,
        watch=part.watch.watch,
        users=tuple(_users(found.jobs, part.full.joined)) or (by_agent.users if by_agent else ()),
        unjoined=_unjoined(found.jobs, part.full.joined),
        sentences=by_agent.sentences if by_agent else {},
        states=_states(part) or (by_agent.states if by_agent else {}),
        count=count,
        events=events,
        health=(
            *_gpu_health(part, context.config),
            *_node_health(context.config, full, events, count, readable=kernel.gap is None),
        ),
        no_library=part.no_library,
        gpu_gap=part.gap,
        kernel_gap=kernel.gap,
        released_until=by_agent.released_until if by_agent else None,
    )


def _states(part: GpuPart) -> dict[str, tuple[RankDevice, ...]]:
    """The GPUs of each job's ranks in figures, without a baseline."""
    looks = with_looks({}, part.watch.watch)
    looks = with_looks(looks, part.again.watch) if part.again.watch else looks
    full = part.full
    return {job: rank_devices(ranks, looks, None, full.full) for job, ranks in full.joined.items()}


def _events(
    context: Context, found: Discovery, joined: Mapping[str, RankGpuMap], kernel: KernelNews
) -> tuple[RankEvent, ...]:
    below = {pid: _pids(some) for pid, some in found.children.items()}
    return join(
        kernel.bursts,
        process_owners(found.jobs, below),
        gpu_owners([(job, joined.get(job.id, RankGpuMap())) for job in found.jobs]),
        first_namespace=sees_kernel_pids(context.host),
    )


def _pids(children: Sequence[RankChild]) -> list[int]:
    return [one.pid for one in children]


def _count(full: NodeGpus | None, config: Config) -> GpuCount | None:
    """Without an agent nothing is remembered: what the configuration says, or nothing."""
    wanted = config.health.gpus
    if full is None or not isinstance(wanted, int):
        return None
    return ExpectedGpus().look(full, configured=wanted)


def _gpu_health(part: GpuPart, config: Config) -> Iterator[ComponentHealth]:
    if part.full.full is None:
        return
    first = part.before.full if part.before is not part.full else None
    before = {one.uuid: one for one in first.gpus} if first else {}
    seconds = part.full.full.at - first.at if first else 0.0
    for gpu in part.full.full.gpus:
        yield from gpu_health(gpu, before.get(gpu.uuid), seconds, config.health.thresholds)


def _node_health(
    config: Config,
    full: NodeGpus | None,
    events: tuple[RankEvent, ...],
    count: GpuCount | None,
    *,
    readable: bool,
) -> tuple[ComponentHealth, ...]:
    return node_health(
        events,
        time.time(),
        config.health.thresholds,
        kernel_readable=readable,
        count=count,
        uuids=gpus_by_address(full.gpus if full else ()),
    )


def _users(jobs: Sequence[Job], joined: Mapping[str, RankGpuMap]) -> Iterator[GpuUser]:
    for job in jobs:
        for rank in joined.get(job.id, RankGpuMap()).ranks:
            yield GpuUser(
                uuid=rank.uuid,
                job_id=job.id,
                job=job.name,
                rank=rank.rank,
                words=rank.words,
                sure=rank.sure,
            )


def _unjoined(jobs: Sequence[Job], joined: Mapping[str, RankGpuMap]) -> tuple[str, ...]:
    """One line for each reason, and each remark once."""
    lines: list[str] = []
    remarks: list[str] = []
    for job in jobs:
        ranks = joined.get(job.id, RankGpuMap())
        reasons: dict[str, list[int]] = {}
        for rank, why in ranks.unknown.items():
            reasons.setdefault(why, []).append(rank)
        lines += [f"{_ranks(some)} of {job.name}: {why}" for why, some in reasons.items()]
        remarks += ranks.remarks
    return tuple(dict.fromkeys((*lines, *remarks)))


def _ranks(some: Sequence[int]) -> str:
    return f"rank{'s' if len(some) > 1 else ''} {fold_ranks(some)}"
