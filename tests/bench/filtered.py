"""What filtered tracing of a training costs: one process trains with and without it in short turns on one core, many times over.

Without is there twice: how much the two seem to differ is what this measurement can tell at all. Processes are started anew, for
where memory happens to lie makes a difference, too (a fiftieth and more between processes). The interval comes from drawing
processes, and turns within them, with replacement. Needs torch, and with --native a C compiler.
    PYTHONPATH=tests python tests/bench/filtered.py [--native] [--groups 6] [--seconds 30] [--at-once 1]
A machine with many idle cores tells more in the same time: --at-once processes have a core each.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shared.capture.natives import native_folder

INSIDE = Path(__file__).with_name("filteredinside.py")
AGENTS = Path(__file__).parents[2] / "agents"
KINDS = ("none", "again", "filtered")
TURN = 60e6  # ns of one turn
SETTLE = 3  # steps that are not timed, as `filteredinside` has it
BUDGET = 1.02
DRAWS = 2000
Turns = list[dict[str, float]]  # what each kind took in one turn


class Worker:
    """One process with its training loop."""

    def __init__(self, folder: str, native: str) -> None:
        paths = [*([native] if native else []), str(AGENTS), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": ":".join(paths), "PYTHONHASHSEED": "0"}
        argv = [sys.executable, str(INSIDE), folder]
        pipe: Any = subprocess.PIPE
        self.process = subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True)
        self.reported = self.answer()

    def answer(self) -> dict[str, Any]:
        table: dict[str, Any] = json.loads(self.process.stdout.readline())  # type: ignore[union-attr]
        return table

    def run(self, kind: str, steps: int) -> dict[str, Any]:
        self.process.stdin.write(f"{kind} {steps}\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        return self.answer()

    def end(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()


def group(seconds: float, native: str, clock: str) -> tuple[Turns, dict[str, Any], float]:
    """Turns of one process, what it said, and how long a step takes in ns."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        worker = Worker(folder, native)
        try:
            step = statistics.median(worker.run("none", 1)[clock] for _ in range(9))
            steps = max(1, round(TURN / step))
            rounds = int(seconds * 1e9 / ((steps + SETTLE) * step * len(KINDS)))
            facts = {**worker.reported, **worker.run("filtered", 1)}
            return [one(worker, steps, clock) for _ in range(rounds)], facts, step
        finally:
            worker.end()


def one(worker: Worker, steps: int, clock: str) -> dict[str, float]:
    """A turn of each, in an order by chance."""
    return {kind: worker.run(kind, steps)[clock] for kind in random.sample(KINDS, len(KINDS))}


def ratio(groups: list[Turns], kind: str) -> float:
    """To the processes without tracing: the mean of the groups' medians."""
    return statistics.fmean(
        statistics.median(turn[kind] / turn["none"] for turn in turns) for turns in groups
    )


def interval(groups: list[Turns], kind: str) -> tuple[float, float]:
    """95 %."""
    chance = random.Random(0)
    drawn = sorted(
        ratio([chance.choices(turns, k=len(turns)) for turns in chance.choices(groups, k=len(groups))], kind)
        for _ in range(DRAWS)
    )  # fmt: skip
    return drawn[int(DRAWS * 0.025)], drawn[int(DRAWS * 0.975)]


def measured(result: argparse.Namespace) -> list[tuple[Turns, dict[str, Any], float]]:
    """All groups; each thread has a core of its own, and so have the processes that it starts."""
    native = str(native_folder()) if result.native else ""
    cores = sorted(os.sched_getaffinity(0), reverse=True)[: result.at_once]
    waiting = list(cores)

    def pinned() -> None:
        os.sched_setaffinity(0, {waiting.pop()})

    with ThreadPoolExecutor(len(cores), initializer=pinned) as threads:
        return list(
            threads.map(lambda _: group(result.seconds, native, result.clock), range(result.groups))
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--native", action="store_true", help="build the C writer, and use it")
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=30, help="of each group")
    parser.add_argument("--at-once", type=int, default=1, help="groups, each on a core of its own")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    return parser.parse_args()


def main() -> None:
    """Measure, and print one table."""
    result = arguments()
    found = measured(result)
    groups, (_, entry, step) = [turns for turns, _, _ in found], found[0]
    print(
        f"filtered tracing of a training loop, {entry['engine']}, Python {sys.version.split()[0]}, torch {entry['torch']}"
    )
    print(
        f"{result.groups} groups of {len(groups[0])} turns, {result.clock} time, {step / 1e6:.1f} ms a step, load {os.getloadavg()[0]:.1f}"
    )
    for kind, name in (("again", "none, once more"), ("filtered", "filtered")):
        low, high = interval(groups, kind)
        verdict = (
            ("met" if high < BUDGET else "cannot tell" if low < BUDGET else "MISSED")
            if kind == "filtered"
            else ""
        )
        each = " ".join(f"{ratio([turns], kind):.3f}" for turns in groups)
        print(
            f"{name:16} {ratio(groups, kind):.4f} x  95 %: {low:.4f} to {high:.4f}  {verdict:12} groups: {each}"
        )


if __name__ == "__main__":
    main()
