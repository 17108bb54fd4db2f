"""Pieces of made-up runs that several tests put together."""

import random

from mldebug.model import Role
from mldebug.stall.signals import ProgressKind
from traces import (
    ONE_LINE,
    SLEEPS,
    SPINS,
    TRAINS,
    WAITS,
    Does,
    Run,
)

CHATTY = SLEEPS._replace(io=200.0)  # another thread writes a line a second
LIGHT = Does(Role.INERT, "sleeps in next_batch (train.py:9)", cpu=0.03, switches=0.3)


def trained(seconds: float = 60, ranks: int = 4, every: float = 1.0) -> Run:
    return Run(ranks=ranks).train(seconds, every)


def ramp(run: Run) -> Run:
    """A batch-size ramp: steps grow from 1 s to 40 s."""
    return run.play(1800, TRAINS, every=lambda step: 1.0 + step * 0.7)


def irregular(run: Run) -> Run:
    dice = random.Random(7)
    return run.play(900, ONE_LINE, every=lambda _: dice.uniform(0.05, 3.0))


def grow(run: Run, seconds: int, does: Does | dict[int, Does]) -> Run:
    """A checkpoint whose bytes can be seen to grow."""
    for second in range(seconds):
        run.signal(ProgressKind.CHECKPOINT_BYTES, 8e8 * (second + 1))
        run.play(1, does, others=SPINS)
    return run


def chat(run: Run, seconds: int, does: Does | dict[int, Does], others: Does = WAITS) -> Run:
    """Some thread writes a line every second."""
    for _ in range(seconds):
        value = run.signals.get(ProgressKind.LOG_GROWTH)
        run.signal(ProgressKind.LOG_GROWTH, (value.value if value else 0) + 80)
        run.play(1, does, others=others)
    return run


def restart(run: Run, pause: float = 5) -> Run:
    """An elastic restart: the log of the old attempt is still there."""
    run.at += pause
    run.attempt, run.started = run.attempt + 1, False
    return run


def unlogged(ranks: int = 4) -> Run:
    run = Run(ranks=ranks)
    run.started = True
    return run
