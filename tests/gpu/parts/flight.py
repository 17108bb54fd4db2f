"""The Flight Recorder of NCCL, asked through the hook: in a rank that waits and one that sleeps, in a mismatch, in training."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu import world
from gpu.hanging import STALL, TIMEOUT, diagnosis_of, reports_of
from mldebug.capture.flight_recorder.hook_file import parse_file
from processes.harness import wait_for

RECORD = 24  # bytes that the job writes of one step
TIMES = 5  # times, while it trains
FULL = 2100  # steps after which the recorder is full


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Two hangs, then a training that goes on; `options` of the job."""
    result, answers = hang(folder, "sleep", *options)
    yield "sleep", result
    yield "answers", answers
    result, others = hang(folder, "broadcast", *options)
    yield "broadcast", result
    yield "answers_of_a_mismatch", others
    yield "training", asked_in_training(folder, *options)


def hang(folder: Path, fault: str, *options: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What the agent's report says, and the answers of the hook as they lie there."""
    with (
        world.agent(folder, STALL) as agent,
        world.job(folder, "--fault", fault, "--after", "200", *options, hook=True) as job,
    ):
        wait_for("the strike", lambda: job.alive() and job.struck_at(), 120)
        (report,) = wait_for("a report", lambda: reports_of(agent, job), TIMEOUT + 40)
        answers = {path.name: path.read_text() for path in answered(job)}
        return diagnosis_of(report) | {"records": _read(answers)}, answers


def answered(job: world.Job) -> list[Path]:
    """The answers of its ranks."""
    return sorted(
        one for pid in job.pids for one in Path("/dev/shm").glob(f"mldebug-{pid}-*.flight")
    )


def _read(answers: dict[str, str]) -> list[dict[str, Any]]:
    """The newest call of each group, as the agent reads it."""
    return [
        {"rank": json.loads(raw)["rank"], "group": group.name, "backend": group.backend, "members": group.members,
         "enqueued": group.enqueued, "newest": str(group.calls[-1]) if group.calls else ""}
        for raw in answers.values() for group in parse_file(raw.encode()).groups
    ]  # fmt: skip


def asked_in_training(folder: Path, *options: str) -> dict[str, Any]:
    """Ask all ranks of a job whose recorders are full, by hand and with all that a dump does; its longest step before and meanwhile."""
    times = folder / "times"
    with world.job(folder, "--times", str(times), *options, hook=True) as job:
        job.wait_for_step(FULL, 200)
        alone = longest(times, -800)
        pid = min(one for one in job.pids if list(Path("/dev/shm").glob(f"mldebug-{one}-*")))
        begin, took = times.stat().st_size // RECORD, []
        for _ in range(TIMES):
            took.append(dump(folder, pid))
            time.sleep(1)
        step = job.step
        job.wait_for_step(step + 40)
        return {
            "step_ms_longest_alone": alone,
            "step_ms_longest_asked": longest(times, begin),
            "step_ms_median": median(times),
            "dump_seconds": [one for one, _ in took],
            "last_collectives": took[-1][1],
            "answer_bytes": [one.stat().st_size for one in answered(job)],
        }


def dump(folder: Path, pid: int) -> tuple[float, dict[str, str]]:
    """Seconds that `mldebug dump` took, and the last collective of each rank."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "mldebug", "dump", "--json", "--pid", str(pid)],
        capture_output=True, text=True, timeout=60, check=False, env=world.environment(folder),
    )  # fmt: skip
    seconds = round(time.monotonic() - began, 2)
    ranks = json.loads(done.stdout)["ranks"]
    return seconds, {str(one["rank"]): one["last_collective"] for one in ranks}


def longest(times: Path, begin: int) -> float:
    """Milliseconds of the longest step of rank 0 from there on."""
    return round(max(_steps(times)[begin:]), 2)


def median(times: Path) -> float:
    """Milliseconds of a step."""
    steps = sorted(_steps(times)[100:])
    return round(steps[len(steps) // 2], 2)


def _steps(times: Path) -> list[float]:
    data = times.read_bytes()
    at = [int.from_bytes(data[one : one + 8], sys.byteorder) for one in range(0, len(data) - RECORD + 1, RECORD)]  # fmt: skip
    return [(after - before) / 1e6 for before, after in pairwise(at)]
