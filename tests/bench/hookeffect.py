"""What the hook does to a training step: a real job of two ranks (gloo, DDP, a DataLoader), the hook alternately on and off.

    python tests/bench/hookeffect.py

Both ranks switch at the same step: what the hook does in a step (the optimizer's hook, the phase around the DataLoader) is
taken out and put back; its thread sleeps all the while. Blocks come in quadruples, on-off-off-on or the other way round by
lot, and are compared as in `effect.py`, with its interval. Off against off tells the noise of the machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from math import log
from pathlib import Path

from bench.effect import judge, text
from bench.table import Row, show
from mldebug_agents.jobs.job_start import environment, hook_folder
from processes.harness import clean_environment, free_port

QUADRUPLES = int(os.environ.get("MLDEBUG_BENCH_QUADRUPLES", "40"))
PLACEBOS = max(4, QUADRUPLES // 4)
STEPS = int(os.environ.get("MLDEBUG_BENCH_STEPS", "50"))  # of one block
BUDGET = 0.5  # percent

JOB = """
import json, os, random, sys, time, torch
import torch.distributed as dist
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader, TensorDataset, dataloader

quadruples, placebos, each = map(int, sys.argv[2:])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = DataLoader(TensorDataset(torch.randn(8192, 256), torch.randn(8192, 256)), batch_size=64)

def endless():
    while True:
        yield from data

batches = endless()
def step():
    inputs, targets = next(batches)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()

for _ in range(50):
    step()
reader, hooks = dataloader._BaseDataLoaderIter, optim._global_optimizer_post_hooks
wrapped, kept = reader.__next__, dict(hooks)
assert kept and sys.modules["mldebug_training.hook.process"].own.record.step == 50

def switch(on):
    hooks.clear()
    hooks.update(kept if on else {})
    reader.__next__ = wrapped if on else wrapped.__wrapped__

def block(on):
    switch(on)
    step()  # in which it changed
    dist.barrier()
    began = time.perf_counter()
    for _ in range(each):
        step()
    return (time.perf_counter() - began) / each

dice, found = random.Random(7), []
for number in range(placebos + quadruples):
    first = dice.random() < 0.5
    sides = {True: [], False: []}
    for on in (first, not first, not first, first):
        sides[on].append(block(on and number >= placebos))
    found.append([sides[True], sides[False]])
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
dist.destroy_process_group()
"""

Quadruple = list[list[float]]  # seconds of a step: two blocks with, two without


def trained(folder: Path) -> list[Quadruple]:
    """Run the job; placebos come first."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    place |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    file = folder / "found.json"
    argv = [sys.executable, "-c", JOB, str(file), str(QUADRUPLES), str(PLACEBOS), str(STEPS)]
    with ExitStack() as stack:
        started = []
        for rank in range(2):
            env = clean_environment(folder) | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(subprocess.Popen(argv, env=env | environment(env, hook_folder())))
            stack.callback(started[-1].kill)
        codes = [one.wait(1800) for one in started]
    assert codes == [0, 0], codes
    found: list[Quadruple] = json.loads(file.read_text())
    return found


def percent(one: Quadruple) -> float:
    """How much longer a step is with the hook."""
    on, off = (sum(map(log, side)) / 2 for side in one)
    return 100 * (on - off)


def microseconds(one: Quadruple) -> float:
    """The same as time."""
    on, off = (sum(side) / 2 for side in one)
    return 1e6 * (on - off)


def rows(found: list[Quadruple]) -> Iterator[Row]:
    """What is told."""
    placebo, real = found[:PLACEBOS], found[PLACEBOS:]
    step = statistics.median(second for one in real for second in one[1])
    values = [percent(one) for one in real]
    limit = f"< {BUDGET} %, all of the interval"
    sentence = f"effect of the hook on a step of {1000 * step:.1f} ms, 2 ranks"
    yield Row(sentence, text(values), limit, judge(values, 1.0))
    spans = [microseconds(one) for one in real]
    yield Row("  the same in microseconds", text(spans).replace(" %", " us"))
    yield Row("  noise: off against off", text([percent(one) for one in placebo]))


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        found = trained(Path(name))
    show(f"step time, hook on against off; {QUADRUPLES} x 4 blocks of {STEPS} steps", rows(found))


if __name__ == "__main__":
    main()
