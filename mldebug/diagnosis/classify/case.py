"""What the detectors judge: one job at one moment, with what each rank does by its stack (its class, such as `collective` or `sleep`),
which ranks wait for others, and whether anything moved.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from mldebug.capture.flight_recorder.analysis import Analysis
from mldebug.capture.stacks.form import RECORDED
from mldebug.core.model import (
    ClassifiedRank,
    Fault,
    FlightRecord,
    Job,
    Movement,
    ProcessCapture,
    QueriedNodes,
    Role,
)
from mldebug.core.ranksets import all_of, fold_ranks
from mldebug.diagnosis.classify.process_facts import FUTEX_SWITCHES, SOME_CPU
from mldebug.diagnosis.classify.tables.kernel_waits import FUTEX_WAITS

INIT_CLASSES = ("init", "store")


class Case:
    """One job at one moment with the class of every rank. Immutable; derived values are computed once."""

    def __init__(
        self,
        job: Job,
        ranks: tuple[ClassifiedRank, ...],
        quiet_seconds: float = 0.0,
        *,
        faults: tuple[Fault, ...] = (),
        taken_at: float = 0.0,
        usual_gap: float = 0.0,
        steps: tuple[int, int] | None = None,
        flight_records: Mapping[int, FlightRecord] | None = None,
        queried: QueriedNodes | None = None,
    ) -> None:
        self.job = job
        self.ranks = ranks
        self.quiet_seconds = quiet_seconds
        self.faults = faults
        self.taken_at = taken_at
        self.usual_gap = usual_gap
        self.steps = steps  # the last at the begin and at the end of the look; None: not known
        self.flight_records = flight_records or {}  # by rank
        self.queried = (
            queried  # the nodes that were asked for captures; None: one node judges its own
        )

    @cached_property
    def alive(self) -> tuple[ClassifiedRank, ...]:
        """The ranks that were not found to have exited or to be missing."""
        return tuple(r for r in self.ranks if r.is_.role not in (Role.EXITED, Role.MISSING))

    @cached_property
    def waiting(self) -> tuple[ClassifiedRank, ...]:
        """The ranks that only other ranks can free (the victims)."""
        return tuple(r for r in self.ranks if r.is_.role is Role.WAITING)

    @cached_property
    def suspects(self) -> tuple[ClassifiedRank, ...]:
        """All ranks that do not wait for other ranks, exited and missing ones included."""
        return tuple(r for r in self.ranks if r.is_.role is not Role.WAITING)

    @cached_property
    def analysis(self) -> Analysis:
        """The conclusions from PyTorch's Flight Recorders.

        Records without any process group are left out: the recorder may be switched off.
        """
        records = {
            rank: one
            for rank, one in sorted(self.flight_records.items())
            if one.groups or one.counts
        }
        return Analysis(records)

    @cached_property
    def process_groups(self) -> int:
        """The most process groups that any rank has, by its threads: two loop threads for each gloo group, one watchdog for each NCCL group; 0 where no threads were read."""
        return max((_groups_of(r.capture.process) for r in self.ranks if r.capture), default=0)

    @cached_property
    def complete(self) -> bool:
        """Whether every rank of the job was captured, or is known to be gone."""
        return len({r.rank for r in self.ranks}) >= self.job.world_size

    @property
    def recorded(self) -> bool:
        """Whether the stacks were dumped by other tools.

        A rank without a stack may then just not have been dumped.
        """
        return self.job.launcher == RECORDED

    @cached_property
    def unseen(self) -> bool:
        """Whether ranks may live where nothing was captured: on nodes that gave no capture, or in processes that no one has dumped."""
        if self.complete:
            return False
        return self.recorded or (self.queried is not None and bool(self.queried.absent))

    @cached_property
    def elsewhere(self) -> tuple[int, ...]:
        """Ranks of the job that were not captured and are not known to be gone."""
        here = {rank.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.job.world_size) if rank not in here)

    @cached_property
    def blind(self) -> tuple[ClassifiedRank, ...]:
        """The ranks whose stacks could not be had: they may do anything."""
        return tuple(
            r
            for r in self.ranks
            if r.is_.name == "unclear" and r.capture and not r.capture.process.stacks
        )

    @cached_property
    def starting(self) -> bool:
        """Whether all waiting ranks wait for process groups to be created.

        Where all of them wait at the store, they do so only while no process group exists.
        """
        names = {rank.is_.name for rank in self.waiting}
        at_store = names == {"store"} and self.process_groups > 0
        return bool(names) and names <= set(INIT_CLASSES) and not at_store

    @cached_property
    def moved(self) -> tuple[ClassifiedRank, ...]:
        """Waiting ranks whose wait ended, or began anew, between samples: such a job is not stuck."""
        return tuple(r for r in self.waiting if _advanced(r))

    @cached_property
    def works(self) -> bool:
        """Whether the job made steps while it was captured; where steps are not known, whether all of its ranks moved on, none of them in start-up."""
        if self.steps is not None:
            return self.steps[1] > self.steps[0]
        moves = [rank.capture.process.movement if rank.capture else None for rank in self.ranks]
        waits_to_begin = any(rank.is_.name in INIT_CLASSES for rank in self.ranks)
        return bool(moves) and all(map(_goes_on, moves)) and not waits_to_begin

    @property
    def stuck(self) -> bool:
        """Whether a culprit may be named: no wait ended, no step was made, and some rank waits or the job has only one rank."""
        if self.moved or self.works:
            return False
        return bool(self.waiting) or len(self.ranks) == self.job.world_size == 1

    def named(self, *classes: str) -> tuple[ClassifiedRank, ...]:
        """The ranks whose class has one of these names."""
        return tuple(r for r in self.ranks if r.is_.name in classes)

    def victims(self) -> str:
        """What the waiting ranks wait in, at most 3 places: `ranks 0-2,4-7 wait in all_reduce at sync (train.py:30)`; "" where none waits."""
        if not self.waiting:
            return ""
        return "; ".join(_wait_phrases(self.waiting)[:3])

    def everybody(self) -> str:
        """What the ranks wait for, of a job in which all wait: `both ranks wait for their GPU in step (train.py:9)`."""
        phrases = _wait_phrases(self.waiting)
        if len(self.ranks) == 1:
            return phrases[0]
        who = all_of(len(self.ranks))
        if len(phrases) > 1:
            return f"{who} ranks wait: {self.victims()}"
        return f"{who} ranks {_of_several(self.waiting[0].is_.doing)}"


def _goes_on(move: Movement | None) -> bool:
    """Other frames from look to look, and more CPU time than a wait that looks now and then takes."""
    return (
        move is not None
        and not move.same_frames
        and max(move.cpu_ratio, move.process_cpu_ratio) >= SOME_CPU
    )


def _advanced(rank: ClassifiedRank) -> bool:
    """Its frames changed, or it slept anew; the store polls while it waits, so only frames count there."""
    move = rank.capture.process.movement if rank.capture else None
    if move is None:
        return False
    if rank.is_.thread:
        return not move.same_threads
    return not move.same_frames or (rank.is_.name not in INIT_CLASSES and _slept_anew(rank, move))


def _slept_anew(rank: ClassifiedRank, move: Movement) -> bool:
    """A wait on a futex does not wake up in between; others may, some times a second."""
    state = rank.capture.process.state if rank.capture else None
    on_futex = (
        state is not None and state.main is not None and FUTEX_WAITS.fullmatch(state.main.wchan)
    )
    return move.switches > (FUTEX_SWITCHES if on_futex else max(2, 2 * move.span_seconds))


def _groups_of(process: ProcessCapture) -> int:
    names = [thread.name for thread in process.state.threads] if process.state else []
    return max(names.count("pt_gloo_runloop") // 2, names.count("pt_nccl_watchdg"))


def _wait_phrases(ranks: Iterable[ClassifiedRank]) -> list[str]:
    by_doing: dict[str, list[int]] = {}
    for rank in ranks:
        by_doing.setdefault(rank.is_.doing, []).append(rank.rank)
    ordered = sorted(by_doing.items(), key=lambda item: -len(item[1]))
    return [
        f"{ranks_text(who)} {_of_several(doing) if len(who) > 1 else doing}"
        for doing, who in ordered
    ]


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks for a sentence: `rank 3` or `ranks 0-2,4`."""
    numbers = sorted(set(ranks))
    return f"rank{'s' if len(numbers) > 1 else ''} {fold_ranks(numbers)}"


_PLURALS = {"is": "are", "does": "do", "has": "have", "was": "were"}


def _of_several(doing: str) -> str:
    """A phrase about one rank put into the plural: "sleeps in its loader" becomes "sleep in their loader"."""
    first, _, rest = doing.partition(" ")
    verb = _PLURALS.get(first, first.removesuffix("s"))
    return f"{verb} {rest}".replace(" its ", " their ")


def sentence(ranks: Iterable[ClassifiedRank]) -> str:
    """What these ranks do, as a phrase of at most 4 parts: `rank 3 sleeps at load (train.py:7)`."""
    return "; ".join(_wait_phrases(ranks)[:4])
