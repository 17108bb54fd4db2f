"""Where a run's logs have several counts, each figure comes from one of them: mixed, they look like spikes and steps back."""

import math
from collections.abc import Iterable

from mldebug.core.plugins import create_all
from mldebug.jobs.logs.figure_sources import MOST_SOURCES, OTHER_LINE, FigureSources
from mldebug.jobs.logs.parser import LogParser
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.log_progress import LogProgress
from shared.goodput.training_curves import found, points


def records_of(lines: Iterable[str], each: int = 20) -> list[LogRecord]:
    """The records with figures of a log, of which 20 lines come in each look."""
    parser, progress, rows = LogParser(create_all("logs")), LogProgress(), list(lines)
    taken: list[LogRecord] = []
    for n in range(0, len(rows), each):
        data = "".join(rows[n : n + each]).encode()
        progress.take(tuple(parser.feed(data)), len(data), 5.0 * n / each, "log")
        taken += progress.take_points()
    return taken


def events(records: Iterable[LogRecord]) -> list[str]:
    return found([one for each in records for one in points([{"loss": each.loss}] if each.loss is not None else [], first=each.step or 0)])  # fmt: skip


def loss(step: int) -> float:
    return 2 + 3 * math.exp(-step / 300) + step % 7 / 100


def bar(step: int, total: int, value: float, epoch: str = "") -> str:
    return f"{epoch} {100 * step // total}%|##  | {step}/{total} [00:10<00:20, 30.0it/s, loss={value:.3f}]\r"


def test_a_bar_of_the_epoch_beside_the_step_of_the_run_is_no_rollback() -> None:
    lines = []
    for step in range(1, 3000):
        lines.append(bar(step % 1000, 1000, loss(step), f"Epoch {step // 1000}:"))
        if step % 20 == 0:
            lines.append(f"global_step {step} loss {loss(step):.4f} lr 1e-4 tokens/s 12000\n")
    records = records_of(lines)
    assert events(records) == []
    assert sum(one.loss is not None for one in records) > 2900
    assert sum("tokens_per_second" in one.scalars for one in records) == 149


def test_the_loss_of_an_evaluation_without_a_name_is_no_spike() -> None:
    bars, lines = [], []
    for epoch in range(6):
        bars += [bar(n, 1000, loss(1000 * epoch + n), f"Epoch {epoch}:") for n in range(10, 1000, 10)]  # fmt: skip
        bars += [bar(n, 300, 5.0 + n % 3) for n in range(10, 300, 10)]
        lines += [f"step {200 * epoch + n} loss {loss(200 * epoch + n):.4f}\n" for n in range(200)]
        lines += [f"batch {n}/20 loss {8.0 + n % 3}\n" for n in range(1, 20)]
    assert events(records_of(bars)) == events(records_of(lines)) == []


def test_nan_of_the_loop_is_found_beside_a_log_that_tells_no_loss() -> None:
    """A bar on the terminal, and the figures in an event file."""
    progress, taken = LogProgress(), []
    for step in range(1, 60):
        now = 5.0 * step
        value = math.nan if step > 40 else 2.0 + step % 3 / 10
        progress.take((LogRecord(step=step, step_seconds=0.5, format="huggingface"),), 9, now, "terminal")  # fmt: skip
        progress.take((LogRecord(step=step, loss=value, format="tensorboard"),), 9, now, "chart")
        taken += progress.take_points()
    assert events(taken) == ["loss_not_finite"]
    assert sum(one.step_seconds is not None for one in taken) == 59


def test_lines_that_changed_take_over_and_epochs_of_another_length_are_the_same_lines() -> None:
    sources = FigureSources()
    record = lambda shape, total=None: LogRecord(step=1, total=total, loss=2.0, format="plain", shape=shape)  # fmt: skip
    assert all(sources.choose(record("step"), "a", n) for n in range(100))
    assert sources.choose(record("batch"), "a", 101.0) is None
    assert sources.choose(record("batch"), "a", 100.0 + OTHER_LINE) is not None
    sources.forget()
    assert all(sources.choose(record("", 1000 + n % 9), "a", n) for n in range(100))
    assert not any(sources.choose(record("", 100), "a", n) for n in range(100, 190))
    assert sum(sources.choose(record(""), "a", n) is not None for n in range(200, 400)) > 90


def test_the_sources_are_bounded() -> None:
    sources = FigureSources()
    for n in range(10 * MOST_SOURCES):
        sources.choose(LogRecord(step=n, loss=2.0, format="plain", shape=f"line {n}"), n, float(n))
    assert all(len(each) <= MOST_SOURCES for each in sources._sources.values())
