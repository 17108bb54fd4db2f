"""What the hook costs a training process: a step, a phase, and its start, each measured directly.

The start is compared side by side: an interpreter with the hook and one without, alternating.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from bench.table import Row, show
from mldebug_agents.commands.run import environment, hook_folder
from mldebug_training.process import Process
from mldebug_training.steps import Steps

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "15"))
EACH = 2000
STEP, START = 20.0, 30.0  # microseconds, milliseconds


class Optimizer:
    """As the hook sees one."""


def microseconds(call: Callable[[], object]) -> float:
    """Of one call: the median of the rounds."""
    spans = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(EACH):
            call()
        spans.append((time.perf_counter() - began) / EACH * 1e6)
    return statistics.median(spans)


def starts() -> tuple[float, float]:
    """Milliseconds of an empty program with the hook and without, medians."""
    plain = {name: one for name, one in os.environ.items() if name != "PYTHONPATH"}
    rank = {**plain, "RANK": "0", "WORLD_SIZE": "1"}
    sides: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(ROUNDS):
        for name, env in (("with", rank | environment(rank, hook_folder())), ("without", rank)):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
            sides[name].append((time.perf_counter() - began) * 1e3)
    return statistics.median(sides["with"]), statistics.median(sides["without"])


def main() -> None:
    """Measure and show."""
    with tempfile.TemporaryDirectory() as folder:
        own = Process(folder)
        count, optimizer = Steps(own), Optimizer()
        step = microseconds(lambda: count(optimizer, (), {}))
        phase = microseconds(lambda: own.leave(own.enter("data_wait")))
        own.close()
    with_hook, without = starts()
    more = with_hook - without
    show(
        "what the hook costs",
        [
            Row("a step", f"{step:.1f} us", f"<= {STEP:.0f} us", step <= STEP),
            Row("a phase, begun and ended", f"{phase:.1f} us", f"<= {STEP:.0f} us", phase <= STEP),
            Row("start of an interpreter", f"+{more:.1f} ms ({without:.0f} ms without)",
                f"< {START:.0f} ms", more < START),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
