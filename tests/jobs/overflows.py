"""A small DDP or FSDP training on gloo in which the layer `blocks.2.wide` of rank 1 overflows at step 3.

usage: overflows.py FOLDER none|report|raise ddp|fsdp float16|bfloat16|float32; losses go to FOLDER/losses.RANK
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from events import put
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mldebug_training

STEPS, BAD_STEP, BAD_RANK = 5, 3, 1


class Block(nn.Module):
    """Its `wide` is fed what the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Overflows where the factor is large."""
        return x + torch.tanh(self.narrow(torch.tanh(self.wide(x * factor))))


class Model(nn.Module):
    """Four blocks, of which the third gets the factor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out."""
        for number, block in enumerate(self.blocks):
            x = block(x, factor if number == 2 else torch.ones_like(factor))
        return x.square().mean()


def prepared(model: Model, how: str) -> nn.Module:
    """As the job trains it."""
    if how == "ddp":
        return DistributedDataParallel(model)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def main() -> None:
    """Train."""
    folder, watch, how, kind = Path(sys.argv[1]), *sys.argv[2:5]
    dist.init_process_group("gloo")
    rank, dtype = dist.get_rank(), getattr(torch, kind)
    torch.manual_seed(0)
    model = Model().to(dtype)
    with torch.no_grad():
        model.blocks[2].wide.weight.fill_(100.0)  # times 16 numbers: 65504 is near
    trained = prepared(model, how)
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
    if watch != "none":
        mldebug_training.OverflowDetector(trained, on_found=watch, folder=str(folder))
    losses = []
    try:
        for step in range(STEPS):
            struck = (rank, step) == (BAD_RANK, BAD_STEP)
            factor = torch.tensor(300.0 if struck else 1.0, dtype=dtype)
            loss = trained(torch.ones(2, 16, dtype=dtype), factor)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    finally:
        put(folder / f"losses.{rank}", json.dumps(losses))
    mldebug_training.rank_print("done", losses[-1])
    sys.stdout.flush()
    os._exit(0)  # PyTorch 2.13 can deadlock on the GIL where a DDP model outlives its gloo group


if __name__ == "__main__":
    main()
