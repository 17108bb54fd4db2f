"""What counts as progress: whatever a log had not said before, and nothing that it says once more."""

import math
from collections.abc import Callable
from itertools import cycle, islice

import pytest

from mldebug.core.plugins import create_all
from mldebug.jobs.logs.parser import LogParser
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.log_progress import LogProgress
from mldebug.stall.progress_clock import ProgressClock
from mldebug.stall.signals import RunLook

MINUTE = 60


class FollowedLog:
    """One log, one line a second, as the agent reads it."""

    def __init__(self) -> None:
        self.progress = LogProgress()
        self.clock = ProgressClock(1.0)
        self.now = 0.0
        self.parser = LogParser(create_all("logs"))

    def say(self, line: str, log: object = "a") -> None:
        """Say one line, one second later."""
        self.now += 1.0
        self.progress.take(tuple(self.parser.feed(f"{line}\n".encode())), len(line), self.now, log)
        self.look()

    def look(self) -> None:
        """Hand on what is known."""
        self.clock.update(RunLook(at=self.now, progress=self.progress.signals()), learn=True)

    def longest(self, *lines: str, seconds: int = 2 * MINUTE, first: int = 0) -> float:
        """Say these lines in turn; return the longest quiet after the first seconds."""
        quiet = []
        for number, line in enumerate(islice(cycle(lines), seconds)):
            self.say(line)
            quiet.append(self.clock.quiet if number >= first else 0.0)
        return max(quiet)


@pytest.fixture
def followed() -> FollowedLog:
    it = FollowedLog()
    for step in range(50, 60):
        it.say(f"step {step} loss {60 / step:.4f}")
    return it


REPEATED = {
    "two monitor threads": ["rank 0 step=61 gpu_mem=31.2GiB", "rank 1 step=60 gpu_mem=31.2GiB"],
    "whose memory changes": [f"rank {n % 2} step={60 + n % 2} gpu_mem={n}.2GiB" for n in range(90)],
    "eight of them": [f"[rank{n}]: step={58 + n % 3} queue={n}" for n in range(8)],
    "two bars": [
        "Epoch:  10%|#         | 1/10 [00:10<01:20, 10.00s/it]",
        "train:  50%|#####     | 50/100 [00:10<00:10, 5.00it/s]",
    ],
    "bars with their clocks": [
        f"train:  50%|#####     | {50 + n % 2}/100 [00:{n:02}<00:10, 5.00it/s]" for n in range(60)
    ],
    "two bars with one total": [
        "train:   3%|#         | 3/100 [00:10<01:20, 10.00s/it]",
        "train:  50%|#####     | 50/100 [00:10<00:10, 5.00it/s]",
    ],
    "a Trainer dict": ["{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 0.01}"],
    "a loss that is no number": ["step 60 loss nan", "step 61 loss nan"],
    "an evaluation that hangs": ["Evaluating:  30%|###  | 3/10 [00:09<00:21, 3.00s/it]"],
    "an iteration of it": ["Evaluating iter 3/10"],
    "a thread that never counted": ["rank 1 step=0 alive=1", "rank 0 step=60 alive=1"],
    "three of them": ["a step=0 x=1", "b step=30 x=1", "c step=60 x=1"],
}


@pytest.mark.parametrize("lines", REPEATED.values(), ids=REPEATED)
def test_what_was_said_before_is_no_movement(followed: FollowedLog, lines: list[str]) -> None:
    assert followed.longest(*lines) > 2 * MINUTE - 12


def test_what_was_said_before_is_no_rhythm(followed: FollowedLog) -> None:
    before = len(followed.clock.gaps.memory.gaps)
    followed.longest(*REPEATED["two monitor threads"])
    assert len(followed.clock.gaps.memory.gaps) <= before + 2
    assert followed.progress.step == 61


