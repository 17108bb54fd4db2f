"""A training loop that is timed on demand: python filteredinside.py FOLDER; each line of stdin is a kind and a number of steps.

Answers each line with nanoseconds of CPU and of wall time. Tracing is switched on and off in one process, so that memory lies where
it lies for both. The first steps after a switch are not timed: they make the ring and ask for each code once. It needs torch and
mldebug_training alone.
"""

import contextlib
import json
import math
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mldebug_training.tracing.trace import trace

WARM = 30  # steps
SETTLE = 3  # steps after a switch
SIZE = 1 << 20  # bytes of the ring
WIDTH, BATCH, DEPTH = 512, 128, 3


class Block(nn.Module):
    """As people write them: a few modules in a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(WIDTH), *two()

    def forward(self, given: Tensor) -> Tensor:
        return given + self.outer(activation(self.inner(self.norm(given))))


def two() -> tuple[nn.Module, nn.Module]:
    return nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)


def activation(given: Tensor) -> Tensor:
    return nn.functional.gelu(given)


class Model(nn.Module):
    """Blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, given: Tensor) -> Tensor:
        for block in self.blocks:
            given = block(given)
        return self.head(given)


class Batches:
    """What a data set does: one row after the other, each by calls of its own."""

    def __init__(self) -> None:
        self.rows, self.at = torch.randn(1024, WIDTH), 0

    def row(self, number: int) -> Tensor:
        return self.rows[number % len(self.rows)]

    def __next__(self) -> tuple[Tensor, Tensor]:
        rows = [self.row(self.at + one) for one in range(16)]
        self.at += 16
        return torch.stack(rows).repeat(BATCH // 16, 1), torch.arange(BATCH) % 10


class Meter:
    """Says from time to time how it goes."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=100)

    def update(self, loss: float) -> None:
        self.losses.append(loss)

    def mean(self) -> float:
        return sum(self.losses) / len(self.losses)


class Training:
    """The loop."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.batches, self.meter = Model(), Batches(), Meter()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.steps = 0

    def rate(self) -> float:
        return 1e-4 * (1 + math.cos(self.steps / 1000)) / 2

    def train_step(self) -> None:
        given, target = next(self.batches)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        loss = nn.functional.cross_entropy(self.model(given), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.meter.update(loss.item())
        self.steps += 1

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.train_step()


def timed(training: Training, steps: int) -> dict[str, int]:
    """Some steps."""
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    training.run(steps)
    return {"cpu": time.process_time_ns() - cpu, "wall": time.perf_counter_ns() - wall}


def say(table: dict[str, Any]) -> None:
    print(json.dumps(table), flush=True)


def turn(training: Training, kind: str, steps: int, ring: Path) -> dict[str, Any]:
    """Some steps of one kind."""
    tracer: Any = contextlib.nullcontext()
    if kind == "filtered":
        tracer = trace(ring=str(ring), size=SIZE)
    with tracer:
        training.run(SETTLE)
        result = timed(training, steps)
        if kind == "filtered":
            assert not tracer.why, tracer.why
            assert ring.exists()
        return {**result, "engine": getattr(tracer, "engine", "")}


def main() -> None:
    """Until stdin ends."""
    torch.set_num_threads(1)
    training = Training()
    training.run(WARM)
    say({"torch": torch.__version__})
    for line in sys.stdin:
        kind, steps = line.split()
        say(turn(training, kind, int(steps), Path(sys.argv[1]) / "filtered.ring"))


if __name__ == "__main__":
    main()
