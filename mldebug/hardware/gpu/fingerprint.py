"""The hang fingerprint: what each GPU of a run does, by utilization, memory traffic and power. Evidence, never an alert.

| kernel runs | work | among the others of the run | the state |
|---|---|---|---|
| any | yes | | training (evaluation too) |
| all the time | no, yet the power of work | | compute_spin |
| all the time | no, little power | one does not run, or one works | collective_wait |
| all the time | no, little power | all the same | unknown: collective_wait or compute_spin |
| all the time | no, little power; another program computes there | any | unknown, but where the rank's stack shows that it waits |
| hardly | no | one waits, and the rank writes | checkpointing |
| hardly | no | one waits | never_arrived |
| hardly | no | one runs kernels that cannot be told | unknown |
| hardly | no | nobody here waits, and the run has GPUs elsewhere | unknown |
| hardly | no | nobody waits, work or a step within a minute | input_starved |
| hardly | no | nobody waits, no work for longer | idle |

What GPUs alone can not tell: a kernel that never ends from a collective that waits, where all GPUs spin (ranks in different
collectives look the same); a rank that sleeps, loops in Python or is stopped from one that prepares data or writes a
checkpoint on the CPU (all have not arrived). What is known of the rank's writes, steps and stack is given in `RankSign`.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.hardware.gpu.baseline import BUSY, Baseline, Load
from mldebug.hardware.gpu.samples import GpuSign, finite
from mldebug.stall.checkpoint_writes import FAST

RECENT = 60.0
"""Seconds after which work that was seen says nothing of now."""
ALL_SMS = 0.9
"""Share of the multiprocessors that no kernel of a collective fills: those use a few blocks for each channel."""
MAX_GPUS = 256
LONG_LOOKS = 3


class GpuState(StrEnum):
    """What a GPU does, judged beside the other GPUs of its run: trains, waits in a collective, has no input, …"""

    TRAINING = "training"
    COLLECTIVE_WAIT = "collective_wait"
    NEVER_ARRIVED = "never_arrived"
    INPUT_STARVED = "input_starved"
    CHECKPOINTING = "checkpointing"
    COMPUTE_SPIN = "compute_spin"
    IDLE = "idle"
    UNKNOWN = "unknown"


class GpuFingerprint(MeasuredData, frozen=True, kw_only=True):
    """The state of one GPU, judged beside the other GPUs of its run. `maybe`: other states that fit the same readings."""

    uuid: str
    index: int
    node: str = ""
    rank: int | None = None
    load: Load = Load.UNKNOWN
    state: GpuState = GpuState.UNKNOWN
    maybe: tuple[GpuState, ...] = ()
    since: float = 0.0  # when the load became what it is
    settled: bool = False
    lasting: bool = False  # for some looks
    worked_at: float | None = None
    busy_ratio: float | None = None
    power_watts: float | None = None
    usual_watts: float | None = None  # at work, in this run
    traffic: bool | None = None  # memory traffic; None: not readable
    sm_active_ratio: float | None = None
    stepped_at: float | None = None
    written_bytes_per_second: float | None = None
    waiting: bool | None = None
    shared: bool = False  # other programs compute on it, too

    @property
    def progress(self) -> bool | None:
        """Whether the GPU computes or moves memory for its rank; None where that is not known.

        Power alone does not show it: a kernel that never ends takes as much as one that computes.
        """
        if self.load in (Load.UNKNOWN, Load.POWERED):
            return None
        return self.load in (Load.WORKING, Load.PARTLY)


class Fingerprint(MeasuredData, frozen=True, kw_only=True):
    """The states of all GPUs of one run at one moment (`at`, unix time)."""

    at: float
    gpus: tuple[GpuFingerprint, ...] = ()  # in the order of the signs

    def of_rank(self, rank: int) -> GpuFingerprint | None:
        """The state of the GPU that this rank uses; None where it is not known."""
        return next((one for one in self.gpus if one.rank == rank), None)


class RunBaselines(msgspec.Struct, kw_only=True):
    """What was learned of the GPUs of one run: by GPU uuid, its usual power and load (`Baseline`).

    Can be stored as JSON.
    """

    gpus: dict[str, Baseline] = {}

    def look(self, at: float, signs: Sequence[GpuSign], world_size: int = 0) -> Fingerprint:
        """Learn from one reading of the run's GPUs at unix time `at`, and return their states.

        `world_size`: the number of ranks, which shows whether the run has GPUs elsewhere; 0: not
        known. At most `MAX_GPUS` GPUs are followed.
        """
        gpus = tuple(self._one(at, sign) for sign in signs[:MAX_GPUS])
        while len(self.gpus) > MAX_GPUS:
            del self.gpus[next(iter(self.gpus))]
        return fingerprint_of(at, gpus, world_size)

    def _one(self, at: float, sign: GpuSign) -> GpuFingerprint:
        baseline = self.gpus.setdefault(sign.uuid, Baseline())
        load = baseline.look(sign, at)
        rank, activity = sign.rank, sign.activity
        memory = finite(sign.memory_utilization_ratio)
        return GpuFingerprint(
            uuid=sign.uuid,
            index=sign.index,
            node=sign.node,
            rank=rank.rank if rank else None,
            load=load,
            since=baseline.since,
            settled=baseline.settled(),
            lasting=baseline.settled(LONG_LOOKS),
            worked_at=baseline.worked_at,
            busy_ratio=sign.busy,
            power_watts=baseline.power,
            usual_watts=baseline.levels.working,
            traffic=sign.moves if memory is None else memory > 0,
            sm_active_ratio=activity.sm_active_ratio if activity else None,
            stepped_at=baseline.stepped_at,
            written_bytes_per_second=rank.written_bytes_per_second if rank else None,
            waiting=rank.waiting if rank else None,
            shared=sign.shared,
        )


def fingerprint_of(at: float, gpus: Sequence[GpuFingerprint], world_size: int = 0) -> Fingerprint:
    """The state of each GPU, judged from the loads of all GPUs of the run, which may be on several nodes.

    `at`: unix time; `world_size`: number of ranks, 0: not known.
    """
    group = _GpuGroup(at, tuple(_beside(one, gpus) for one in gpus), world_size)
    return Fingerprint(at=at, gpus=tuple(group.tell(one) for one in group.gpus))


LIKE_A_QUIET_ONE = 1.3


def _beside(one: GpuFingerprint, gpus: Sequence[GpuFingerprint]) -> GpuFingerprint:
    """A GPU without a baseline of its own that is busy, moves nothing and takes no more power than a quiet one beside it.

    So the agent that comes in the middle of a hang knows it as well.
    """
    if one.load is not Load.UNKNOWN or one.traffic is not False or (one.busy_ratio or 0.0) < BUSY:
        return one
    quiet = [
        other.power_watts
        for other in gpus
        if other.load is Load.QUIET and other.power_watts is not None
    ]
    if one.power_watts is None or not quiet:
        return one
    alike = one.power_watts < LIKE_A_QUIET_ONE * min(quiet)
    return msgspec.structs.replace(one, load=Load.SPINNING) if alike else one


_EITHER = (GpuState.UNKNOWN, GpuState.COLLECTIVE_WAIT, GpuState.COMPUTE_SPIN)


def _is_its_own(one: GpuFingerprint) -> bool:
    """Whether a kernel that spins there is the rank's: nobody else computes on the GPU, or its stack shows that it waits."""
    return not one.shared or one.waiting is True


