"""Logs of 120 programs whose printing code was looked up in public sources, with what they print before and after training.

The right answers were written down before the parser read them; where it tells no step or no loss, null stands. Each is read bare and behind
the labels of launchers and containers. In `looked_up.jsonl` STEP and NEXT stand for a count, LOSS for a loss that ends at 6.47.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unit.jobs.test_field_logs import counted, progress_of

STACKS = [json.loads(line) for line in (Path(__file__).parents[2] / "fixtures/logs/looked_up.jsonl").read_text().splitlines()]  # fmt: skip
LABELS: dict[str, Callable[[str], str]] = {
    "none": str,
    "srun": lambda line: f"3: {line}",
    "mpirun": lambda line: f"[1,0]<stdout>:{line}",
    "torchrun": lambda line: f"[default0]:{line}",
    "Ray": lambda line: f"(RayTrainWorker pid=1234, ip=10.0.0.1) {line}",
    "CRI": lambda line: f"2026-03-04T05:06:07.123456789Z stdout F {line}",
    "Docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-03-04T05:06:07.1Z"}),
}  # fmt: skip


@pytest.mark.parametrize("stack", [pytest.param(one, id=one["name"]) for one in STACKS])
def test_step_and_loss_are_those_that_were_written_down_behind_every_label(
    stack: dict[str, Any],
) -> None:
    text = "\n".join(part for part in (stack["before"], counted(stack["text"]), stack["after"]) if part)  # fmt: skip
    for label in LABELS.values():
        progress, _ = progress_of("\n".join(label(line) for line in text.split("\n")))
        assert progress.step == stack["step"]
        assert progress.loss == (None if stack["loss"] is None else pytest.approx(stack["loss"]))


TRAINED = "\n".join(f"step {step} loss {7 - step / 100:.4f} lr 1e-4" for step in range(1, 54))
SAYS_NO_STEP = {
    "an epoch alone, padded": "Epoch: [ 9/10], cls_loss: 0.3, total_Loss: LOSS",
    "two numbers of a box": "[STEP, NEXT] is the box",
    "a list with a loss behind it": "[STEP, NEXT, 900] lossless",
    "the best score": "Best score at iteration STEP is 0.5",
    "a validation's loss at a step": "validation loss at iteration STEP: 4.1",
    "a validation's loss behind its name": "Validation - loss at iteration STEP: 0.5",
    "a validation's loss behind a colon": "val: loss at iteration STEP: 0.5",
    "the loss of the best checkpoint": "Best checkpoint, loss at step STEP: 0.5",
    "where it goes on": "Resuming, loss at step STEP: 0.4",
    "a validation with its learning rate": "Val: loss: 0.5, lr: 0.001",
    "another score at a step": "Rouge score at iteration STEP is 0.5",
    "an evaluation of CNTK": "Finished Evaluation [1]: Minibatch[1-STEP]: metric = 0.84% * 10000;",
    "the size of a minibatch": "minibatch STEP is used",
    "an evaluation behind a phase in brackets": "[valid] epoch: 1/100, iteration: STEP/500, total loss: 4.1",
    "an episode that says no loss": "Episode STEP/1000 is recorded",
}  # fmt: skip


@pytest.mark.parametrize("name", SAYS_NO_STEP)
def test_what_only_looks_like_these_lines_tells_no_step_and_no_loss_but_trainings(
    name: str,
) -> None:
    line = counted(SAYS_NO_STEP[name])
    assert progress_of(line)[0].step is None
    progress, _ = progress_of(f"{TRAINED}\n{line}")
    assert progress.step == 53
    assert progress.loss == pytest.approx(6.47)


def test_a_line_of_figures_without_a_count_is_trainings_where_it_has_a_learning_rate() -> None:
    figures = "throughput: 161.8 samples/s, {}loss: LOSS batch_size: 96.0"
    assert progress_of(counted(figures.format("lr: 1.3e-05, ")))[0].loss == pytest.approx(6.47)
    assert progress_of(counted(figures.format("")))[0].loss is None
    same = "\n".join(["Loss = 6.4700, PNorm = 34.1, GNorm = 2.1, lr_0 = 1e-4"] * 20)
    assert progress_of(same)[1] > 4.0  # s: the same line again is no progress
