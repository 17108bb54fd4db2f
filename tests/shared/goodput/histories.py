"""Histories of runs as an agent publishes them."""

import random

from mldebug.goodput.scalars.history import HistoryTable, RunHistory
from mldebug.goodput.scalars.model import TrainingEvent
from mldebug.goodput.scalars.stored_training import TrainingRules
from shared.goodput.training_curves import AT, Values, cosine, points


def history(
    run: str = "5c01", *, uid: int = -1, nan_from: int = 800, length: int = 900, **fields: object
) -> RunHistory:
    """A run of 75 minutes with a loss, a learning rate and a throughput, whose loss leaps twice and becomes NaN."""
    values = list(cosine(random.Random(7), length))
    for n, one in enumerate(values):
        spoilt: Values = {}
        if 300 <= n < 315:
            spoilt = {"loss": one["loss"] + 4}
        if n >= nan_from:
            spoilt = {"loss": float("nan")}
        values[n] = (
            one | {"grad_norm": 1 + 0.2 * (n % 7), "mfu": 0.41, "step_seconds": 0.4} | spoilt
        )
    rules, table = TrainingRules(), HistoryTable()
    row = points(values)
    rules.add(row)
    for point in row:
        table.add(point.at, point.step, point.values)
    return made(run, table, tuple(rules.events), uid=uid, counts=dict(rules.counts), **fields)


def made(
    run: str, table: HistoryTable, events: tuple[TrainingEvent, ...] = (), **fields: object
) -> RunHistory:
    """The history of a table."""
    columns = {name: tuple(column) for name, column in table.columns.items()}
    given: dict[str, object] = {"name": "train.py", "started_at": AT} | fields
    return RunHistory(
        run=run,
        times=tuple(table.times),
        steps=tuple(table.steps),
        columns=columns,
        events=events,
        **given,
    )  # type: ignore[arg-type]
