"""What counts as progress: whatever a log had not said before, and nothing that it says once more."""

import math
from itertools import cycle, islice

import pytest

from mldebug.logparser import LogParser
from mldebug.records import LogRecord
from mldebug.rooms import create_all
from mldebug.stall.progress import LogProgress
from mldebug.stall.pulse import Pulse
from mldebug.stall.signals import Look

MINUTE = 60


class Told:
    """One log, one line a second, as the agent reads it."""

    def __init__(self) -> None:
        self.progress = LogProgress()
        self.pulse = Pulse(1.0)
        self.now = 0.0
        self.parser = LogParser(create_all("logs"))

    def say(self, line: str, log: object = "a") -> None:
        """Say one line, one second later."""
        self.now += 1.0
        self.progress.take(tuple(self.parser.feed(f"{line}\n".encode())), len(line), self.now, log)
        self.look()

    def look(self) -> None:
        """Hand on what is known."""
        self.pulse.hear(Look(at=self.now, progress=self.progress.signals()), learn=True)

    def longest(self, *lines: str, seconds: int = 2 * MINUTE, first: int = 0) -> float:
        """Say these lines in turn; return the longest quiet after the first seconds."""
        quiet = []
        for number, line in enumerate(islice(cycle(lines), seconds)):
            self.say(line)
            quiet.append(self.pulse.quiet if number >= first else 0.0)
        return max(quiet)


@pytest.fixture
def told() -> Told:
    it = Told()
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
def test_what_was_said_before_is_no_movement(told: Told, lines: list[str]) -> None:
    assert told.longest(*lines) > 2 * MINUTE - 12


def test_what_was_said_before_is_no_rhythm(told: Told) -> None:
    before = len(told.pulse.gaps.memory.gaps)
    told.longest(*REPEATED["two monitor threads"])
    assert len(told.pulse.gaps.memory.gaps) <= before + 2
    assert told.progress.step == 61


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
def test_what_goes_on_is_movement(told: Told, lines: list[str]) -> None:
    assert told.longest(*lines, first=12) <= 3


def test_a_rounded_loss_without_a_step_comes_back() -> None:
    """A pattern of the user's may tell nothing else."""
    progress = LogProgress()
    for now, loss in enumerate((0.69, 0.7, 0.69, 0.7)):
        progress.take((LogRecord(loss=loss, format="mine"),), 10, now, "a")
        assert progress.moved_at == now
    progress.take((LogRecord(loss=0.7, format="mine"),), 10, 60.0, "a")
    assert progress.moved_at == 3


def test_a_resumed_run_says_known_steps_again() -> None:
    told = Told()
    for step in range(10):
        told.say(f"step {step} loss 0.5")
    told.progress.restart()
    told.say("step 8 loss 0.5")
    assert told.progress.moved_at == told.now


def test_ranks_with_logs_of_their_own_say_the_same(told: Told) -> None:
    said = told.progress.moved_at
    told.say("step 59 loss 1.0169", log="b")
    assert told.progress.moved_at == said


def test_all_that_was_there_before_us_is_known() -> None:
    progress = LogProgress()
    records = tuple(LogRecord(step=60 + n % 2, format="plain") for n in range(8))
    progress.arrive(records[-1], 5.0, "a", records[:-1])
    progress.take(records, 80, 60.0, "a")
    assert (progress.moved_at, progress.step) == (5.0, 61)


def test_a_restart_of_the_agent_beside_a_chatty_hang_is_no_movement() -> None:
    """The log is as young as its last line, and another rank's step stands last in it."""
    told = Told()
    for step in (58, 59, 60, 61, 60, 61):
        told.say(f"rank 0 step={step} mem=1")
    pulse, quiet = Pulse(1.0, told.pulse.memory), told.pulse.quiet
    again = LogProgress()
    again.arrive(LogRecord(step=60, format="plain"), told.now + 3, "a")
    moved = pulse.hear(Look(at=told.now + 4, progress=again.signals()), learn=True)
    assert moved is None
    assert pulse.quiet > quiet


def test_a_log_that_is_disowned_tells_nothing() -> None:
    told = Told()
    told.say("step 7 loss 0.5")
    told.progress.disown()
    assert (told.progress.step, told.progress.loss, told.progress.signals()) == (None, None, ())
    told.look()
    assert not told.pulse.has_rhythm
    assert not told.pulse.tells


def test_nothing_is_kept_for_ever(told: Told) -> None:
    for step in range(1000):
        told.say(f"step {step} loss {math.sin(step)}")
    assert len(told.progress._sayings._said) <= 32
