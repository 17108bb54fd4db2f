"""What looking for slow ranks costs: two agents side by side beside eight gloo ranks, one of which does not look for them.

    MLDEBUG_BENCH_SECONDS=600 python -m bench.stragglercost

CPU time is that of the agent and of all its children, those that have ended (py-spy) included. Run it in a pid namespace of its own.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from bench.stragglers import Job
from bench.table import Row, show

SECONDS = float(os.environ.get("MLDEBUG_BENCH_SECONDS", "600"))
PARTS = 2
BUDGET = 1.0  # percent of a core, with all that an agent does


def agent(folder: Path, name: str, settings: str) -> psutil.Process:
    """An agent with these settings beside its own folder and socket."""
    config = folder / f"{name}.yaml"
    config.write_text(f"agent: {{state_dir: {folder / name}, listen: ''}}\n{settings}\n")
    log = (folder / f"{name}.log").open("wb")
    argv = [sys.executable, "-m", "mldebug", "agent", "--config", str(config)]
    return psutil.Process(subprocess.Popen(argv, stderr=log, stdout=log).pid)


def spent(process: psutil.Process) -> float:
    """CPU seconds of a process, its living descendants, and those of them that have ended."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(one.cpu_times()[:4])
    return total


def main() -> None:
    """Measure and show, by parts of the time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cost-")))
        job = Job(folder)
        stack.callback(job.end)
        job.behave({})
        job.go_on(5)
        sides = {"looks": "", "does not look": "goodput: {stragglers: false}"}
        agents = {name: agent(folder, name.replace(" ", "-"), one) for name, one in sides.items()}
        for one in agents.values():
            stack.callback(one.terminate)
        time.sleep(10)
        rows = []
        for part in range(PARTS):
            before = {name: spent(one) for name, one in agents.items()}
            time.sleep(SECONDS / PARTS)
            after = {name: spent(one) for name, one in agents.items()}
            shares = {name: 100 * (after[name] - before[name]) * PARTS / SECONDS for name in agents}
            words = ", ".join(f"{name} {share:.2f} %" for name, share in shares.items())
            until = SECONDS * (part + 1) / PARTS
            rows.append(Row(f"CPU of a core, until {until:.0f} s", words, f"<= {BUDGET:g} %", shares["looks"] <= BUDGET))  # fmt: skip
            print(f"{words}; load {os.getloadavg()[0]:.1f}", flush=True)
    show("looking for slow ranks", rows)


if __name__ == "__main__":
    main()
