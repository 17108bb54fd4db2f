"""What a log says while its job is healthy, and while it hangs: lines of preparations, evaluations and other threads, through the parser and the decision."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mldebug.core.plugins import create, names
from mldebug.jobs.logs.parser import LogParser
from mldebug.stall.log_progress import LogProgress
from shared.stall.traces import LOADS, SLEEPS, SPINS, TRAINS, WORKS, Crew, Does, Run, watch

LOOKS = 5.0
STACKS = [json.loads(line) for line in (Path(__file__).parents[2] / "fixtures/logs/stacks.jsonl").read_text().splitlines()]  # fmt: skip
BESIDE = "\0"  # between what the loop prints and what another thread does
STANDS = SLEEPS._replace(doing="evaluate (train.py:40)")


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(one["text"], id=one["name"]) for one in STACKS if one["kind"] == kind]


class Logged:
    """A job of four ranks on gloo whose log alone tells how it does; looked at every 5 s."""

    def __init__(self) -> None:
        self.run = Run(interval=LOOKS)
        self.run.backend = "gloo"
        self._parser = LogParser([create("logs", name) for name in names("logs") if name != "regex"])  # fmt: skip
        self._progress = LogProgress()
        self._printed: Counter[str] = Counter()

    def play(self, seconds: float, text: str, does: Crew, others: Does = SPINS) -> "Logged":
        """Let time pass; each second its log gains these lines, in each of which STEP counts up."""
        texts = [part for part in text.split(BESIDE) if part]
        for _ in range(int(seconds / LOOKS)):
            lines = [self._counted(line) for _ in range(int(LOOKS)) for line in texts]
            self.play_lines(lines, does, others)
        return self

    def play_lines(self, lines: list[str], does: Crew, others: Does = SPINS) -> "Logged":
        """Let 5 s pass, in which its log gains these lines."""
        data = "".join(f"{line}\n" for line in lines).encode()
        self.run.at += LOOKS
        self._progress.take(tuple(self._parser.feed(data)), len(data), self.run.at)
        self.run.signals = {one.kind: one for one in self._progress.signals()}
        self.run.started = self._progress.made_a_step
        self.run.evaluates = self._progress.amid_evaluation
        self.run.look(does, others)
        return self

    def _counted(self, text: str) -> str:
        self._printed[text] += 1
        step = self._printed[text]
        loss = f"{2 + 10 / step:.4f}"
        return text.replace("STEP", str(step)).replace("NEXT", str(step + 1)).replace("LOSS", loss)

    @property
    def seconds(self) -> float:
        return self.run.at - self.run.looks[0].at

    def opened(self, since: float = 0.0) -> list[float]:
        """Seconds from that moment to each alarm."""
        return [at - since for at in watch(self.run.looks, interval=LOOKS).opened]


def trained(seconds: float = 60) -> Logged:
    return Logged().play(seconds, "step STEP loss LOSS", TRAINS)


@pytest.mark.parametrize("text", of_kind("evaluation"))
def test_an_evaluation_raises_nothing_and_what_hangs_in_it_is_named(text: str) -> None:
    job = trained().play(120, text, {0: WORKS})
    assert trained().play(120, text, WORKS).play(30, "step STEP loss LOSS", TRAINS).opened() == []
    assert job.opened() == []
    hung = job.seconds
    late = job.play(200, "", {0: STANDS}).opened(hung)
    assert len(late) == 1
    assert late[0] <= 90


@pytest.mark.parametrize("text", of_kind("preparation"))
def test_a_preparation_raises_nothing_and_what_hangs_in_it_is_named(text: str) -> None:
    job = Logged().play(300, text, {0: WORKS})
    assert job.opened() == []
    assert Logged().play(300, text, WORKS).play(60, "step STEP loss LOSS", TRAINS).opened() == []
    hung = job.seconds
    late = job.play(200, "", {0: SLEEPS}).opened(hung)
    assert len(late) == 1
    assert late[0] <= 90


@pytest.mark.parametrize("text", of_kind("background"))
def test_another_thread_raises_nothing_and_keeps_no_hang_alive(text: str) -> None:
    healthy = Logged().play(300, f"step STEP loss LOSS{BESIDE}{text}", TRAINS)
    assert healthy.opened() == []
    job = trained()
    hung = job.seconds
    late = job.play(200, text, {2: SLEEPS}).opened(hung)
    assert len(late) == 1
    assert late[0] <= 60


# --- an evaluation before the first step ----------------------------------------------------------------

CHECKED = {
    "a bar to its end": [f"Evaluating: 100%|#| {n}/12 [00:09<00:21, 3.00s/it]" for n in range(1, 13)],
    "a bar that is cleared before its end": [f"Validating: 95%|#| {n}/20 [00:09<00:21, 3.00s/it]" for n in range(1, 20)],
    "lines without a total": [f"eval step {n} loss 2.31" for n in range(1, 40)],
    "lines to their end": [f"Evaluating iter {n}/60" for n in range(1, 61)],
    "two data sets": [f"Validation DataLoader {one}: 50%|#| {n}/15 [00:09<00:21, 3.00s/it]" for one in range(2) for n in range(1, 16)],
}  # fmt: skip
HALF = [f"Evaluating: 30%|###  | {n}/500 [00:09<00:21, 3.00s/it]" for n in range(1, 150)]


def evaluated(lines: list[str]) -> Logged:
    """A job that has loaded for 20 s and counted an evaluation since, a line a second."""
    job = Logged().play(20, "", WORKS)
    for at in range(0, len(lines), int(LOOKS)):
        job.play_lines(lines[at : at + int(LOOKS)], WORKS)
    return job


@pytest.mark.parametrize("start", [SLEEPS, LOADS], ids=("sleeps", "loads"))
@pytest.mark.parametrize("lines", CHECKED)
def test_the_start_behind_an_evaluation_has_the_time_of_a_start(lines: str, start: Does) -> None:
    job = evaluated(CHECKED[lines]).play(280, "", {0: start})
    assert job.play(60, "step STEP loss LOSS", TRAINS).opened() == []


@pytest.mark.parametrize("lines", CHECKED)
def test_what_hangs_behind_an_evaluation_is_noticed_when_a_start_is(lines: str) -> None:
    job = evaluated(CHECKED[lines])
    hung = job.seconds
    late = job.play(400, "", {0: SLEEPS}).opened(hung)
    assert len(late) == 1
    assert 300 <= late[0] <= 320


def test_what_hangs_in_the_midst_of_an_evaluation_is_noticed_in_time() -> None:
    """So does a job that only evaluates."""
    job = evaluated(HALF)
    hung = job.seconds
    late = job.play(200, "", {0: STANDS}).opened(hung)
    assert len(late) == 1
    assert 60 <= late[0] <= 90


@pytest.mark.parametrize("every", [45.0, 90.0])
def test_quick_counts_of_an_evaluation_teach_no_rhythm_of_steps(every: float) -> None:
    """A step that takes so long, nearly all of it in a wait, came after 60 counts of one a second."""
    job = evaluated(CHECKED["lines to their end"])
    for step in range(1, 7):
        job.play(every - LOOKS, "", {0: SLEEPS}).play_lines(
            [f"step {step} loss {3 - step / 10}"], TRAINS
        )
    assert job.opened() == []