MOVING = {
    "epochs": [f"Train Epoch: {n} [0/60000 (0%)]\tLoss: 0.3000" for n in range(120)],
    "only its loss": [f"[0/60000] batch 1/9 loss: {2 / n:.6f}" for n in range(1, 120)],
    "epochs without a number": [f"it {n}/5" for n in range(1, 6)],
    "a bar for each epoch": [f"{n * 5}%|#| {n}/20 [00:10<00:10, 5.00it/s]" for n in range(21)],
    "every tenth batch": [f"batch {n}/1000" for n in range(0, 1000, 250)],
    "two bars that move": [
        line
        for n in range(100)
        for line in (
            "Epoch:  10%|#         | 1/10 [00:10<01:20, 10.00s/it]",
            f"train:  {n}%|#####     | {n}/100 [00:10<00:10, 5.00it/s]",
        )
    ],
    "evaluations": [f"Evaluating:  3%|#  | {n}/12 [00:09<00:21, 3.00s/it]" for n in range(50)],
    "the same evaluation again": [
        line
        for step in range(100)
        for line in (
            f" iteration {step}/ 100 | lm loss: 2.0E+00 |",
            *(f"Evaluating iter {n}/10" for n in range(10)),
        )
    ],
    "evaluations of one epoch": [
        f"{{'eval_{name}_loss': 0.5, 'epoch': {n}.0}}" for n in range(20) for name in "abcdefgh"
    ],
    "a bar that names its epoch": [f"Epoch {n}:  0%|#  | 0/2 [00:09<?, ?it/s]" for n in range(99)],
    "a batch-size ramp": [f"step {n} loss 2.0 batch_size={n * 8}" for n in range(200)],
    "several ranks": [f"[rank{n % 4}]: step {n // 4} loss 0.5" for n in range(480)],
    "validation": [f"validation loss at iteration {n} | lm loss value: 1.0" for n in range(120)],
}


@pytest.mark.parametrize("lines", MOVING.values(), ids=MOVING)
def test_what_goes_on_is_movement(followed: FollowedLog, lines: list[str]) -> None:
    assert followed.longest(*lines, first=12) <= 3


COUNTERS = {
    "a reader that waits": [
        f"waiting for shard: iteration {n}, elapsed: {n * 5}" for n in range(200)
    ],
    "a poller of GPUs": [f"gpu util: step {n}: util=0.0" for n in range(200)],
    "a queue": [f"[rank3] data queue empty, iter {n}" for n in range(200)],
    "one that has come far": [f"io: step {n} pending=3" for n in range(5000, 5200)],
    "one without a word": [f"[io] step {n} pending=3" for n in range(200)],
    "all of them": [
        line
        for n in range(70)
        for line in (
            f"heartbeat thread: {n} uploads queued",
            f"gpu util: step {n}: util=0.0",
            f"[rank3] data queue empty, iter {n}",
        )
    ],
}


@pytest.mark.parametrize("lines", COUNTERS.values(), ids=COUNTERS)
def test_another_thread_that_counts_is_no_movement(followed: FollowedLog, lines: list[str]) -> None:
    assert followed.longest(*lines) == 2 * MINUTE
    assert followed.progress.step == 59
    followed.say("step 60 loss 0.5")
    assert (followed.clock.quiet, followed.progress.step) == (0, 60)


def test_another_thread_that_counts_beside_a_loop_which_tells_no_loss() -> None:
    log = FollowedLog()
    for step in range(50, 60):
        log.say(f"it {step}/1000")
    assert log.longest(*COUNTERS["a queue"]) == 2 * MINUTE
    assert log.progress.step == 59


BESIDE_FROM_THE_START = (
    "tensorboard: flushed step {n}",
    "profiler: captured step {n} of 900",
    "lr monitor: step {n}",
    "cpu 12% mem 40% iteration {n}",
)


@pytest.mark.parametrize("line", BESIDE_FROM_THE_START)
def test_another_thread_that_counted_beside_the_loop_from_the_start_is_no_movement(line: str) -> None:  # fmt: skip
    """Its count is the loop's own, as both began together; it goes on after the loop has stopped."""
    log = FollowedLog()
    for n in range(1, 40):
        log.say(f"step {n} loss {60 / n:.4f}")
        log.say(line.format(n=n))
        assert log.clock.quiet == 0
    assert log.longest(*(line.format(n=n) for n in range(40, 240))) >= 2 * MINUTE - 10
    assert log.progress.step == 39
    log.say("step 40 loss 0.5")
    assert (log.clock.quiet, log.progress.step) == (0, 40)


LOSS_SELDOM: dict[str, Callable[[int], bool]] = {
    "every 50 steps": lambda n: n % 50 == 0,
    "never": lambda n: False,
    "for three steps at the start": lambda n: n < 3,
    "more and more seldom": lambda n: n & (n - 1) == 0,
}


