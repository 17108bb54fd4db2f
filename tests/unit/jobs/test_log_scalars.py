"""Figures beside a step: one name whatever a framework calls them, the values as they come."""

import math

import pytest

from mldebug.core.plugins import create, load, names
from mldebug.jobs.logs.charts.chart_parser import step_record
from mldebug.jobs.logs.parser import LogParser
from mldebug.jobs.logs.scalars import MOST, scalars_of
from mldebug.stall.log_progress import LogProgress

MEGATRON = (
    " iteration       43/     100 | elapsed time per iteration (ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | learning rate: 8.6E-06 | lm loss: 1.8 |"
    " loss scale: 1.0 | grad norm: 1.426 | params norm: 311.2 | number of skipped iterations:   3 | number of nan iterations:   2 |"
)  # fmt: skip
LINES = {
    MEGATRON: {"tflops": 239.8, "learning_rate": 8.6e-06, "loss_scale": 1.0, "grad_norm": 1.426, "skipped_iterations": 3, "nan_iterations": 2},
    " iteration 4/ 9 | lm loss: 1.8 | params norm: 311.2 |": {},
    "{'loss': 4.75, 'grad_norm': '98.5', 'learning_rate': 5e-06, 'memory/max_mem_active(gib)': 25.45, 'epoch': 1.0}": {"grad_norm": 98.5, "learning_rate": 5e-06, "memory": 25.45},
    "step:  4  loss:  7.6  grad_norm: 26.625  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%": {
        "grad_norm": 26.625, "memory": 66.91, "tokens_per_second": 10050, "tflops": 314.71, "mfu": 13.99,
    },
    "step 12/19560 | loss 6.4 | norm 1.25 | lr 6.00e-04 | 250.00 ms | 39.5% bf16 MFU | 210000 tok/s": {"grad_norm": 1.25, "learning_rate": 6e-4, "mfu": 39.5, "tokens_per_second": 210000},
    "iteration: 3 / 9 | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K | lm_loss: 2.3 | lr: 1e-05": {"tokens_per_second": 22800, "tokens_per_second_per_gpu": 11400, "learning_rate": 1e-5},
    "[Rank 0] step=40, skipped=2, lr=[5e-05], mom=[[0.9, 0.999]]": {"skipped_iterations": 2, "learning_rate": 5e-5},
    "step:34 - actor/grad_norm:0.129 - actor/lr:2e-06 - perf/mfu/actor:0.45 - val/reward:0.9": {"grad_norm": 0.129, "learning_rate": 2e-6, "mfu": 0.45},
    "{'eval_loss': 0.8, 'eval_samples_per_second': 10.4, 'epoch': 1.0}": {},
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_the_figures_of_a_line(line: str) -> None:
    assert scalars_of(line) == pytest.approx(LINES[line])


def test_what_is_no_number_is_kept_as_such() -> None:
    found = scalars_of("step 12 | lr nan | grad_norm inf")
    assert math.isnan(found["learning_rate"])
    assert math.isinf(found["grad_norm"])


@pytest.mark.parametrize("line", ["lr" * 2000, "lr: " * 1000, "1,234," * 700, "number of " * 400, "(" * 4000, "a_b.c/" * 700])  # fmt: skip
def test_no_line_takes_long_or_makes_many(line: str) -> None:
    assert len(scalars_of(line)) <= MOST


def parser(*patterns: str) -> LogParser:
    regex = load("logs", "regex")
    own = {"mine": regex.create(regex.Options(patterns=patterns))} if patterns else {}
    return LogParser([create("logs", name) for name in names("logs") if name != "regex"], own)


def test_a_run_has_the_last_of_each() -> None:
    progress, log = LogProgress(), parser()
    progress.take(tuple(log.feed(b"step 1 loss 2.0 lr 0.1 grad_norm 3.0\nstep 2 loss 1.9 lr 0.2\n")), 1, 1.0)  # fmt: skip
    assert progress.scalars == {"learning_rate": 0.2, "grad_norm": 3.0}
    progress.forget_progress()
    assert progress.scalars == {}


def test_a_bar_that_is_drawn_and_not_ended_has_them_too() -> None:
    log = parser()
    log.feed(b"\r 12%|## | 107/900 [00:30<12:00,  2.50it/s, loss=1.2, lr=1e-5]")
    (record,) = log.flush()
    assert record.scalars == {"learning_rate": 1e-5}


def test_groups_of_other_names_in_a_pattern_of_ones_own_are_figures() -> None:
    log = parser(r"it=(?P<step>\d+) gnorm2=(?P<my_norm>\S+) q=(?P<queue>\S+)")
    (record,) = log.feed(b"it=12 gnorm2=1,234.5 q=full\n")
    assert (record.step, record.scalars) == (12, {"my_norm": 1234.5})


def test_charts_have_them_by_the_last_part_of_their_names() -> None:
    record = step_record(7, {"train/loss": 1.5, "train/grad_norm": 0.5, "lr": 1e-4, "eval/grad_norm": 9.0}, "tensorboard")  # fmt: skip
    assert record is not None
    assert record.scalars == {"grad_norm": 0.5, "learning_rate": 1e-4}
