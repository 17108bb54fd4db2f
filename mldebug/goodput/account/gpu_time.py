"""Where the GPU time of one attempt of a run went: every second of every GPU has exactly one use, so the sum is the wall time.

The attempt is looked at every few seconds. Time without a step is what the look shows (start-up, a phase of the hook, an evaluation
in the log) until the next step comes; then what the steps usually take is productive, and the rest what was found meanwhile. A stall
takes the time since the run stood still. Steps that an earlier attempt had made are lost work. Pure.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import Literal

import msgspec

from mldebug.goodput.account.segments import (
    GpuUse,
    TimeSegment,
    UseHistory,
    close,
    divided,
    joined,
    move,
    total,
    turn,
)

ExitOutcomeName = Literal["well", "failed", "unknown"]

HOLD = 120.0  # seconds after a step in which a checkpoint may still explain a pause
OPEN_HOLD = 1800.0  # seconds without a step that a stall may still take
PACES = 32  # stretches whose mean time of a step is kept
PROVEN, LONG = 3, 30.0  # stretches, or seconds of a single one, that show how long a step takes
PAUSE = 1.0  # seconds beyond the usual that make a pause
MOST_SLOW = 16  # ranks that were waited for and are remembered
MOST = 400  # segments that are not summed up yet
PHASES = (GpuUse.EVALUATION, GpuUse.CHECKPOINT)
RESUMED = 2  # strides: a count that falls no further than to these begins anew, as each epoch does


class AccountLook(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent's reading of a run at one moment shows of its present attempt (start), as far as the use of its GPUs is
    concerned. Times are unix seconds.
    """

    at: float
    gpus: int  # ranks of it on this node, those that are gone included: one GPU each
    started: bool = False  # it has made a step in this attempt
    step: int | None = None
    records: tuple[int, ...] = ()  # steps of the log's new records; at first of all in it
    finished: bool = False  # its last step is made
    phase: GpuUse | None = None  # what it is found to do beside steps
    data: float = 0.0  # share of its ranks that wait for data, 0 to 1
    straggler: float = 0.0  # share of all ranks' time that is waited for slow ones
    slow: tuple[tuple[int, str], ...] = ()  # these ranks, with a phrase to follow "rank 3 "
    stalled_since: float | None = None  # of the open incident
    checkpoints: tuple[tuple[float, float], ...] = ()  # when each began and was complete
    checkpoint_period: float | None = None  # seconds between two
    training: bool = True  # False: nothing that trains


