"""What the hook costs a training process: a step of a real SGD, a phase, its start and its arming at `import torch`.

All but the phase is compared side by side, with the hook and without, alternating. A step is measured inside one process
(`hookinside.py`); the start is that of an interpreter that does nothing, and the arming is told apart from it: what `import torch` takes
longer, of a package that only looks like PyTorch, because the real one takes seconds. Start and arming are told by CPU time, which
other work on the machine disturbs little, and by the clock.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.table import Row, show
from mldebug_agents.jobs.job_start import environment, hook_folder
from mldebug_training.hook.process import OwnProcess
from processes.training.torchlike import write_torch

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "15"))
EACH = 2000
STEP, START = 20.0, 30.0  # microseconds, milliseconds
IMPORT = """
import collections, ctypes, enum, functools, signal, struct, threading, time  # the real one needs them, too
began, worked = time.perf_counter(), time.process_time()
import torch
print((time.process_time() - worked) * 1e3, (time.perf_counter() - began) * 1e3)
"""


class Spent(NamedTuple):
    """Milliseconds."""

    cpu: float
    clock: float

    @property
    def words(self) -> str:
        """As one says what was added."""
        return f"+{self.cpu:.1f} ms of CPU (+{self.clock:.1f} ms by the clock)"


def microseconds(call: Callable[[], object]) -> float:
    """Of one call: the median of the rounds."""
    spans = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(EACH):
            call()
        spans.append((time.perf_counter() - began) / EACH * 1e6)
    return statistics.median(spans)


def sides(path: str = "") -> dict[str, dict[str, str]]:
    """The environments of a rank with the hook and without, where this path leads to its packages."""
    plain = {name: one for name, one in os.environ.items() if name != "PYTHONPATH"}
    rank = {**plain, "RANK": "0", "WORLD_SIZE": "1", **({"PYTHONPATH": path} if path else {})}
    return {"with": rank | environment(rank, hook_folder()), "without": rank}


def added(measure: Callable[[dict[str, str]], Spent], path: str = "") -> Spent:
    """What the hook adds: the difference of the medians with it and without, in turns."""
    found: dict[str, list[Spent]] = {"with": [], "without": []}
    for _ in range(ROUNDS):
        for name, env in sides(path).items():
            found[name].append(measure(env))
    middle = {name: list(map(statistics.median, zip(*all_of, strict=True))) for name, all_of in found.items()}  # fmt: skip
    return Spent(*(more - less for more, less in zip(middle["with"], middle["without"], strict=True)))  # fmt: skip


def started(env: dict[str, str]) -> Spent:
    """A program that does nothing."""
    began, worked = time.perf_counter(), children()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return Spent((children() - worked) * 1e3, (time.perf_counter() - began) * 1e3)


def children() -> float:
    """Seconds of CPU of those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def imported(env: dict[str, str]) -> Spent:
    """`import torch`, without the start of its interpreter."""
    words = [sys.executable, "-c", IMPORT]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    return Spent(*map(float, done.stdout.split()))


def stepped() -> tuple[float, float]:
    """Microseconds of CPU that the hook adds to a step of SGD, and of that step without it."""
    words = [sys.executable, str(Path(__file__).with_name("hookinside.py"))]
    done = subprocess.run(words, env=sides()["with"], check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    if answer["hooks"] != 1:
        raise RuntimeError(f"{answer['hooks']} hooks, and not ours alone")
    return answer["more"], answer["without"]


def phases() -> float:
    """Microseconds of a phase, begun and ended."""
    with tempfile.TemporaryDirectory() as folder:
        own = OwnProcess(folder)
        try:
            return microseconds(lambda: own.leave(own.enter("data_wait")))
        finally:
            own.close()


def main() -> None:
    """Measure and show."""
    step, bare = stepped()
    phase = phases()
    start = added(started)
    with tempfile.TemporaryDirectory() as folder:
        arming = added(imported, str(write_torch(Path(folder))))
    together = start.cpu + arming.cpu
    show(
        "what the hook costs",
        [
            Row("a step of SGD", f"+{step:.1f} us ({bare:.0f} us without)", f"<= {STEP:.0f} us", step <= STEP),
            Row("a phase, begun and ended", f"{phase:.1f} us", f"<= {STEP:.0f} us", phase <= STEP),
            Row("start of an interpreter", start.words),
            Row("arming at `import torch`", arming.words),
            Row("  both", f"+{together:.1f} ms of CPU", f"< {START:.0f} ms", together < START),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
