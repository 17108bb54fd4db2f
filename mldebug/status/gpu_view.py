"""GPUs and kernel log of a node at one moment, as the agent or a command has read them. Pure."""

from collections.abc import Iterable, Iterator

import msgspec

from mldebug.core.model import Fault, Gap, Job, MeasuredData, RankDevice
from mldebug.hardware.gpu.expected import GpuCount
from mldebug.hardware.gpu.figures import plain_sentence
from mldebug.hardware.gpu.readings import LOST, LostGpu, NodeGpus, NodeWatch
from mldebug.hardware.health.faults import fault_of_missing, faults_of_events, gpus_by_address
from mldebug.hardware.health.model import ComponentHealth
from mldebug.hardware.health.sentences import GpuName
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.status.snapshot import RunState, Snapshot

FRESH = 15.0  # seconds that a read of the agent's may be old to say what a GPU does now


class GpuUser(MeasuredData, frozen=True, kw_only=True):
    """A rank that uses a GPU, or used one that is lost."""

    uuid: str
    job_id: str
    job: str  # name
    rank: int
    words: str = ""  # how that is known: "compute process 4711, 63.2 GiB"
    sure: bool = True  # False: only a convention says so


class GpuOverview(MeasuredData, frozen=True, kw_only=True):
    """The GPUs at one moment. None means not known: not read, or the read failed."""

    node: str
    at: float  # unix
    by_agent: bool = False
    gpus: NodeGpus | None = None
    watch: NodeWatch | None = None
    users: tuple[GpuUser, ...] = ()
    unjoined: tuple[str, ...] = ()  # ranks whose GPU is not known, and why
    sentences: dict[str, str] = {}  # job id -> the fingerprint of its GPUs: the agent's alone
    states: dict[str, tuple[RankDevice, ...]] = {}  # job id -> the GPUs of its ranks, in figures
    count: GpuCount | None = None
    events: tuple[RankEvent, ...] = ()  # of the last hours, the oldest first
    health: tuple[ComponentHealth, ...] = ()
    no_library: bool = False  # no GPU of a vendor that we know, or no driver
    gpu_gap: Gap | None = None  # why the GPUs could not be read
    kernel_gap: Gap | None = None  # why the kernel's log could not be read
    released_until: float | None = None  # unix: the agent has let go of the GPUs until then

    def names(self) -> dict[str, GpuName]:
        """What sentences call each GPU, by uuid; missing GPUs included."""
        return all_names(self.gpus, self.count)

    def gone(self, one: LostGpu) -> bool:
        """Whether a GPU is lost for good: the driver reports it as lost, or it is missing from the expected GPUs.

        A GPU that does not answer, or that a single reading did not list, is not lost for good.
        """
        missing = self.count.missing if self.count else ()
        return one.code == LOST or (one.uuid != "" and one.uuid in {it.gpu.uuid for it in missing})

    def devices(self, job_id: str) -> str:
        """What a job's GPUs do, in one sentence: their states, or plain figures where those are not known."""
        if sentence := self.sentences.get(job_id):
            return sentence
        uuids = {user.uuid for user in self.users if user.job_id == job_id}
        return plain_sentence(self.watch, uuids) if self.watch else ""

    def faults(self, job: Job) -> tuple[Fault, ...]:
        """Faults of GPUs and node that concern the job's ranks, or the whole node."""
        gpus = gpus_by_address(self.gpus.gpus if self.gpus else ())
        found = faults_of_events(self.events, job.id, gpus, self.node)
        return (*found, *self._lost(job.id))

    def _lost(self, job_id: str) -> Iterator[Fault]:
        for one in self.watch.lost if self.watch else ():
            for user in self.users:
                if user.job_id == job_id and user.uuid == one.uuid and self.gone(one):
                    yield _gone(one, user, self)


def _gone(one: LostGpu, user: GpuUser, overview: GpuOverview) -> Fault:
    fault = fault_of_missing(one, one.reason, overview.at, overview.node, user.rank)
    return fault if user.sure else msgspec.structs.replace(fault, by="environment")


def names_of(gpus: NodeGpus | None) -> dict[str, GpuName]:
    """What sentences call each GPU, by uuid."""
    listed = gpus.gpus if gpus else ()
    return {one.uuid: GpuName(one.index, bus_id(one.bus_id)) for one in listed}


def all_names(gpus: NodeGpus | None, count: GpuCount | None) -> dict[str, GpuName]:
    """What sentences call each GPU that was read, or that `count` knows to be missing, by uuid."""
    missing = count.missing if count else ()
    absent = {one.gpu.uuid: GpuName(one.gpu.index, bus_id(one.gpu.bus_id)) for one in missing}
    return absent | names_of(gpus)


def of_agent(snapshot: Snapshot) -> GpuOverview:
    """The overview of the GPUs from the agent's last snapshot."""
    gaps = {gap.what: gap for gap in snapshot.gaps}
    errors = (one.error.partition(": ")[2] for one in snapshot.sources if one.name == "gpus")
    failed = next(errors, "") if snapshot.gpus_released_until is None else ""
    return GpuOverview(
        node=snapshot.node,
        at=snapshot.at,
        by_agent=True,
        gpus=snapshot.gpus,
        watch=snapshot.gpu_watch,
        users=tuple(_users(snapshot.runs)),
        sentences={run.id: run.devices for run in snapshot.runs if run.devices and fresh(snapshot)},
        states={
            run.id: run.gpu_states for run in snapshot.runs if run.gpu_states and fresh(snapshot)
        },
        count=snapshot.gpu_count,
        events=snapshot.kernel_events,
        health=snapshot.health,
        gpu_gap=Gap(what="GPUs", reason=failed) if failed else None,
        kernel_gap=gaps.get("kernel log"),
        released_until=snapshot.gpus_released_until,
    )


def fresh(snapshot: Snapshot) -> bool:
    """Whether the agent's last quick reading of the GPUs is recent enough to say what they do now."""
    return snapshot.gpu_watch is not None and snapshot.at - snapshot.gpu_watch.at < FRESH


def _users(runs: Iterable[RunState]) -> Iterator[GpuUser]:
    for run in runs:
        for rank, uuid in run.gpus.items():
            sure = rank not in run.gpus_guessed
            yield GpuUser(uuid=uuid, job_id=run.id, job=run.name, rank=rank, sure=sure)
