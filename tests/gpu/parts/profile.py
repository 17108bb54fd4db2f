"""`mldebug profile` and `mldebug memory` of a running job on GPUs: what they say, and what they cost its steps."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu import world
from processes.harness import wait_for

JOB = world.ROOT / "tests" / "jobs" / "slow_gpu.py"
BLOCK = 10.0  # seconds in which steps are counted


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """A job with the hook and the history of its memory; then one that nobody touched."""
    with training(folder, *world.MLDEBUG, "run", "--memory-history", "--") as job:
        job.wait_for_step(60, 120.0)
        yield "steps_a_second_before", pace(job)
        yield "memory", answer_to(folder, "memory")
        yield "steps_a_second_after_memory", pace(job)
        for number in range(3):
            began, step = time.monotonic(), job.step
            yield (
                f"profile_{number}",
                answer_to(folder, "profile", "--ranks", "0,1", "--steps", "3"),
            )
            taken = time.monotonic() - began
            yield f"profile_{number}_seconds", round(taken, 1)
            yield f"profile_{number}_steps_a_second", round((job.step - step) / taken, 2)
            yield f"steps_a_second_after_profile_{number}", pace(job)
        yield "job_tail", job.tail()
    with training(folder) as job:
        job.wait_for_step(60, 120.0)
        yield "untouched_before", pace(job)
        yield "untouched", answer_to(folder, "profile", "--seconds", "5")
        yield "untouched_after", pace(job)


@contextmanager
def training(folder: Path, *before: str) -> Iterator[world.Job]:
    """A training of even steps on two GPUs, with these words before torchrun's."""
    place = folder / f"job-{len(before)}"
    (place / "events").mkdir(parents=True)
    argv = [*before, sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv += ["--nproc-per-node", "2", str(JOB), "--events", str(place / "events")]
    with (place / "job.log").open("wb") as log:
        launcher = subprocess.Popen(argv, stdout=log, stderr=log, env=world.environment(folder))
        try:
            job = world.Job(place, launcher)
            wait_for("two ranks", lambda: job.alive() and len(job.pids) >= 2, 60.0)
            yield job
        finally:
            world.end(launcher)


def pace(job: world.Job) -> float:
    """Steps a second, the median of three blocks."""
    found = []
    for _ in range(3):
        began, step = time.monotonic(), job.step
        time.sleep(BLOCK / 3)
        job.alive()
        found.append((job.step - step) / (time.monotonic() - began))
    return round(statistics.median(found), 2)


def answer_to(folder: Path, *words: str) -> dict[str, Any]:
    """What the command says."""
    done = subprocess.run(
        [*world.MLDEBUG, *words, "--json"], env=world.environment(folder),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = done.stdout[-3000:]
    return {
        "code": done.returncode,
        "answer": json.dumps(answer)[:5000],
        "stderr": done.stderr[-800:],
    }