@pytest.mark.parametrize("has_loss", LOSS_SELDOM.values(), ids=LOSS_SELDOM)
def test_a_loop_whose_only_line_is_mostly_a_bare_count_is_movement(has_loss: Callable[[int], bool]) -> None:  # fmt: skip
    log = FollowedLog()
    for n in range(1, 400):
        log.say(f"trainer: step {n} tokens=512")
        assert log.clock.quiet == 0
        if has_loss(n):
            log.say(f"step {n} loss {60 / n:.4f}")
    assert log.progress.step == 399


def test_a_loop_that_tells_its_loss_more_seldom_is_movement_from_the_second_time_on() -> None:
    log = FollowedLog()
    quiet = []
    for n in range(1, 600):
        log.say(f"trainer: step {n} tokens=512")
        quiet.append(log.clock.quiet)
        if n < 10 or n % 20 == 0:
            log.say(f"step {n} loss {60 / n:.4f}")
    assert max(quiet[:20]) <= 4
    assert max(quiet[20:]) == 0


def test_another_thread_that_counts_was_the_last_to_speak_before_us() -> None:
    progress = LogProgress()
    records = LogParser(create_all("logs")).feed(
        b"".join(b"step %d loss %f\n" % (n, 60 / n) for n in range(50, 60))
        + b"".join(b"gpu util: step %d: util=0\n" % n for n in range(5))
    )
    progress.arrive(records[-1], 5.0, "a", tuple(records[:-1]))
    assert (progress.moved_at, progress.step) == (5.0, 59)


ANOTHER_PHASE = {
    "an evaluation": [f"eval step {n}/200" for n in range(200)],
    "that tells no total": [f"[eval] step {n} tokens=512" for n in range(200)],
    "that tells how well": [f"held-out data: step {n} accuracy=0.{n:03}" for n in range(200)],
    "short ones, one after the other": [f"eval step {n % 5}/5 loss {n / 200}" for n in range(200)],
    "epochs": [f"Epoch {n}/500" for n in range(200)],
    "the same in other words": [f"phase two: step {n} tokens=512" for n in range(60, 260)],
    "with what the run needs": [
        f"eta {'1 day' if n < 99 else 'soon'}, step {n} loss 0.5 mem {n}{'MiB' if n % 9 else 'GiB'}"
        for n in range(60, 260)
    ],
}


@pytest.mark.parametrize("lines", ANOTHER_PHASE.values(), ids=ANOTHER_PHASE)
def test_a_phase_with_lines_of_its_own_is_movement(followed: FollowedLog, lines: list[str]) -> None:
    assert followed.longest(*lines) <= 1


def test_the_step_of_an_evaluation_is_not_that_of_the_run(followed: FollowedLog) -> None:
    for lines in (range(5), range(60, 63), range(5)):
        train = lines.start > 0
        for n in lines:
            followed.say(f"step {n} loss {60 / n}" if train else f"eval step {n}/5 loss 0.9")
            assert followed.clock.quiet == 0
    assert (followed.progress.step, followed.progress.loss) == (62, 60 / 62)


def test_another_loop_takes_the_step_over_when_it_stays(followed: FollowedLog) -> None:
    steps = []
    for n in range(12):
        followed.say(f"fine-tuning: iter {n}/500 loss {n}.5")
        steps.append(followed.progress.step)
    assert steps == [59] * 7 + [7, 8, 9, 10, 11]
    followed.say("step 60 loss 0.5")
    assert followed.progress.step == 60


FROM_THE_START = {
    "two kinds in turn": ["step {n} loss 0.5", "micro: batches seen, iter {more} tokens=512"],
    "one kind, unusual": ["[rank3] data queue empty, iter {n}"],
    "bare ones": ["trainer: step {n} tokens=512"],
}


@pytest.mark.parametrize("lines", FROM_THE_START.values(), ids=FROM_THE_START)
def test_what_a_log_says_from_the_start_is_movement(lines: list[str]) -> None:
    log = FollowedLog()
    results = [line.format(n=n, more=n * 7) for n in range(150) for line in lines]
    assert log.longest(*results, seconds=150) == 0


def test_a_loop_behind_a_bar_of_the_start_up_is_movement() -> None:
    log = FollowedLog()
    for n in range(50):
        log.say(f"{n}%|#| {n}/50 [00:10<00:10, 5.00it/s]")
    assert log.longest(*(f"step {n} tokens=512" for n in range(200))) == 0


def test_a_restarted_job_may_have_another_log_format(followed: FollowedLog) -> None:
    followed.progress.restart()
    assert followed.longest(*(f"trainer: step {n} tokens=512" for n in range(200))) == 0
    assert followed.progress.step == 119


