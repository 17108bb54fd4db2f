"""Jobs of NCCL that hang, each under an agent of its own: what the report says beside what is true."""

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpu import world
from gpu.hanging import LATE, STALL, Eye, poll, reports_of
from processes.harness import wait_for
from processes.incidents.watching import Report, RunningAgent

JOB = world.ROOT / "tests" / "jobs" / "hangs.py"
UNATTACHED = world.ROOT / "tests" / "processes" / "training" / "unattached.py"
CULPRIT = 1
KEPT = "incidents"  # folder for what the agents wrote, so that the verdicts can be repeated without a GPU
SETTLE = 2.0


class Hang(msgspec.Struct, frozen=True):
    """A fault, the verdicts that are right for it, and after how many seconds without progress it may be told."""

    fault: str
    verdicts: tuple[str, ...]
    timeout: float = 15.0
    nameless: bool = False  # nobody can be named: who is right is not to be seen


HANGS = (
    Hang("sleep", ("rank_waiting",)),
    Hang("loop", ("rank_busy",), 25.0),
    Hang("stop", ("rank_stopped",)),
    Hang("kill", ("rank_exited",), 0.0),
    Hang("mismatch", ("collective_mismatch",), nameless=True),
    Hang("shape", ("collective_mismatch",), nameless=True),
    Hang("off_by_one", ("collective_mismatch", "rank_waiting")),
    Hang("kernel", ("rank_busy", "rank_waiting", "collective_mismatch")),
    Hang("oom", ("rank_busy", "out_of_memory", "rank_waiting"), 25.0),
    Hang("frozen", ("rank_busy", "rank_waiting", "collective_mismatch")),
    Hang("worker", ("dataloader_stalled",)),
)
AGAIN = {"hook": ("sleep", "mismatch", "shape", "off_by_one", "kernel", "frozen"), "denied": ("sleep", "mismatch", "off_by_one", "kernel")}  # fmt: skip
OF = {one.fault: one for one in HANGS}


def rows(
    folder: Path, keep: Path, faults: Iterable[str], mode: str, *options: str
) -> Iterator[tuple[str, Any]]:
    """One after the other; what fails in one does not keep the others."""
    for fault in faults:
        try:
            yield fault, hung(folder, keep, OF[fault], mode, *options)
        except (AssertionError, OSError, ValueError) as error:
            yield fault, {"result": "failed", "error": f"{type(error).__name__}: {error}"[:1500]}


def hung(folder: Path, keep: Path, hang: Hang, mode: str, *options: str) -> dict[str, Any]:
    """Start, wait for the strike, for the report, and judge it. `mode`: untouched, hook, denied (hook, and nobody may attach)."""
    program = (world.MLDEBUG[0], str(UNATTACHED)) if mode == "denied" else world.MLDEBUG
    with (
        world.agent(folder, STALL, program=program) as agent,
        world.job(folder, "--fault", hang.fault, *options, hook=mode != "untouched", script=JOB) as job,
    ):  # fmt: skip
        wait_for(f"the strike: {job.tail()}", lambda: struck(job), 90)
        at = job.struck_at() or world.now()
        eye = Eye(agent, job)
        poll(eye, lambda: bool(reports_of(agent, job)), hang.timeout + LATE)
        came = world.now()
        time.sleep(SETTLE)
        found = reports_of(agent, job)
        kept(agent, keep / f"{mode}-{hang.fault}")
        result = judged_row(hang, found[0], came - at) if found else {"result": "no report", "log": agent.log[-1500:]}  # fmt: skip
        return result | {"gpus": gpus_of(eye), "reports": len(found)}


def struck(job: world.Job) -> bool:
    """A rank that is killed takes its job along, soon."""
    if job.struck_at() is not None:
        return True
    return not job.alive()


def kept(agent: RunningAgent, place: Path) -> None:
    """All that is needed to judge again."""
    with suppress(FileNotFoundError):
        shutil.copytree(agent.state / "reports", place, ignore=shutil.ignore_patterns("*.html"))


def gpus_of(eye: Eye) -> dict[str, str]:
    """What the fingerprint said last of each GPU, by number."""
    last = eye.observed[-1] if eye.observed else None
    return (
        {str(gpu): f"{state} ({last.loads[gpu]})" for gpu, state in last.states.items()}
        if last
        else {}
    )


def judged_row(hang: Hang, report: Report, seconds: float) -> dict[str, Any]:
    """A row of the page."""
    diagnosis = report["diagnosis"]
    named = [one.get("rank") for one in diagnosis["culprits"] or ()]
    return {
        "result": judged(hang, diagnosis["verdict"], named),
        "verdict": diagnosis["verdict"],
        "confidence": diagnosis["confidence"],
        "named": named,
        "summary": diagnosis["summary"],
        "evidence": diagnosis["evidence"],
        "seconds_after_timeout": round(seconds - hang.timeout, 1),
        "classes": {str(one["rank"]): one["class"] for one in report["ranks"]},
        "last_collectives": {str(one["rank"]): one["last_collective"] for one in report["ranks"]},
        "sources": sources(diagnosis["evidence"]),
        "gaps": [f"{one['what']}: {one['reason']}" for one in report["gaps"]],
    }


def judged(hang: Hang, verdict: str, named: Sequence[int | None]) -> str:
    """right; right, unnamed (the verdict, and nobody where somebody is to be named); unknown; WRONG."""
    if any(rank != CULPRIT for rank in named):
        return "WRONG"
    if verdict == "unknown":
        return "unknown"
    if verdict not in hang.verdicts:
        return "WRONG"
    return "right" if named or hang.nameless else "right, unnamed"


def sources(evidence: Sequence[str]) -> list[str]:
    """Who speaks in it."""
    words = {"NCCL RAS": "NCCL RAS", "Flight Recorder": "Flight Recorder", "GPU": "GPU", "py-spy": "py-spy", "kernel": "kernel"}  # fmt: skip
    return [name for name, word in words.items() if any(word in one for one in evidence)]
