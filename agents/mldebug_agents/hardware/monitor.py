"""The monitor of GPUs and kernel log: readings and events, joined with the runs and their ranks. One for each agent.

order --> workers "gpus" and "kernel" --news--> monitor --> job looks, captures, exits, snapshot

Belongs to the main loop's thread.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from mldebug.config.schema import Config
from mldebug.core.model import Fault, Gap, Job, NodeCapture, RankDevice
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.straggler import SampledStretch
from mldebug.hardware.gpu.excluded import ExcludedGpu, wants_release
from mldebug.hardware.gpu.excluded import gaps as gaps_of
from mldebug.hardware.gpu.rank_gpus import rank_devices
from mldebug.hardware.gpu.readings import NodeGpus
from mldebug.hardware.health.faults import faults_of_events, gpus_by_address
from mldebug.hardware.health.model import BAD, ComponentHealth
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.recovery import RecoveryWatch, requests
from mldebug.hardware.kernel_log.attribution import RankEvent, gpu_owners, join, process_owners
from mldebug.hardware.kernel_log.counts import GpuLabel, KernelCounts, named
from mldebug.hardware.kernel_log.excluded_gpus import excluded_gpus
from mldebug.hardware.kernel_log.model import KernelEvent
from mldebug.hardware.kernel_log.xids import xid_of_nvml
from mldebug.status.gpu_lines import rank_sentences
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.hardware.gpu.controller import BY_ITSELF, GpuController
from mldebug_agents.hardware.gpu.errors import GpusReleasedError
from mldebug_agents.hardware.gpu.levels import Levels
from mldebug_agents.hardware.gpu.monitor import GpuMonitor
from mldebug_agents.hardware.gpu.rank_evidence import with_gpu
from mldebug_agents.hardware.gpu.reads import GpuNews, GpuOrder
from mldebug_agents.hardware.kernel_log import (
    KernelNews,
    gpu_names,
)
from mldebug_agents.jobs.ranks.discovery import RankChild
from mldebug_agents.state.key_value_store import KeyValueStore
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

GPU_DEADLINE, KERNEL_DEADLINE = 30.0, 5.0
LISTEN = 2.0  # seconds at most in which the kernel's log is read before the GPUs are asked
FULL_EVERY = 30.0  # seconds between two full reads of the GPUs
FULL_SOON = 5.0  # the same where a run has begun, or may stand still
TRIES = 12  # full reads after which a rank whose GPU is not known has none
STORE_EVERY = 30.0
JUDGE_EVERY = 30.0  # seconds between two judgements of the same evidence: it only grows older, and counts for hours


class HardwareMonitor:
    """Keeps the last readings of this node's GPUs and kernel log, and joins them with the runs. For the main loop's thread."""

    def __init__(
        self,
        node: str,
        memory: KeyValueStore,
        workers: Mapping[str, Worker],
        *,
        kernel_pids: bool,
        now: Callable[[], float] = time.time,
        gpus: object = None,
    ) -> None:
        """`workers` read when `turn` says so; `kernel_pids`: are pids here those that the kernel logs?

        `gpus`: who holds the GPUs open, for requests to let go of them.
        """
        self._node = node
        self.gpu_controller = GpuController(gpus)
        self._now = now
        self._gpus = GpuMonitor(memory, node)
        self._levels = Levels(memory)
        self._recovery = RecoveryWatch()
        self._recovered: Mapping[
            str, float
        ] = {}  # PCI address -> unix: since when it is well again
        self._memory = memory
        self.workers = workers
        self._first_namespace = kernel_pids
        self._kernel: KernelNews | None = None
        self._events: tuple[RankEvent, ...] = ()
        self._health: tuple[ComponentHealth, ...] = ()
        self._node_health: tuple[ComponentHealth, ...] = ()  # by the kernel's log
        self._judged: tuple[object, ...] = ()  # on what evidence
        self._judged_at = 0.0
        self._waiting: tuple[
            ComponentHealth, ...
        ] = ()  # why the agent let go of the GPUs by itself
        self._let_go_with: set[str] = set()  # runs that were here when it did
        self._new_xids: list[KernelEvent] = []  # Xids that NVML told, for the kernel worker
        self._tries: dict[str, int] = {}  # full reads since a run was found
        self._full_at = -FULL_EVERY
        self._due = self._store_due = 0.0
        self._pending_reads = 0  # reads of the kernel's log that have not come back
        self._ask_by: float | None = None  # the GPUs are asked then, or as soon as the log is read

    # --- the loop ----------------------------------------------------------------------------------

    def tick(self, runs: Mapping[str, Run], interval: float, *, looked: bool, soon: bool = False) -> None:  # fmt: skip
        """Order the readings of GPUs and kernel log that are due, and carry out what users ordered. `interval`: seconds
        between two readings. `looked`: jobs have been searched for, so what is known of runs not in `runs` may be
        forgotten. `soon`: a stall is suspected, or a run is slower than usual, so full readings of the GPUs come every `FULL_SOON` seconds: their
        hardware counters show whether a GPU that spins moves anything.
        """
        now = time.monotonic()
        for _ in self.gpu_controller.grant(self._gpus.accept):
            self._full_at = -FULL_EVERY  # their health is judged anew
        if self.gpu_controller.why == BY_ITSELF and self.gpu_controller.released_until and runs.keys() - self._let_go_with:  # fmt: skip
            self.gpu_controller.take_up()
            log.warning("GPUs: taken up again: a new run may use them")
        if now >= self._due:
            self._due = now + interval
            self._ask_by = now + LISTEN if self._ask_by is None else self._ask_by
            self._order_kernel()
        elif self._kernel is not None and self._kernel.behind:
            self._order_kernel()
        if self._ask_by is not None and (now >= self._ask_by or not self._pending_reads):
            self._ask_by = None
            self._order_gpus(runs, now, soon=soon)
        if now >= self._store_due and looked and self._memory.opened:
            self._store_due = now + STORE_EVERY
            self._levels.keep_only(runs.keys())
            self._levels.store()
            self._gpus.keep_only(set(runs))

    def _order_gpus(self, runs: Mapping[str, Run], now: float, *, soon: bool) -> None:
        if self.workers["gpus"].busy:
            return
        apart = self._excluded()
        self.workers["gpus"].order(GpuOrder(excluded=apart))
        often = soon or self._begun(runs)
        if now >= self._full_at + (FULL_SOON if often else FULL_EVERY):
            self._full_at = now
            self._tries = {one: self._tries.get(one, 0) + 1 for one in runs}
            ranks = {one: run.job.ranks for one, run in runs.items()}
            self.workers["gpus"].order(GpuOrder(ranks, apart))

    def _excluded(self) -> tuple[ExcludedGpu, ...]:
        """GPUs of which the kernel's log shows that a read of them may never return."""
        return excluded_gpus(self._kernel.bursts, self._now()) if self._kernel else ()

    def _begun(self, runs: Mapping[str, Run]) -> list[str]:
        """Runs whose ranks may soon open their GPUs: a rank does so some time after it is found."""
        return [
            one
            for one, run in runs.items()
            if self._tries.get(one, 0) < TRIES and not self._gpus.knows(run.job)
        ]

    def _order_kernel(self) -> None:
        if not self.workers["kernel"].busy:
            self._pending_reads += self.workers["kernel"].order(self.take_xids())

    def take_xids(self) -> tuple[KernelEvent, ...]:
        """Return and forget the Xids that NVML reported since the last call, for the worker that reads the kernel log."""
        xids, self._new_xids = tuple(self._new_xids), []
        return xids

    def on_result(self, result: Result, jobs: Sequence[Job], children: Mapping[int, tuple[RankChild, ...]], config: Config) -> None:  # fmt: skip
        """Handle a reading of the worker `gpus` or `kernel`, or its failure; join it with the jobs and judge health again."""
        limits, wanted = config.health.thresholds, config.health.gpus
        self._pending_reads -= result.worker == "kernel" and self._pending_reads > 0
        if isinstance(result.value, GpuNews):
            self._gpus.update(result.value, limits, wanted if isinstance(wanted, int) else None)
            self._release_for_reset(result.value.full, {job.id for job in jobs})
            if result.value.full is not None:
                full = result.value.full
                open_requests = requests(self._kernel.bursts) if self._kernel else {}
                self._recovered = self._recovery.update(full.gpus, full.at, open_requests)
            if result.value.full is None:
                found = map(xid_of_nvml, self._gpus.events())
                self._new_xids += [one for one in found if one is not None]
        elif isinstance(result.value, KernelNews):
            self._kernel = result.value
        elif isinstance(result.order, GpuOrder):
            self._gpus.failed(full=result.order.ranks is not None)
            if isinstance(result.error, GpusReleasedError):
                self._gpus.failed(full=True)  # and who asked for it may change anything
                self._full_at = -FULL_EVERY  # the first that succeeds tells all anew
        self._join(jobs, children)
        self._judge(config)

    def _release_for_reset(self, full: NodeGpus | None, runs: set[str]) -> None:
        """An open handle blocks the very reset that the driver asks for: nobody else uses the GPUs, so let go of them."""
        if full is None:
            return
        self._waiting = ()
        if wants_release(full) and self.gpu_controller.let_go_for_reset():
            recovery = [one for one in self._gpus.health if one.component == "gpu_recovery"]
            self._waiting = tuple(one for one in recovery if one.state in BAD)
            self._let_go_with = runs
            log.warning("GPUs: released for a while: %s", BY_ITSELF)

    def _join(self, jobs: Sequence[Job], children: Mapping[int, tuple[RankChild, ...]]) -> None:
        """Whom the kernel's events concern."""
        if self._kernel is None:
            return
        below = {pid: [one.pid for one in some] for pid, some in children.items()}
        self._events = join(
            self._kernel.bursts,
            process_owners(jobs, below),
            gpu_owners([(job, self._gpus.joined(job.id)) for job in jobs]),
            first_namespace=self._first_namespace,
        )

    def _judge(self, config: Config) -> None:
        """Judge the health of the node: anew where the evidence has changed, or at the latest after `JUDGE_EVERY` seconds."""
        readable = self._kernel is not None and self._kernel.gap is None
        full, now, limits = self._gpus.full, self._now(), config.health.thresholds
        uuids = gpus_by_address((*full.gpus, *full.lost) if full else ())
        evidence = (self._events, limits, readable, self._gpus.count, uuids, dict(self._recovered))
        if evidence != self._judged or not 0 <= now - self._judged_at < JUDGE_EVERY:
            self._judged, self._judged_at = evidence, now
            self._node_health = node_health(
                self._events,
                now,
                limits,
                kernel_readable=readable,
                count=self._gpus.count,
                uuids=uuids,
                recovered=self._recovered,
            )
        # or letting go would look like a cure
        waiting = self._waiting if not self._gpus.health else ()
        self._health = (*self._gpus.health, *waiting, *self._node_health)

    # --- what it tells -----------------------------------------------------------------------------

    def complete(self, look: JobLook) -> JobLook:
        """Return the reading of a job (`look`) with what the GPU of each rank does added."""
        if self._gpus.watch is None:
            return look
        joined = self._gpus.joined(look.job.id)
        return self._levels.complete(look, self._gpus.watch, joined, self._gpus.full)

    def capture(self, capture: NodeCapture) -> NodeCapture:
        """The capture with faults of its ranks' GPUs and of the node, what the GPUs do, and what could not be read of them."""
        job_id = capture.job.id
        return msgspec.structs.replace(
            capture,
            faults=self._faults(job_id),
            devices=self._levels.sentence(job_id),
            gpus=self._gpu_states(job_id),
            gaps=(*capture.gaps, *self._missed()),
        )

    def _gpu_states(self, job_id: str) -> tuple[RankDevice, ...]:
        """The GPUs of a run's ranks in figures, none older than its reads may be."""
        joined, full = self._gpus.joined(job_id), self._gpus.full
        return rank_devices(joined, self._gpus.samples, self._levels.states(job_id), full)

    def complete_samples(self, job: Job, stretch: SampledStretch) -> SampledStretch:
        """The samples of a run's ranks, with what is known of the GPU of each added, where it is surely the rank's."""
        full = self._gpus.full
        if full is None:
            return stretch
        surely = {one.rank: one.uuid for one in self._gpus.joined(job.id).ranks if one.sure}
        read = {one.uuid: one for one in full.gpus}
        gpus = {rank: read[uuid] for rank, uuid in surely.items() if uuid in read}
        pids = {rank.rank: rank.pid for rank in job.ranks}
        beside = self._gpus.neighbours(job.id)

        def completed(one: RankShares) -> RankShares:
            gpu, pid = gpus.get(one.rank), pids.get(one.rank, 0)
            return with_gpu(one, gpu, pid, beside, self._gpus.grown(gpu.uuid, pid)) if gpu else one

        return msgspec.structs.replace(stretch, ranks=tuple(map(completed, stretch.ranks)))

    def complete_exit(self, attempt: AttemptExit) -> AttemptExit:
        """The exit with faults of its ranks' GPUs and of the node added."""
        return msgspec.structs.replace(attempt, faults=self._faults(attempt.job.id))

    def _faults(self, job_id: str) -> tuple[Fault, ...]:
        full = self._gpus.full
        addresses = gpus_by_address((*full.gpus, *full.lost) if full else ())
        faults = faults_of_events(self._events, job_id, addresses, self._node)
        return self._gpus.concerning(job_id, (*faults, *self._gpus.faults(job_id)))

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with GPUs, kernel log, health, workers and what could not be read added."""
        return msgspec.structs.replace(
            snapshot,
            runs=tuple(map(self._with_gpus, snapshot.runs)),
            sources=(*snapshot.sources, *(worker.state() for worker in self.workers.values())),
            gaps=(*snapshot.gaps, *self._gaps()),
            gpus=self._gpus.full,
            gpu_watch=self._gpus.watch,
            gpu_count=self._gpus.count,
            gpus_released_until=self.gpu_controller.released_until,
            gpus_released_why=self.gpu_controller.why if self.gpu_controller.released_until else "",
            kernel=self._counts(),
            kernel_events=self._events,
            health=self._health,
        )

    def _with_gpus(self, run: RunState) -> RunState:
        joined = self._gpus.joined(run.id)
        return msgspec.structs.replace(
            run,
            gpus={rank.rank: rank.uuid for rank in joined.ranks},
            gpus_guessed=tuple(sorted(joined.guessed())),
            devices=self._levels.sentence(run.id),
            gpu_states=self._gpu_states(run.id),
            kernel=rank_sentences(self._events, run),
        )

    def _gaps(self) -> tuple[Gap, ...]:
        full = self._gpus.full
        news = self._kernel
        logs = (one for one in (news.gap, news.fabric_gap) if one) if news else ()
        return (*logs, *self._missed(), *(full.gaps if full else ()))

    def _missed(self) -> tuple[Gap, ...]:
        loss = (self._kernel.loss,) if self._kernel and self._kernel.loss else ()
        return (*loss, *gaps_of(self._gpus.lost()))

    def _counts(self) -> KernelCounts | None:
        if self._kernel is None:
            return None
        full = self._gpus.full
        known = gpus_by_address((*full.gpus, *full.lost) if full else ())
        gpus = {address: GpuLabel(*names) for address, names in known.items()}
        return named(self._kernel.counts, gpu_names(self._kernel) | gpus)
