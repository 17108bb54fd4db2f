"""What the agent does to a training step: one real training process, the agent alternately awake and stopped.

    python tests/bench/effect.py

The blocks come in quadruples, awake-stopped-stopped-awake or the other way round by lot, so that a drift of the machine
hits both sides alike. What counts is the mean step time of a block, so that a few slow steps are not lost; of the
quadruples a fifth at either end is trimmed, so that a burst of other work is. The interval is Yuen's for a trimmed mean
(95 %). The same is done with stopped blocks alone: what that gives is the noise of the machine.

The agent looks ten times as often as it is shipped (every 0.5 s, not every 5 s): the effect of a look is ten times as easy
to see, and is divided by ten. MLDEBUG_BENCH_LOOK=5s measures it as it is shipped, with longer blocks.
"""

import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.alone import alone
from bench.table import Row, show
from processes.harness import clean_environment, free_port
from processes.incidents.watching import RunningAgent, settings, watching
from shared.system.hung import wait_until

SHIPPED = 5.0  # seconds between two looks
LOOK = os.environ.get("MLDEBUG_BENCH_LOOK", "500ms")
EVERY = (
    float(LOOK.removesuffix("ms")) / 1e3 if LOOK.endswith("ms") else float(LOOK.removesuffix("s"))
)
BLOCK = 2 * EVERY  # seconds: two or three looks
QUADRUPLES = int(os.environ.get("MLDEBUG_BENCH_QUADRUPLES", "40"))
PLACEBOS = QUADRUPLES // 4
TRIMMED = 0.2  # of the quadruples, at either end
BUDGET = 0.5  # percent
RECORD = struct.Struct("=qqq")
T95 = (0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
       2.120, 2.110, 2.101, 2.093, 2.086)  # of Student's t, by degrees of freedom  # fmt: skip

JOB = """
import os, struct, sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
inputs, targets = torch.randn(128, 256), torch.randn(128, 256)
times, account, step = open(sys.argv[1], "wb", buffering=0), os.open("/proc/thread-self/schedstat", os.O_RDONLY), 0
while True:
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    step += 1
    ran, queued, _ = map(int, os.pread(account, 100, 0).split())
    times.write(struct.pack("=qqq", time.perf_counter_ns(), ran, queued))
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.5f}", flush=True)
"""


class Block(NamedTuple):
    """The steps of one block: seconds per step by the clock, on a core, and queued for one."""

    clock: float
    ran: float
    queued: float


# --- the job and the agent --------------------------------------------------------------------------


@contextmanager
def training(folder: Path) -> Iterator[Path]:
    """The job; yields the file with a record of each step."""
    times = folder / "times"
    times.touch()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "LOCAL_RANK": "0",
             "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
    with (folder / "job.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", JOB, str(times)],
            env=clean_environment(folder) | place, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_until(lambda: times.stat().st_size > 200 * RECORD.size, 120)
        yield times
    finally:
        process.kill()
        process.wait()


def family(agent: RunningAgent) -> list[psutil.Process]:
    """The agent and its children."""
    parent = psutil.Process(agent.process.pid)
    return [parent, *parent.children(recursive=True)]


def wake(agent: RunningAgent, awake: bool) -> None:
    """Let the agent go on, or stop it; the helper's children first, so that none is started meanwhile."""
    for process in family(agent) if awake else reversed(family(agent)):
        process.send_signal(signal.SIGCONT if awake else signal.SIGSTOP)


def block(times: Path) -> Block:
    """Let the job step for a while; the first step of a block is that in which the agent changed."""
    begin = times.stat().st_size // RECORD.size + 1
    time.sleep(BLOCK)
    end = times.stat().st_size // RECORD.size
    with times.open("rb") as file:
        file.seek(begin * RECORD.size)
        records = list(RECORD.iter_unpack(file.read((end - begin) * RECORD.size)))
    first, last, steps = records[0], records[-1], len(records) - 1
    return Block(*((b - a) / steps / 1e9 for a, b in zip(first, last, strict=True)))


# --- the comparison ---------------------------------------------------------------------------------


class Quadruple(NamedTuple):
    """Two blocks of each side."""

    awake: tuple[Block, Block]
    stopped: tuple[Block, Block]


