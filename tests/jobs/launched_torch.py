"""The tiny training of `accelerate launch`: every rank prepares a model and steps, until there is FOLDER/way.RANK.

usage: launched_torch.py FOLDER, as tests/jobs/launched.py
"""

import os
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from launched import end


def main() -> None:
    """Step on gloo, then end as told."""
    folder, step = Path(sys.argv[1]), 0
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    linear = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(linear, optimizer)
    making = folder / f"making.{rank}"
    making.write_text(str(os.getpid()))
    making.rename(folder / f"started.{rank}")
    file = folder / f"way.{rank}"
    while True:
        if file.exists():
            end(file.read_text(), folder)
        step += 1
        loss = model(torch.ones(8, 4)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.is_main_process:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
