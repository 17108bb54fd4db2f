"""Pieces of made-up runs that several tests put together."""

import random

from mldebug.core.model import Role
from mldebug.stall.signals import ProgressKind
from shared.stall.traces import (
    ONE_LINE,
    SAVES,
    SLEEPS,
    SPINS,
    TRAINS,
    WAITS,
    Does,
    Run,
)

FSYNC = SLEEPS._replace(doing="waits for storage in fsync", class_name="storage", state="D")
CHATTY = SLEEPS._replace(io=200.0)  # another thread writes a line a second
LIGHT = Does(Role.INERT, "sleeps in next_batch (train.py:9)", cpu=0.03, switches=0.3)


def trained(seconds: float = 60, ranks: int = 4, every: float = 1.0, backend: str = "nccl") -> Run:
    run = Run(ranks=ranks)
    run.backend = backend
    return run.train(seconds, every)


def ramp(run: Run) -> Run:
    """A batch-size ramp: steps grow from 1 s to 40 s."""
    return run.play(1800, TRAINS, every=lambda step: 1.0 + step * 0.7)


def irregular(run: Run) -> Run:
    dice = random.Random(7)
    return run.play(900, ONE_LINE, every=lambda _: dice.uniform(0.05, 3.0))


def save_in_pieces(run: Run, seconds: int, every: int) -> Run:
    """Rank 0 makes one large write in so many seconds, then stands in fsync; the others wait."""
    for second in range(seconds):
        piece = SAVES if second % every == 0 else FSYNC
        run.play(1, {0: piece}, others=SPINS)
    return run


def chat(
    run: Run, seconds: int, does: Does | dict[int, Does], others: Does = WAITS, every: int = 1
) -> Run:
    """The log grows by a line every so many seconds; by a main thread's where one of these `prints`."""
    for second in range(seconds):
        if second % every == 0:
            value = run.signals.get(ProgressKind.LOG_GROWTH)
            run.signal(ProgressKind.LOG_GROWTH, (value.value if value else 0) + 80)
        run.play(1, does, others=others)
    return run


def restart(run: Run, pause: float = 5) -> Run:
    """An elastic restart: the log of the old attempt is still there."""
    run.at += pause
    run.attempt, run.started = run.attempt + 1, False
    return run


def unlogged(ranks: int = 4, *, elsewhere: bool = False) -> Run:
    run = Run(ranks=ranks)
    run.started, run.elsewhere = True, elsewhere
    return run
