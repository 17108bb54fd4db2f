"""Two ranks are wrecked in six ways, each under an agent of its own: whom the report names beside who did it.

    python tests/gpu/wrecks.py FOLDER [--cpu] [CASE ...]

prints a line for each case (`validate.py FOLDER exits` makes a page of them), and keeps in FOLDER `wrecks.jsonl` and `wrecks.tgz` with what the agents wrote, so that all can be judged again
without a GPU. A case is a fault, or `hook-` and a fault for a job that was started by `mldebug run`. Needs PyTorch, with `--cpu` no GPU.
"""

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / part) for part in (".", "agents", "exporters", "tests")]

from gpu import world
from gpu.hanging import reports_of
from processes.harness import wait_for

JOB = ROOT / "tests" / "jobs" / "wrecks.py"
STALL = "{timeout: 15s, busy_timeout: 25s, interval: 1s}"
CULPRIT = 1
LATE = 45.0  # seconds after the strike at which the first report must be there
SECOND = 38.0  # seconds in which a second capture may still name somebody
SHORT = 20.0  # seconds of a collective's timeout, where one has to run into it
PORT = 29_671
TAIL = 4000  # characters of the job's log


class Wreck(NamedTuple):
    """What is right for one fault. `nameless`: nobody has to be named."""

    verdicts: tuple[str, ...]
    nameless: bool = False
    launcher: bool = True
    timeout: float = 600.0


WRECKS = {
    "kernel": Wreck(("rank_busy", "rank_waiting", "unknown"), nameless=True),
    "assert": Wreck(("rank_exited", "gpu_fault")),
    "illegal": Wreck(("rank_exited", "gpu_fault")),
    "oom": Wreck(("out_of_memory", "rank_exited")),
    "exit": Wreck(("rank_exited",), launcher=False, timeout=SHORT),
    "skew": Wreck(("collective_mismatch", "unknown"), nameless=True),
}
ALL = ("kernel", "assert", "illegal", "oom", "exit", "skew", "hook-kernel", "hook-skew")


def main(argv: list[str]) -> int:
    """Run the cases; returns how many came out wrong."""
    cpu = "--cpu" in argv
    folder, *cases = [Path(argv[0]), *(one for one in argv[1:] if one != "--cpu")]
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    with (folder / "wrecks.jsonl").open("a") as out, tempfile.TemporaryDirectory() as kept:
        for case in cases or ALL:
            row = tried(str(case), Path(kept) / str(case), cpu)
            wrong += row["result"] not in ("right", "right, unnamed")
            print(line(row), flush=True)
            out.write(json.dumps(row, default=str) + "\n")
            out.flush()
            with tarfile.open(folder / "wrecks.tgz", "w:gz") as archive:
                archive.add(kept, arcname="wrecks")
    return wrong


def line(row: dict[str, Any]) -> str:
    """`kernel: right · rank_busy low [1] · Rank 1 …`."""
    head = (
        f"{row['case']:12} {row['result']:15} {row['verdict']} {row['confidence']} {row['named']}"
    )
    return f"{head} after {row['seconds']} s: {row['summary'][:600]}"


def tried(case: str, kept: Path, cpu: bool) -> dict[str, Any]:
    """One case, whatever happens in it."""
    try:
        return wrecked(case, kept, cpu)
    except (AssertionError, OSError, ValueError) as error:
        words = f"{type(error).__name__}: {error}"[:2000]
        return {"case": case, "result": "failed", "verdict": "-", "confidence": "-", "named": [], "seconds": 0, "summary": words}  # fmt: skip


def wrecked(case: str, kept: Path, cpu: bool) -> dict[str, Any]:
    """Start an agent and the job, wait for the strike and for the report, and judge it."""
    fault = case.removeprefix("hook-")
    wreck = WRECKS[fault]
    options = ("--fault", fault, "--timeout", str(wreck.timeout), *(["--cpu"] if cpu else []))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        starts = started(folder, options, hook=case != fault, launcher=wreck.launcher)
        with world.agent(folder, STALL) as agent, starts as job:
            try:
                wait_for(f"the strike: {job.tail()}", lambda: job.pids and job.struck_at(), 100)
                struck = job.struck_at() or world.now()
                found = first_named(agent, job, wreck, struck)
            finally:
                keep(agent, job, kept)
            return judged(case, wreck, found, struck)


def first_named(agent: Any, job: world.Job, wreck: Wreck, struck: float) -> dict[str, Any] | None:
    """The report as it is told in the end; where a name is due and there is none yet, a second capture may bring it."""
    until = struck + LATE + (wreck.timeout if wreck.timeout == SHORT else 0)
    found: dict[str, Any] | None = None
    while world.now() < until:
        if reports := reports_of(agent, job):
            if found is None:
                until = min(until, world.now() + 1) if named(reports[-1]) else world.now() + SECOND
            found = reports[-1]
            found["seen_after"] = found.get("seen_after") or round(world.now() - struck, 1)
            if named(found):
                until = min(until, world.now() + 3)
        assert job.pids is not None
        time.sleep(0.5)
    return found


def named(report: dict[str, Any]) -> list[int]:
    """The ranks that a report names."""
    return [
        one["rank"] for one in report["diagnosis"]["culprits"] or () if one.get("rank") is not None
    ]


def judged(case: str, wreck: Wreck, report: dict[str, Any] | None, struck: float) -> dict[str, Any]:
    """A row of the table."""
    if report is None:
        return {"case": case, "result": "no report", "verdict": "-", "confidence": "-", "named": [], "seconds": 0, "summary": ""}  # fmt: skip
    found, who = report["diagnosis"], named(report)
    return {
        "case": case, "result": result(wreck, found["verdict"], who), "verdict": found["verdict"],
        "confidence": found["confidence"], "named": who, "seconds": report.get("seen_after"),
        "summary": found["summary"], "evidence": found["evidence"],
    }  # fmt: skip


def result(wreck: Wreck, verdict: str, who: Sequence[int]) -> str:
    """right; right, unnamed (where nobody has to be named); unknown (where somebody has); WRONG."""
    if any(one != CULPRIT for one in who) or verdict not in (*wreck.verdicts, "unknown"):
        return "WRONG"
    if who:
        return "right"
    return "right, unnamed" if wreck.nameless else "unknown"


def keep(agent: Any, job: world.Job, kept: Path) -> None:
    """What is needed to judge again, and what the job and the agent wrote."""
    kept.mkdir(parents=True, exist_ok=True)
    reports = agent.state / "reports"
    if reports.exists():
        shutil.copytree(reports, kept / "reports", ignore=shutil.ignore_patterns("*.html"), dirs_exist_ok=True)  # fmt: skip
    (kept / "job.log").write_text(job.log.read_text(errors="replace")[-100 * TAIL :])
    (kept / "agent.log").write_text(agent.log[-10 * TAIL :])


@contextmanager
def started(
    folder: Path, options: tuple[str, ...], *, hook: bool, launcher: bool
) -> Iterator[world.Job]:
    """The job by torchrun; without a launcher two processes that nobody ends when one of them is gone."""
    if launcher:
        with world.job(folder, *options, hook=hook, script=JOB) as job:
            yield job
        return
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "events").mkdir()
    shell = ["sh", "-c", 'for RANK in 0 1; do RANK=$RANK LOCAL_RANK=$RANK "$@" & done; wait', "sh"]
    argv = [*shell, sys.executable, str(JOB), "--events", str(place / "events"), *options]
    more = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}  # fmt: skip
    with (place / "job.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=world.environment(place) | more)  # fmt: skip
    try:
        yield world.Job(place, process)
    finally:
        world.end(process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
