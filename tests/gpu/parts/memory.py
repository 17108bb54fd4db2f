"""Who holds the memory of a GPU that ran out: the planted line named in the report of that death, and what the history costs a step."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu import world
from processes.harness import wait_for

JOB = world.ROOT / "tests" / "jobs" / "memory.py"
DIAGNOSIS = ("verdict", "confidence", "summary", "culprits", "evidence", "next_steps")
COST = 60.0  # seconds of pairs
LATE = 110.0  # seconds from the start of the job to the report of its death


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """The death first; then the pairs."""
    yield from death(folder)
    done = subprocess.run(
        [sys.executable, str(JOB), "--cost", str(COST)],
        env=world.environment(folder), capture_output=True, text=True, timeout=COST + 60, check=False,
    )  # fmt: skip
    yield (
        "cost",
        json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-1500:],
    )


def death(folder: Path) -> Iterator[tuple[str, Any]]:
    """A job with the history runs out of memory under an agent."""
    argv = [
        *world.MLDEBUG,
        "run",
        "--memory-history",
        "--",
        sys.executable,
        "-m",
        "torch.distributed.run",
    ]
    argv += ["--standalone", "--nproc-per-node", "2", str(JOB), "--oom"]
    with (
        world.agent(folder, "{timeout: 60s, interval: 1s}") as agent,
        (folder / "job.log").open("wb") as log,
    ):
        launcher = subprocess.Popen(argv, stdout=log, stderr=log, env=world.environment(folder))
        try:
            began = time.monotonic()
            wait_for("the report of the death", lambda: agent.reports(), LATE)
            yield "seconds_to_report", round(time.monotonic() - began, 1)
            time.sleep(5)
            report = agent.reports()[-1]
            text = json.dumps(
                {name: report["diagnosis"].get(name) for name in DIAGNOSIS}, default=str
            )
            yield "names_planted_line", "hoard (memory.py:" in text
            yield "report", text[:6000]
        finally:
            world.end(launcher)
            yield "job_tail", (folder / "job.log").read_text(errors="replace")[-1500:]
            yield "agent_tail", agent.log[-1500:]
            yield "left", [str(one) for one in Path("/dev/shm").glob("mldebug-*.oom")]
