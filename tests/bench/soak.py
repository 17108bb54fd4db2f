"""Hours of jobs that come, train, hang, die and go, under one agent: does it grow?

python tests/bench/soak.py 120   # minutes
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from processes.harness import wait_for
from processes.light import light_job
from processes.watching import RunningAgent, settings, watching

STALL = "{timeout: 2s, interval: 500ms}"
AT_ONCE = 3


class Size(NamedTuple):
    """What the agent holds at one moment; `children` are the megabytes of its helpers."""

    minutes: float
    rss: float
    children: float
    files: int
    threads: int


def size_of(agent: RunningAgent, since: float) -> Size:
    """Measure it."""
    process = psutil.Process(agent.process.pid)
    below = [one.memory_info().rss for one in process.children(recursive=True)]
    minutes, megabyte = (time.monotonic() - since) / 60, 1 << 20
    return Size(
        minutes,
        process.memory_info().rss / megabyte,
        sum(below) / megabyte,
        process.num_fds(),
        process.num_threads(),
    )


def soak(minutes: float, folder: Path) -> Iterator[Size]:
    """Jobs come and go; yields the agent's size after each wave. Every wave leaves a report behind."""
    with watching(folder, settings(folder, stall=STALL)) as agent:
        began, wave = time.monotonic(), 0
        while time.monotonic() - began < 60 * minutes:
            wave += 1
            with ExitStack() as stack:
                jobs = [
                    stack.enter_context(light_job(folder / f"job-{wave}-{number}", 2 + number))
                    for number in range(AT_ONCE)
                ]
                for job in jobs:
                    wait_for(
                        "it trains", lambda one=job: one.log.read_text().count("step") > 20, 30
                    )
                    job.hang()
                deadline = time.monotonic() + 60
                while not all(agent.reports(job) for job in jobs):  # type: ignore[arg-type]
                    assert time.monotonic() < deadline, (
                        f"no report in wave {wave}: {agent.log[-2000:]}"
                    )
                    time.sleep(0.2)
            yield size_of(agent, began)


def slope(sizes: list[Size]) -> float:
    """Megabytes an hour that the agent grows, after its first quarter, by Theil and Sen."""
    late = sizes[len(sizes) // 4 :]
    rises = [
        (b.rss - a.rss) / (b.minutes - a.minutes) * 60
        for number, a in enumerate(late)
        for b in late[number + 1 :]
    ]
    return statistics.median(rises) if rises else 0.0


def main() -> None:
    """Print a line now and then, and the slope."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    sizes: list[Size] = []
    with tempfile.TemporaryDirectory() as folder:
        for one in soak(minutes, Path(folder)):
            sizes.append(one)
            print(
                f"{one.minutes:6.1f} min  agent {one.rss:5.1f} MB  children {one.children:5.1f} MB  "
                f"{one.files} files  {one.threads} threads",
                flush=True,
            )
    print(f"{len(sizes)} waves of {AT_ONCE} jobs; RSS slope {slope(sizes):+.2f} MB/h")


if __name__ == "__main__":
    main()
