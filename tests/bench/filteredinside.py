"""A training loop that is timed on demand: python filteredinside.py none|filtered FOLDER; a number of steps on each line of stdin.

Answers each line with nanoseconds of CPU and of wall time. The first line is answered with what runs, after the loop is warm and the
ring is made, so that no timed step makes one. It needs torch and mldebug_training alone.
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

from mldebug_training.trace import trace

WARM = 30  # steps
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


def say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


def main() -> None:
    """Until stdin ends."""
    torch.set_num_threads(1)
    training = Training()
    training.run(WARM)
    ring = Path(sys.argv[2]) / "filtered.ring"
    tracer: Any = trace(ring=str(ring)) if sys.argv[1] == "filtered" else contextlib.nullcontext()
    with tracer:
        training.run(WARM)
        if sys.argv[1] == "filtered":
            assert not tracer.why, tracer.why
            assert ring.exists()
        say({"engine": getattr(tracer, "engine", ""), "torch": torch.__version__})
        for line in sys.stdin:
            say(timed(training, int(line)))


if __name__ == "__main__":
    main()
