"""A training whose memory a test plants: it runs out of it in a known line (`--oom`), or times steps with and without the history.

torchrun --nproc-per-node 2 memory.py --oom         rank 1 holds most of its GPU in `hoard`, and fails in `forward`
python memory.py --cost SECONDS                     prints JSON: percent that the history costs, in alternating pairs of blocks
"""

import argparse
import json
import os
import statistics
import time

import torch
from torch import nn

WIDTH, LAYERS, BATCH = 2048, 12, 16
BLOCK = 10  # steps


def hoard(device: torch.device, share: float) -> list[torch.Tensor]:
    """Most of the device, in pieces, which nobody needs."""
    free, _ = torch.cuda.mem_get_info(device)
    piece = 256 << 20
    return [
        torch.empty(piece, dtype=torch.uint8, device=device)  # the planted line
        for _ in range(int(free * share) // piece)
    ]


class Block(nn.Module):
    """An attention-free layer with activations."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Residual."""
        return batch + self.down(torch.nn.functional.gelu(self.up(self.norm(batch))))


def training(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer."""
    model = nn.Sequential(*(Block() for _ in range(LAYERS))).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, length: int
) -> None:
    """One step."""
    batch = torch.randn(BATCH, length, WIDTH, device=device)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def run_out() -> None:
    """Three steps, then rank 1 fills its GPU and goes on."""
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device(
        "cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    )
    torch.cuda.set_device(device)
    model, optimizer = training(device)
    kept = []
    for number in range(10_000):
        step(model, optimizer, device, 128 if number < 3 or rank != 1 else 4096)
        print(f"step {number}", flush=True)
        time.sleep(1.0)
        if number == 2 and rank == 1:
            time.sleep(10.0)  # the agent knows the job by then
            kept = hoard(device, 0.8)
    del kept


def cost(seconds: float) -> None:
    """Blocks of steps with and without the history, by turns: with, without, without, with."""
    from mldebug_training.hook.on_request.memory_history import MemoryHistory

    device = torch.device("cuda", 0)
    model, optimizer = training(device)
    history = MemoryHistory(torch)
    for _ in range(20):
        step(model, optimizer, device, 256)
    ratios, times, end = [], [], time.monotonic() + seconds
    while time.monotonic() < end:
        blocks = {True: 0.0, False: 0.0}
        for on in (True, False, False, True):
            if on:
                history._begin()
            else:
                torch.cuda.memory._record_memory_history(enabled=None)
            step(model, optimizer, device, 256)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(BLOCK):
                step(model, optimizer, device, 256)
            torch.cuda.synchronize()
            blocks[on] += time.perf_counter() - began
        ratios.append(100 * (blocks[True] / blocks[False] - 1))
        times.append(1e3 * blocks[False] / (2 * BLOCK))
    spread = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
    found = {"percent": statistics.mean(ratios), "half_interval": spread, "pairs": len(ratios), "step_ms": statistics.median(times), "armed": history.why}  # fmt: skip
    print(json.dumps(found), flush=True)


def main() -> None:
    """As the options say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--oom", action="store_true")
    parser.add_argument("--cost", type=float)
    options = parser.parse_args()
    if options.oom:
        run_out()
    else:
        cost(options.cost)


if __name__ == "__main__":
    main()
