"""What a start of the command line costs: seconds of CPU of user and system, median of 15, sides alternating, beside Python and click alone."""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.table import Row, show
from mldebug_agents.web.client import inquire

ROUNDS = 15
SETTLED = 10.0  # seconds after which what an agent has started is no process that has just begun
MLDEBUG = (sys.executable, "-m", "mldebug")


class Start(NamedTuple):
    """A command line, and its budget in milliseconds (0: none, or a floor)."""

    what: str
    argv: tuple[str, ...]
    budget: int = 0


def starts(beside: Path, alone: Path) -> Iterator[Start]:
    """What is measured. `beside`: the configuration of an agent that runs; `alone`: of none."""
    yield Start("Python alone", (sys.executable, "-c", "pass"))
    yield Start("Python with click", (sys.executable, "-c", "import click"))
    yield Start("mldebug --version", (*MLDEBUG, "--version"))
    yield Start("mldebug --help", (*MLDEBUG, "--help"), 100)
    yield Start(
        "mldebug status, an agent answers", (*MLDEBUG, "status", "--config", str(beside)), 250
    )
    yield Start("mldebug status, no agent", (*MLDEBUG, "status", "--config", str(alone)))
    yield Start("mldebug dump --help", (*MLDEBUG, "dump", "--help"), 250)
    yield Start("mldebug reports list", (*MLDEBUG, "reports", "list"), 250)


@contextmanager
def configurations() -> Iterator[tuple[Path, Path]]:
    """The configuration of an agent that has looked at this node, and one of a folder without an agent."""
    with tempfile.TemporaryDirectory() as name:
        files = []
        for side in ("beside", "alone"):
            files.append(Path(name) / f"{side}.yaml")
            files[-1].write_text(f"agent: {{state_dir: {name}/{side}, listen: ''}}\n")
        with (Path(name) / "log").open("wb") as log:
            agent = subprocess.Popen([*MLDEBUG, "agent", "--config", files[0]], stderr=log)
        try:
            while inquire(Path(name) / "beside").outcome != "answered":
                time.sleep(0.5)
            time.sleep(SETTLED)
            yield files[0], files[1]
        finally:
            agent.terminate()
            agent.wait(20)


def cpu(argv: Sequence[str]) -> float:
    """Milliseconds of CPU of one start and of all that it starts. Bytecode is cached, as it is where people work."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Print the table."""
    with configurations() as files:
        measured = {one: list[float]() for one in starts(*files)}
        for _ in range(ROUNDS):
            for one, times in measured.items():
                times.append(cpu(one.argv))
    medians = {one: statistics.median(times) for one, times in measured.items()}
    rows = [
        Row(
            one.what,
            f"{took:.0f} ms",
            f"≤ {one.budget} ms" if one.budget else "",
            took <= one.budget if one.budget else None,
        )
        for one, took in medians.items()
    ]
    show(f"CPU of a start, median of {ROUNDS}, load {os.getloadavg()[0]:.0f}", rows)


if __name__ == "__main__":
    main()