DICTS = {
    "a constant loss": [
        f"{{'loss': 0.0, 'grad_norm': {n}.5, 'learning_rate': 1e-05, 'epoch': 0.01}}"
        for n in range(200)
    ],
    "one that is no number": [
        f"{{'loss': nan, 'grad_norm': nan, 'learning_rate': {n}e-08, 'epoch': 0.01}}"
        for n in range(200)
    ],
    "numbers as text": [
        f"{{'loss': '1.2', 'grad_norm': '{n}.0', 'epoch': '0.01'}}" for n in range(200)
    ],
}


@pytest.mark.parametrize("lines", DICTS.values(), ids=DICTS)
def test_any_new_number_in_a_dict_is_movement(lines: list[str]) -> None:
    assert FollowedLog().longest(*lines) == 0


def test_a_rounded_loss_without_a_step_comes_back() -> None:
    """A pattern of the user's may tell nothing else."""
    progress = LogProgress()
    for now, loss in enumerate((0.69, 0.7, 0.69, 0.7)):
        progress.take((LogRecord(loss=loss, format="mine"),), 10, now, "a")
        assert progress.moved_at == now
    progress.take((LogRecord(loss=0.7, format="mine"),), 10, 60.0, "a")
    assert progress.moved_at == 3


def test_a_resumed_run_says_known_steps_again() -> None:
    log = FollowedLog()
    for step in range(10):
        log.say(f"step {step} loss 0.5")
    log.progress.restart()
    log.say("step 8 loss 0.5")
    assert log.progress.moved_at == log.now


def test_ranks_with_logs_of_their_own_say_the_same(followed: FollowedLog) -> None:
    moved_at = followed.progress.moved_at
    followed.say("step 59 loss 1.0169", log="b")
    assert followed.progress.moved_at == moved_at


def test_all_that_was_there_before_us_is_known() -> None:
    progress = LogProgress()
    records = tuple(LogRecord(step=60 + n % 2, format="plain") for n in range(8))
    progress.arrive(records[-1], 5.0, "a", records[:-1])
    progress.take(records, 80, 60.0, "a")
    assert (progress.moved_at, progress.step) == (5.0, 61)


def test_a_restart_of_the_agent_beside_a_chatty_hang_is_no_movement() -> None:
    """The log is as young as its last line, and another rank's step stands last in it."""
    log = FollowedLog()
    for step in (58, 59, 60, 61, 60, 61):
        log.say(f"rank 0 step={step} mem=1")
    clock, quiet = ProgressClock(1.0, log.clock.memory), log.clock.quiet
    again = LogProgress()
    again.arrive(LogRecord(step=60, format="plain"), log.now + 3, "a")
    moved = clock.update(RunLook(at=log.now + 4, progress=again.signals()), learn=True)
    assert moved is None
    assert clock.quiet > quiet


def test_a_log_that_is_disowned_tells_nothing() -> None:
    log = FollowedLog()
    log.say("step 7 loss 0.5")
    log.progress.forget_progress()
    assert (log.progress.step, log.progress.loss, log.progress.signals()) == (None, None, ())
    log.look()
    assert not log.clock.memory.values


def test_nothing_is_kept_for_ever(followed: FollowedLog) -> None:
    for step in range(1000):
        followed.say(f"step {step} loss {math.sin(step)}")
    assert len(followed.progress._novelty._recent) <= 32


def test_steps_that_stood_in_the_log_before_are_told_once() -> None:
    progress = LogProgress()
    records = [LogRecord(step=step, loss=0.5, format="plain") for step in (8, 9, 3, 4, 5)]
    progress.arrive(records[-1], 5.0, "a", tuple(records[:-1]))
    assert progress.take_earlier_steps() == (8, 9, 3, 4, 5)
    assert progress.take_earlier_steps() == ()


def test_of_evaluations_before_we_came_the_one_that_goes_on_counts() -> None:
    progress = LogProgress()
    evaluated = [LogRecord(place=f"{n}/9", format="plain") for n in range(1, 4)]
    records = (*evaluated, LogRecord(step=8, loss=0.5, format="plain"))
    progress.arrive(records[-1], 5.0, "a", records[:-1])
    assert progress.evaluations == 0
    again = LogProgress()
    again.arrive(evaluated[-1], 5.0, "a", (LogRecord(step=8, loss=0.5, format="plain"), *evaluated[:-1]))  # fmt: skip
    assert again.evaluations == 3
