"""Lines of some 200 training stacks and versions, by kind: the step of training, an evaluation, a preparation, another thread.

Collected from what people posted and from the programs' own sources, in our own numbers; answers were fixed before the parser read them.
In `stacks.jsonl` STEP and NEXT stand for a count, LOSS for a loss that ends at 6.47.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mldebug.core.plugins import create, names
from mldebug.jobs.logs.parser import LogParser
from mldebug.stall.log_progress import LogProgress

PAUSE = 0.25  # seconds between two lines
STACKS = [json.loads(line) for line in (Path(__file__).parents[2] / "fixtures/logs/stacks.jsonl").read_text().splitlines()]  # fmt: skip
BEFORE = "\n".join(f"step {step} loss {9 - step / 100:.3f}" for step in range(1, 13))


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(one, id=one["name"]) for one in STACKS if one["kind"] == kind]


def progress_of(text: str, pieces: random.Random | None = None) -> tuple[LogProgress, float]:
    """What a log shows line by line, or cut anywhere; and for how long it has shown nothing new at its end."""
    parser = LogParser([create("logs", name) for name in names("logs") if name != "regex"])
    progress, now, data = LogProgress(), 0.0, (text + "\n").encode()
    while data:
        size = pieces.randint(1, 90) if pieces else data.index(b"\n") + 1
        piece, data, now = data[:size], data[size:], now + PAUSE
        progress.take(tuple(parser.feed(piece)), len(piece), now)
    return progress, now - (progress.moved_at or 0.0)


def counted(text: str, first: int = 107, last: int = 112) -> str:
    return "\n".join(
        text.replace("STEP", str(step)).replace("NEXT", str(step + 1)).replace("LOSS", f"{6.47 + (last - step) / 100:.4f}")
        for step in range(first, last + 1)
    )  # fmt: skip


def test_there_are_stacks_of_every_kind() -> None:
    assert {one["kind"] for one in STACKS} == {"training", "evaluation", "preparation", "background"}  # fmt: skip
    assert len(STACKS) > 300


@pytest.mark.parametrize("stack", of_kind("training"))
def test_of_training_the_step_the_loss_and_the_time_are_read(stack: dict[str, Any]) -> None:
    text = counted(stack["text"])
    for pieces in (None, random.Random(stack["name"])):
        progress, _ = progress_of(text, pieces)
        assert progress.step == stack["step"]
        assert progress.loss == (None if stack["loss"] is None else pytest.approx(stack["loss"]))
        if "seconds" in stack:
            assert progress.step_seconds == pytest.approx(stack["seconds"])


@pytest.mark.parametrize(
    "line",
    [
        "[STEP] loss: LOSS",  # a rank, perhaps
        "16,384 tokens per step STEP loss: LOSS",
        "loss: LOSS | samples per batch STEP",
        "Loss: LOSS | 120,000 tokens per iteration (STEP tokens/s)",
    ],
)
def test_a_number_that_counts_nothing_is_no_step(line: str) -> None:
    assert progress_of(counted(line))[0].step is None


@pytest.mark.parametrize(
    "line", ["loss [LOSS, 0.5]", "step STEP losses [LOSS]", "step STEP loss (val): LOSS"]
)
def test_a_list_of_losses_or_one_of_an_evaluation_is_not_the_loss(line: str) -> None:
    assert progress_of(counted(line))[0].loss is None


@pytest.mark.parametrize("stack", of_kind("evaluation"))
def test_an_evaluation_changes_neither_step_nor_loss(stack: dict[str, Any]) -> None:
    progress, _ = progress_of(f"{BEFORE}\n{counted(stack['text'], 100, 140)}")
    assert (progress.step, progress.loss) == (12, 8.88)


@pytest.mark.parametrize("stack", of_kind("preparation"))
def test_a_preparation_is_no_progress(stack: dict[str, Any]) -> None:
    progress, _ = progress_of(counted(stack["text"]))
    assert (progress.step, progress.moved_at) == (None, None)


@pytest.mark.parametrize("stack", of_kind("background"))
def test_another_thread_keeps_no_hang_alive(stack: dict[str, Any]) -> None:
    progress, quiet = progress_of(f"{BEFORE}\n{counted(stack['text'], 1, 30)}")
    assert progress.step == 12
    assert quiet >= 29 * PAUSE