class _GpuGroup:
    """The GPUs of a run side by side."""

    def __init__(self, at: float, gpus: tuple[GpuFingerprint, ...], world_size: int) -> None:
        self.at = at
        self.gpus = gpus
        self.alone = world_size == 1
        self.complete = 0 < world_size <= len(gpus)
        held = [one for one in gpus if one.settled]
        self.spins = any(one.load is Load.SPINNING and _is_its_own(one) for one in held)
        self.works = any(one.load in (Load.WORKING, Load.PARTLY) for one in held)
        self.quiet = any(one.load is Load.QUIET for one in held)
        self.unexplained = any(
            (one.busy_ratio or 0.0) >= BUSY
            and (one.load is Load.UNKNOWN or (one.load is Load.SPINNING and not _is_its_own(one)))
            for one in gpus
        )

    def tell(self, one: GpuFingerprint) -> GpuFingerprint:
        state, *maybe = self._states(one)
        return msgspec.structs.replace(one, state=state, maybe=tuple(maybe))

    def _states(self, one: GpuFingerprint) -> tuple[GpuState, ...]:
        """The state, then what else it may be."""
        if one.load is Load.WORKING:
            return (GpuState.TRAINING,)
        if one.load is Load.PARTLY:
            return (GpuState.INPUT_STARVED, GpuState.TRAINING)
        if one.load is Load.POWERED and one.lasting and (one.busy_ratio or 0.0) >= BUSY:
            return (GpuState.COMPUTE_SPIN,)
        if one.load is Load.SPINNING and one.settled:
            return self._spinning(one)
        if one.load is Load.QUIET and one.settled:
            return self._quiet(one)
        return (GpuState.UNKNOWN,)

    def _spinning(self, one: GpuFingerprint) -> tuple[GpuState, ...]:
        if not _is_its_own(one):  # the kernel of another program, while the rank has not arrived
            return (*_EITHER, GpuState.NEVER_ARRIVED)
        if self.alone or (one.sm_active_ratio or 0.0) >= ALL_SMS:
            return (GpuState.COMPUTE_SPIN,)
        if one.waiting or self.quiet or self.works:
            return (GpuState.COLLECTIVE_WAIT,)
        return _EITHER

    def _quiet(self, one: GpuFingerprint) -> tuple[GpuState, ...]:
        writes = one.written_bytes_per_second
        if writes is not None and writes >= FAST:
            return (GpuState.CHECKPOINTING,)
        if self.spins:
            others = (GpuState.CHECKPOINTING,) if writes is None else ()
            return (GpuState.NEVER_ARRIVED, GpuState.INPUT_STARVED, *others)
        if self.unexplained:
            return GpuState.UNKNOWN, GpuState.NEVER_ARRIVED, GpuState.INPUT_STARVED, GpuState.IDLE
        last = max(one.worked_at or 0.0, one.stepped_at or 0.0)
        if last <= 0.0:
            return (GpuState.IDLE,)
        if not self.complete:  # others of the run, elsewhere, may wait for it
            return GpuState.UNKNOWN, GpuState.NEVER_ARRIVED, GpuState.INPUT_STARVED, GpuState.IDLE
        return (GpuState.INPUT_STARVED,) if self.at - last <= RECENT else (GpuState.IDLE,)