class AttemptAccount(msgspec.Struct, kw_only=True):
    """The GPU time of one attempt (start) of a run. Stored as it is, so that it survives a restart of the agent."""

    run: str
    attempt: int
    began: float  # unix
    at: float  # until when it is accounted for
    gpus: int = 1
    step: int | None = None
    first_step: int | None = None
    unseen: int = 0  # steps from the first record to the first look that found one
    unseen_seconds: float = 0.0  # from the look before that to it, which these took at most
    pending: int = 0  # steps before that look that are still called start-up
    log_stride: int = 0  # steps from one record to the next; 0: not known
    stride: int = 0  # steps between the last two looks that found another one
    reached: int | None = (
        None  # by earlier attempts, or before it fell back: what is up to it is done again
    )
    again: int = 0  # steps that were done again
    cyclic: bool = False  # its count begins anew with each epoch, so steps cannot be compared
    finished: bool = False
    over: bool = False  # it has no process any more
    failed: bool = False  # and is known to have failed
    outcome: ExitOutcomeName = "unknown"  # of one that is over
    slow: dict[int, str] = {}  # ranks that were waited for, the newest words of each
    processes: tuple[str, ...] = ()  # pid and start of its ranks
    after: tuple[str, int] | None = (
        None  # (run, attempt) that it may continue: its first step shows it
    )
    paces: list[float] = []  # seconds of a step
    pauses: list[tuple[float, float, float]] = []  # (start, end, seconds beyond the usual)
    saved_at: float = 0.0  # the last checkpoint that explained a pause
    straggler: float = 0.0
    recent: list[TimeSegment] = []
    settled: dict[str, float] = {}  # GPU seconds by use, which never fall

    @property
    def furthest(self) -> int | None:
        """The furthest step that this attempt or one before it has reached; None where steps cannot be compared."""
        if self.cyclic:
            return None
        return max((one for one in (self.step, self.reached) if one is not None), default=None)

    @property
    def seconds(self) -> dict[str, float]:
        """GPU seconds by use so far, those included that may still change."""
        found = dict(self.settled)
        for one in self.recent:
            found[one.use] = found.get(one.use, 0.0) + one.seconds * one.gpus
        return found

    def add(self, look: AccountLook, history: UseHistory) -> None:
        """Account for the time up to this reading. What is certain by then is added to `history`, too."""
        end = max(self.at, look.at)
        self.over = False
        self.gpus = max(self.gpus, look.gpus)
        self.finished = look.finished
        self.straggler = look.straggler
        self._note_slow(look.slow)
        self.recent.append(
            TimeSegment(
                start=self.at, end=end, use=_tentative(look), gpus=self.gpus, data=look.data
            )
        )
        self.at = end
        if look.started and look.step is not None and look.step != self.step:
            self._advance(look.step, look.records)
        elif look.stalled_since is not None:
            self._stalled(look.stalled_since)
        self._explain(look.checkpoints)
        self._settle(history, end)

    def name(self, run: str, attempt: int, processes: tuple[str, ...]) -> None:
        """Set the run's id, the attempt number and the processes. The id of the same run changes where its launcher or a
        rank dies.
        """
        self.run, self.attempt, self.processes = run, attempt, processes

    def end(self, how: ExitOutcomeName) -> None:
        """Note that the attempt has no process any more, and how that came."""
        self.over, self.outcome = True, how
        self.finished = self.finished or how == "well"
        self.failed = how == "failed"

    def resume(self, before: "AttemptAccount", started: float) -> None:
        """Take over from `before`, the attempt that this one continues, how far it had come. `started`: unix time at which
        this attempt started.
        """
        self.reached, self.cyclic, self.after = before.furthest, before.cyclic, None
        if not self.recent:
            self.began = self.at = max(before.at, started)

    def await_step(self, before: "AttemptAccount | None") -> None:
        """Remember that this attempt may continue the attempt `before`; its first step will show whether it does (see
        `JobAccount.decide`). None: forget that, since it is decided.
        """
        self.after = (before.run, before.attempt) if before is not None else None

    def add_gap(self, start: float, end: float, gpus: int, history: UseHistory) -> None:
        """Add the time (unix seconds) before this attempt in which the run had no process, as a restart gap of `gpus` GPUs."""
        gap = TimeSegment(start=start, end=end, use=GpuUse.RESTART_GAP, gpus=gpus, open=False)
        self._sum_up(gap, history)

    def give_up(self, history: UseHistory, *, restarted: bool) -> None:
        """Add all remaining time of the attempt to `history`, because it is over. `restarted`: another attempt follows, so
        the time since the last step is lost work.
        """
        if self.paces:
            self._backdate(self.recent)
        if restarted:
            turn(_split(self.recent)[1], GpuUse.LOST_WORK, GpuUse.PRODUCTIVE)
        for one in self.recent:
            self._sum_up(one, history)
        self.recent, self.pauses = [], []

    # --- inside ------------------------------------------------------------------------------------

    def _note_slow(self, slow: Iterable[tuple[int, str]]) -> None:
        for rank, words in slow:
            if rank in self.slow or len(self.slow) < MOST_SLOW:
                self.slow[rank] = words

    def _advance(self, step: int, records: tuple[int, ...]) -> None:
        """A new step: everything since the last one is closed."""
        before, self.step = self.step, step
        self.log_stride = self.log_stride or _stride(records if before is None else (before, *records))  # fmt: skip
        turn(
            _split(self.recent)[1], GpuUse.PRODUCTIVE, GpuUse.IDLE
        )  # the last step seemed to be made
        if before is None:
            self.first_step, self.unseen = step, step - self._first_record(records, step)
            self.unseen_seconds = self.recent[-1].seconds
            turn(self.recent, GpuUse.STARTUP, GpuUse.PRODUCTIVE)
        elif step < before:
            self._fell(before, step)
        else:
            self._close(before, step)
        close(self.recent)

    def _first_record(self, records: tuple[int, ...], step: int) -> int:
        """The step of the first record of this attempt. Those of the attempts before it may stand in the same log, and where nothing fell in
        between and no look before this one bounds the time, this attempt's begin behind the furthest one.
        """
        first = _first_of_rise(records, step)
        is_unbounded = self.recent[-1].start <= self.began and first == next(iter(records), step)
        return max(first, min(step, (self.reached or 0) + 1)) if is_unbounded else first

    def _fell(self, before: int, step: int) -> None:
        if step <= RESUMED * max(1, self.stride, (self.first_step or 0)):
            self.cyclic = True
        else:
            self.reached = max(before, self.reached or 0)

    def _close(self, before: int, step: int) -> None:
        steps = step - before
        kept, stretch = _split(self.recent)
        if not self.stride:
            self.pending = min(self.unseen + (self.log_stride or steps), self.first_step or 0)
        self._fit(stretch, steps)
        is_long = sum(one.seconds for one in stretch) >= LONG
        if self.paces and (len(self.paces) >= PROVEN or is_long):
            self._backdate(kept)
        self.stride = steps
        redone = min(step, self.reached or 0) - before
        if redone > 0 and not self.cyclic:
            self.again += redone
            lost = redone / steps * total(stretch, GpuUse.PRODUCTIVE)
            move(stretch, lost, GpuUse.PRODUCTIVE, GpuUse.LOST_WORK)
        self._share_out(stretch)
        self.recent = joined([*kept, *stretch])

    def _backdate(self, kept: list[TimeSegment]) -> None:
        """Some steps were made before the first look that found one: from the first record to it, and before that record as many as there
        are between two. They are taken out of the start-up, once it is known how long a step takes: a single stretch may tell wrong.
        """
        steps, self.pending = self.pending, 0
        if not steps:
            return
        pace, first = median(self.paces), (self.first_step or 0) - steps
        unseen = min(self.unseen, steps)
        seconds = min(unseen * pace, self.unseen_seconds) + (steps - unseen) * pace
        again = min(steps, max(0, (self.reached or 0) - first))
        self.again += again
        new = seconds * (1 - again / steps)
        move(kept, new, GpuUse.STARTUP, GpuUse.PRODUCTIVE)
        move(kept, seconds - new, GpuUse.STARTUP, GpuUse.LOST_WORK)

    def _fit(self, stretch: list[TimeSegment], steps: int) -> None:
        """Make the productive part as long as so many steps usually take, where a phase was found in between."""
        productive, phases = total(stretch, GpuUse.PRODUCTIVE), total(stretch, *PHASES)
        stalled = total(stretch, GpuUse.STALL)
        if not phases and not stalled:
            self._learn(stretch, steps, productive)
        elif phases and self.paces:
            usual = steps * median(self.paces)
            phase = max(PHASES, key=lambda use: total(stretch, use))
            if productive > usual:
                move(stretch, productive - usual, GpuUse.PRODUCTIVE, phase)
            else:
                move(stretch, usual - productive, phase, GpuUse.PRODUCTIVE)

    def _learn(self, stretch: list[TimeSegment], steps: int, productive: float) -> None:
        usual = steps * median(self.paces) if self.paces else productive
        if productive > usual + max(PAUSE, usual / 4):
            self.pauses.append((stretch[0].start, stretch[-1].end, productive - usual))
        self.paces = [*self.paces, productive / steps][-PACES:]

    def _share_out(self, stretch: list[TimeSegment]) -> None:
        """Of the time of the steps, the parts that were waited for data and for slow ranks."""
        span = sum(one.seconds for one in stretch) or 1.0
        data = sum(one.data * one.seconds for one in stretch) / span
        productive = total(stretch, GpuUse.PRODUCTIVE)
        move(stretch, data * productive, GpuUse.PRODUCTIVE, GpuUse.DATA_WAIT)
        loss = min(self.straggler, 1.0 - data)
        move(stretch, loss * productive, GpuUse.PRODUCTIVE, GpuUse.STRAGGLER)

    def _stalled(self, since: float) -> None:
        kept, stretch = _split(self.recent)
        before, standing, after = divided(stretch, since, self.at)
        turn(standing, GpuUse.STALL)
        self.recent = [*kept, *before, *standing, *after]

    def _explain(self, checkpoints: tuple[tuple[float, float], ...]) -> None:
        """A checkpoint is found complete some time after it was written: a pause of that time was its."""
        for began, ended in checkpoints:
            if ended <= self.saved_at:
                continue
            for pause in [one for one in self.pauses if one[0] <= ended and began <= one[1]]:
                self.saved_at = ended
                self.pauses.remove(pause)
                before, inside, after = divided(self.recent, pause[0], pause[1])
                move(inside, pause[2], GpuUse.PRODUCTIVE, GpuUse.CHECKPOINT)
                self.recent = [*before, *inside, *after]

    def _settle(self, history: UseHistory, now: float) -> None:
        begun = bool(self.paces) and not self.pending  # the first paces tell when steps began
        old = now - (HOLD if begun else OPEN_HOLD)
        self.pauses = [one for one in self.pauses if one[1] > old]
        paused = min((one[0] for one in self.pauses), default=now)
        closed, under_way = _split(self.recent)
        done, kept, _ = divided(closed, min(old, paused), math.inf)
        late, still, _ = divided(under_way, now - OPEN_HOLD, math.inf)
        excess = max(0, len(kept) + len(still) - MOST)
        recent = [*kept, *still]
        for one in (*done, *late, *recent[:excess]):
            self._sum_up(one, history)
        self.recent = recent[excess:]

    def _sum_up(self, one: TimeSegment, history: UseHistory) -> None:
        self.settled[one.use] = self.settled.get(one.use, 0.0) + one.seconds * one.gpus
        history.add(one)


def _stride(steps: Iterable[int]) -> int:
    """The steps from one record to the next; 0 where no two follow each other."""
    return min((later - one for one, later in pairwise(steps) if later > one), default=0)


def _first_of_rise(records: Iterable[int], step: int) -> int:
    """The first of the records since the last fall; those before it are an earlier attempt's. `step`: where there are none."""
    first = last = step
    for number, one in enumerate(records):
        if not number or one < last:
            first = one
        last = one
    return min(first, step)


def _tentative(look: AccountLook) -> GpuUse:
    """What the time up to this look counts as until the next step comes."""
    if not look.training and not look.started:
        return GpuUse.IDLE
    if not look.started:
        return look.phase if look.phase is GpuUse.DATA_PREPARATION else GpuUse.STARTUP
    if look.phase in PHASES:
        return look.phase
    return GpuUse.IDLE if look.finished else GpuUse.PRODUCTIVE


def _split(segments: list[TimeSegment]) -> tuple[list[TimeSegment], list[TimeSegment]]:
    """Those that are closed, and those since the last step."""
    return [one for one in segments if not one.open], [one for one in segments if one.open]
