"""Records that a writer held back are signs of life of the time when they were made, whatever clock they were made by."""

import pytest

from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.log_progress import LogProgress
from mldebug.stall.signals import Progress, ProgressKind, Stage
from mldebug.stall.step_times import FlushDelay
from shared.stall.traces import LOOPS, SLEEPS, SPINS, TRAINS, Run, watch

LOOKS = 5.0
UNIX = 1.7e9  # of the job's clock, when ours (monotonic) shows 0


class Writer:
    """A training that logs a step a second into a file which grows every so many seconds only; read every 5 s.

    `stamped`: its records tell when they were made.
    """

    def __init__(self, flushes: float, clock: float = UNIX, *, stamped: bool = True) -> None:
        self.flushes, self.clock, self.stamped = flushes, clock, stamped
        self.progress, self.run = LogProgress(), Run(interval=LOOKS)
        self.run.started = True
        self._steps = self._held = 0.0
        self._flushed = self.run.at

    def play(self, seconds: float, *, hangs: bool = False, evaluates: bool = False) -> "Writer":
        for _ in range(int(seconds / LOOKS)):
            self.run.at += LOOKS
            if not (hangs or evaluates):
                self._held = self.run.at
            due = self.run.at - self._flushed >= self.flushes
            if due:
                self._flush()
            self.run.signals = {one.kind: one for one in self.progress.signals()}
            self.run.look({2: SLEEPS} if hangs else TRAINS, SPINS if hangs else TRAINS)
        return self

    def _flush(self) -> None:
        records = []
        while self._steps < self._held - 1000.0:
            self._steps += 1
            at = 1000.0 + self._steps + self.clock if self.stamped else None
            records.append(LogRecord(step=int(self._steps), loss=1 / self._steps, format="wandb", written_at=at))  # fmt: skip
        self._flushed = self.run.at
        self.progress.take(tuple(records), 1000, self.run.at, "file")

    @property
    def seconds(self) -> float:
        return self.run.at - self.run.looks[0].at


@pytest.mark.parametrize("clock", [UNIX, UNIX + 7200, UNIX - 90], ids=("ours", "ahead", "behind"))
@pytest.mark.parametrize("hung", [120.0, 125.0, 130.0])
@pytest.mark.parametrize("flushes", [5.0, 15.0])
def test_what_is_flushed_after_the_hang_is_no_sign_of_life(flushes: float, hung: float, clock: float) -> None:  # fmt: skip
    """wandb's file grows every 15 s: with the last steps up to 15 s after the hang."""
    job = Writer(flushes, clock).play(hung)
    since = job.seconds
    opened = watch(job.play(120, hangs=True).run.looks, interval=LOOKS).opened
    assert len(opened) == 1
    assert opened[0] - since <= 40


@pytest.mark.parametrize("flushes", [5.0, 15.0, 20.0])
def test_a_healthy_one_is_not_captured(flushes: float) -> None:
    story = watch(Writer(flushes).play(600).run.looks, interval=LOOKS)
    assert story.opened == []
    assert story.captured == []


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("flushes", [40.0, 60.0, 90.0, 120.0])
def test_a_log_that_is_flushed_seldom_is_captured_at_its_first_silences_alone(flushes: float, stamped: bool) -> None:  # fmt: skip
    """Its steps are quick, so the timeout is short: each minute of silence was one more capture of a healthy job."""
    story = watch(Writer(flushes, stamped=stamped).play(3600).run.looks, interval=LOOKS)
    assert story.opened == []
    assert len(story.captured) <= 3
    assert story.captured[-1:] < [5 * flushes]


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("flushes", [60.0, 120.0])
def test_what_stands_still_there_is_named_at_the_timeout_of_its_steps(flushes: float, stamped: bool) -> None:  # fmt: skip
    job = Writer(flushes, stamped=stamped).play(1800)
    hung = job.seconds
    opened = watch(job.play(200, hangs=True).run.looks, interval=LOOKS).opened
    assert len(opened) == 1
    assert opened[0] - hung <= 40


def test_a_rank_that_loops_there_is_captured_before_it_is_blamed() -> None:
    job = Writer(120.0, stamped=False).play(1800)
    hung = job.seconds
    story = watch(job.run.play(500, {2: LOOPS}, others=SPINS).looks, interval=LOOKS)
    assert len(story.opened) == 1
    assert next(at for at in story.captured if at > hung) - hung <= 200
    assert story.opened[0] - hung <= 310


@pytest.mark.parametrize("into", [30.0, 60.0, 90.0])
def test_steps_that_are_flushed_while_all_ranks_evaluate_raise_nothing(into: float) -> None:
    """TensorBoard's writer flushes by its own clock, every 120 s: what the ranks have done since those steps is no stillness."""
    job = Writer(120.0).play(480.0 - into).play(into + 30, evaluates=True)
    assert watch(job.run.looks, interval=LOOKS).opened == []


def test_a_flush_after_the_alarm_is_no_recovery_and_steps_after_it_are() -> None:
    run = Run(interval=LOOKS)
    run.train(120, LOOKS).play(60, {2: SLEEPS}, others=SPINS)
    before = run.signals[ProgressKind.RECORD]
    late = Progress(kind=ProgressKind.RECORD, value=before.value + 4, at=before.at + 3)
    run.signals[ProgressKind.RECORD] = late
    run.play(10, {2: SLEEPS}, others=SPINS)
    story = watch(run.looks, interval=LOOKS)
    assert len(story.opened) == 1
    assert story.decisions[-1][1].stage is Stage.BLAMED
    run.train(10, LOOKS)
    assert Stage.RECOVERED in watch(run.looks, interval=LOOKS).stages


def test_a_clock_that_was_set_back_makes_nobody_quiet() -> None:
    delay = FlushDelay()
    assert [delay.take(UNIX + at, at) for at in (0.0, 15.0, 30.0)] == [0.0, 0.0, 0.0]
    assert delay.take(UNIX + 45 - 3600, 45.0) == 0.0
    assert delay.take(None, 60.0) == 0.0


@pytest.mark.parametrize("back", [-30.0, -60.0, -129.0])
def test_a_clock_that_was_set_back_by_a_minute_has_no_healthy_run_captured(back: float) -> None:
    job = Writer(5.0).play(360)
    job.clock += back
    story = watch(job.play(300).run.looks, interval=LOOKS)
    assert (story.opened, story.captured) == ([], [])


def test_a_record_that_tells_no_time_counts_when_it_is_read() -> None:
    progress = LogProgress()
    progress.take((LogRecord(step=1, loss=2.0, format="plain"),), 10, 100.0, "log")
    assert progress.moved_at == 100.0
