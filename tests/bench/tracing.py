"""What tracing costs: one load under each tracer, in turns; the figure is the median of the rounds' ratios to no tracing.

CPU time of the process, so that other work on the machine counts as little as it can. Needs viztracer
(`pip install viztracer`), and a C compiler.   python tests/bench/tracing.py [LOAD ...]
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.table import Row, show
from shared.capture.natives import native_folder

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "5"))
PYTHON = os.environ.get("MLDEBUG_BENCH_PYTHON", sys.executable)
LOADS = ("calls", "text", "torch")
NAMES = ("none", "trace.Trace", "text", "viztracer", "calls", "calls-python", "lines", "filtered")
FIB_EVENTS = 2 * 21891  # calls and returns of fib(20)
INSIDE = Path(__file__).with_name("tracinginside.py")
AGENTS = Path(__file__).parents[2] / "agents"


def once(load: str, tracer: str) -> dict[str, Any]:
    """One process."""
    paths = [str(native_folder(PYTHON)), str(AGENTS), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": ":".join(paths)}
    with TemporaryDirectory(dir="/dev/shm") as folder:  # where rings lie by default
        argv = [PYTHON, str(INSIDE), load, tracer, folder]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{load} {tracer}: {done.stderr[-2000:]}"
        table: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return table


def rows(load: str) -> list[Row]:
    """Of one load."""
    rounds = [{name: once(load, name) for name in NAMES} for _ in range(ROUNDS)]
    found = []
    for name in NAMES[1:]:
        ratios = sorted(one[name]["seconds"] / one["none"]["seconds"] for one in rounds)
        size = rounds[0][name]["bytes"] / 1e6
        text = f"{statistics.median(ratios):.3f} x ({ratios[0]:.3f} to {ratios[-1]:.3f}), {size:.1f} MB"
        engine = "".join(rounds[0][name]["engine"])
        found.append(Row(f"{load}: {name} {engine}", text))
        if load == "calls" and name.startswith("calls"):
            spans = [one[name]["seconds"] - one["none"]["seconds"] for one in rounds]
            nanoseconds = statistics.median(spans) / FIB_EVENTS * 1e9
            found.append(Row(f"{load}: {name}, an event", f"{nanoseconds:.0f} ns"))
    return found


def main() -> None:
    """All loads, or those that were named."""
    version = subprocess.run([PYTHON, "-V"], capture_output=True, text=True, check=True).stdout
    found = [row for load in sys.argv[1:] or LOADS for row in rows(load)]
    show(f"tracing, {version.strip()}, {ROUNDS} rounds", found)


if __name__ == "__main__":
    main()
