"""What the helpers cost a training: the overflow detector on a small transformer, side by side, a print, a look at memory.

A round trains some steps without the detector and some with it, in turns; the figure is the median of the rounds' ratios.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.table import Row, show
from mldebug_training import MemoryGuard, OverflowDetector, rank_print

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "15"))
STEPS, BATCH, LENGTH, WIDTH, LAYERS = 4, 8, 64, 256, 4
CALLS = 2000
PRINT, CHECK, LOOK = 100.0, 20.0, 500.0  # microseconds


def model() -> nn.Module:
    """Four layers of an encoder, in training."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def seconds(trained: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> float:
    """Of some steps."""
    began = time.perf_counter()
    for _ in range(STEPS):
        trained(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - began


def ratios(**options: Any) -> list[float]:
    """Time with the detector over time without, by round."""
    trained, data = model(), torch.randn(BATCH, LENGTH, WIDTH)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
    seconds(trained, optimizer, data)
    found = []
    for turn in range(ROUNDS):
        spans = {}
        for watched in (True, False) if turn % 2 else (False, True):
            if watched:
                with OverflowDetector(trained, **options):
                    spans[watched] = seconds(trained, optimizer, data)
            else:
                spans[watched] = seconds(trained, optimizer, data)
        found.append(spans[True] / spans[False])
    return found


def microseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """Of one call: the median of the rounds."""
    spans = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        spans.append((time.perf_counter() - began) / calls * 1e6)
    return statistics.median(spans)


def quartiles(found: list[float]) -> str:
    """Median and the middle half."""
    low, middle, high = statistics.quantiles(found, n=4)
    return f"x {middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Measure and show."""
    torch.set_num_threads(1)
    batch, each, back = ratios(), ratios(each_call=True), ratios(gradients=True)
    guard, eager = MemoryGuard(0.05), MemoryGuard(0.05, every=0)
    with open(os.devnull, "w") as nowhere:
        printed = microseconds(lambda: rank_print("loss", 0.25, file=nowhere))
        plain = microseconds(lambda: print("loss", 0.25, file=nowhere, flush=True))
    check, look = microseconds(guard.check), microseconds(eager.check, 100)
    show(
        "what the helpers cost",
        [
            Row("a step with the detector", quartiles(batch), "< x 2", statistics.median(batch) < 2),
            Row("  that looks after each call", quartiles(each)),
            Row("  that looks at gradients, too", quartiles(back)),
            Row("a print", f"{printed:.1f} us (print: {plain:.1f} us)", f"<= {PRINT:.0f} us", printed <= PRINT),
            Row("a question to the guard", f"{check:.2f} us", f"<= {CHECK:.0f} us", check <= CHECK),
            Row("  once a second", f"{look:.0f} us", f"<= {LOOK:.0f} us", look <= LOOK),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