def quadruples(
    times: Path, agent: RunningAgent, count: int, *, placebo: bool = False
) -> Iterator[Quadruple]:
    """ABBA or BAAB by lot; in the placebo the agent is stopped in all four blocks."""
    dice = random.Random(7)
    for _ in range(count):
        first = dice.random() < 0.5
        found: dict[bool, list[Block]] = {True: [], False: []}
        for awake in (first, not first, not first, first):
            wake(agent, awake and not placebo)
            found[awake].append(block(times))
        yield Quadruple((*found[True],), (*found[False],))  # type: ignore[arg-type]
    wake(agent, awake=True)


def percent(one: Quadruple, of: Callable[[Block], float]) -> float:
    """How much longer a step is while the agent is awake."""
    awake, stopped = (sum(log(of(block)) for block in side) / 2 for side in one)
    return 100 * (awake - stopped)


def queued_percent(one: Quadruple) -> float:
    """How much more of its time the job waits for a core."""
    awake, stopped = (sum(block.queued / block.clock for block in side) / 2 for side in one)
    return 100 * (awake - stopped)


def interval(values: list[float]) -> tuple[float, float, float]:
    """The trimmed mean, and its 95 % interval."""
    count, cut = len(values), int(TRIMMED * len(values))
    kept = sorted(values)[cut : count - cut]
    middle = statistics.mean(kept)
    drawn_in = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = statistics.stdev(drawn_in) / ((1 - 2 * TRIMMED) * count**0.5)
    half = error * T95[min(len(kept) - 1, len(T95) - 1)]
    return middle, middle - half, middle + half


def text(values: list[float], scale: float = 1.0) -> str:
    """As it is shown."""
    middle, low, high = (one * scale for one in interval(values))
    return f"{middle:+.2f} % ({low:+.2f} … {high:+.2f})"


def judge(values: list[float], scale: float) -> bool | None:
    """Met where the interval ends below the budget, missed where it begins above; between them nobody can tell."""
    _, low, high = (one * scale for one in interval(values))
    return True if high < BUDGET else False if low >= BUDGET else None


def clock(one: Quadruple) -> float:
    """Step time by the clock."""
    return percent(one, lambda block: block.clock)


def ran(one: Quadruple) -> float:
    """Time on a core per step."""
    return percent(one, lambda block: block.ran)


def rows(
    found: list[Quadruple], placebo: list[Quadruple], busy: float, step: float
) -> Iterator[Row]:
    """What is told."""
    scale, limit = EVERY / SHIPPED, f"< {BUDGET} %, all of the interval"
    walls = [clock(one) for one in found]
    sentence = f"step of {1000 * step:.0f} ms"
    yield Row(
        f"effect on a {sentence}, as shipped (a look each 5 s)",
        text(walls, scale),
        limit,
        judge(walls, scale),
    )
    if scale != 1:
        yield Row(f"the same, a look each {LOOK}: as measured", text(walls))
    yield Row(
        f"  of it more time on the core (a look each {LOOK})", text([ran(one) for one in found])
    )
    yield Row(
        f"  of it more time queued for a core (a look each {LOOK})",
        text([queued_percent(one) for one in found]),
    )
    yield Row("  noise: stopped against stopped", text([clock(one) for one in placebo]))
    cores = os.cpu_count() or 1
    yield Row(f"  agent awake (a look each {LOOK}), CPU of a core", f"{100 * busy:.2f} %")
    worst = 100 * busy * scale / cores
    yield Row(
        f"  if no core were free: its CPU taken from {cores} busy cores, as shipped",
        f"{worst:.2f} %",
        f"< {BUDGET} %",
        worst < BUDGET,
    )


def cpu(agent: RunningAgent) -> float:
    """CPU seconds of the agent and its living children."""
    return sum(sum(one.cpu_times()[:2]) for one in family(agent))


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stall = f"{{interval: {LOOK}}}"
        with training(folder) as times, watching(folder, settings(folder, stall=stall)) as agent:
            wait_until(
                lambda: (snap := agent.snapshot()) and [one for one in snap.runs if one.step], 60
            )
            placebo = list(quadruples(times, agent, PLACEBOS, placebo=True))
            began = cpu(agent)
            found = list(quadruples(times, agent, QUADRUPLES))
            busy = (cpu(agent) - began) / (2 * BLOCK * len(found))
    step = statistics.median(block.clock for one in found for block in one.stopped)
    show(
        f"step time, agent awake against stopped; {len(found)} x 4 blocks of {BLOCK:g} s",
        rows(found, placebo, busy, step),
    )


if __name__ == "__main__":
    alone()
    main()
