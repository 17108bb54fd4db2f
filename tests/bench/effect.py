"""What the agent does to a training step: real ranks, the agent alternately awake and stopped, with a 95 % interval.

The interval is that of the ratio awake / stopped of neighbouring windows, by bootstrap over the pairs.
"""

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from processes.harness import Plan, RunningJob, running
from processes.watching import RunningAgent, settings, watching

WINDOW = float(os.environ.get("MLDEBUG_BENCH_WINDOW", "10"))  # two looks of the agent
PAIRS = int(os.environ.get("MLDEBUG_BENCH_PAIRS", "20"))
RESAMPLES = 10_000
STALL = "{interval: 5s}"


def seconds_per_step(job: RunningJob) -> float:
    """Over one window."""
    began, first = time.perf_counter(), job.step(0)
    time.sleep(WINDOW)
    return (time.perf_counter() - began) / (job.step(0) - first)


def family(agent: RunningAgent) -> list[psutil.Process]:
    """The agent and its children."""
    parent = psutil.Process(agent.process.pid)
    return [parent, *parent.children(recursive=True)]


def pairs(job: RunningJob, agent: RunningAgent) -> list[float]:
    """Step time awake / stopped, the order changing from pair to pair."""
    found = []
    for number in range(PAIRS):
        told = {}
        for awake in (number % 2 == 0, number % 2 == 1):
            for process in family(agent):
                process.send_signal(signal.SIGCONT if awake else signal.SIGSTOP)
            told[awake] = seconds_per_step(job)
        found.append(told[True] / told[False] - 1)
    for process in family(agent):
        process.send_signal(signal.SIGCONT)
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    dice = random.Random(7)
    found = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES)]


def rows(ranks: int) -> tuple[str, str, str]:
    """One job of so many ranks."""
    with (
        tempfile.TemporaryDirectory() as folder,
        watching(Path(folder), settings(Path(folder), stall=STALL)) as agent,
        running(Plan("none", world_size=ranks, struck=())) as job,
    ):
        job.wait_for_step(200)
        values = pairs(job, agent)
    low, high = interval(values)
    return (
        f"{ranks} ranks on {os.cpu_count()} cores",
        f"{100 * statistics.median(values):+.2f} %",
        f"{100 * low:+.2f} … {100 * high:+.2f} %",
    )


def main() -> None:
    """Print the table; the budget is an upper bound below 0.5 %."""
    table = Table("step time, agent awake against stopped", "median", "95 % interval")
    for ranks in [int(word) for word in sys.argv[1:]] or [1, 2]:
        table.add_row(*rows(ranks))
    Console().print(table)


if __name__ == "__main__":
    main()
