"""Frameworks' own trainings that hang, under two agents at once, one with the settings as shipped and one with a timeout of 15 s.

What each row says: after how many seconds the agent was worried, after how many there was a report, and who was named.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from gpu import world
from gpu.hanging import reports_of, run_of
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent

JOB = world.ROOT / "tests" / "jobs" / "untouched.py"
# What each training imports; others need PyTorch alone
PACKAGES = {
    "lightning": ("lightning", "tensorboard"),
    "lightning-bare": ("lightning",),
    "lightning-csv": ("lightning",),
    "lightning-tqdm": ("lightning",),
    "trainer": ("transformers", "accelerate"),
    "trainer-tensorboard": ("transformers", "accelerate", "tensorboard"),
    "trainer-wandb": ("transformers", "accelerate", "wandb"),
}
CULPRIT = 1
AFTER = 30.0  # seconds of training before the strike: then a steady job has a rhythm
TIMEOUT = 15.0
AGENTS = {"defaults": "{}", "timeout 15 s": "{timeout: 15s}"}
PATIENCE = {"defaults": 90.0, "timeout 15 s": 60.0}  # seconds after the strike
ALLOWED = {"defaults": 60.0, "timeout 15 s": TIMEOUT + 5.0}  # what is claimed of an inert culprit
START = 120.0
POLL = 0.5
BESIDE = "MLDEBUG_GPU_BESIDE"
CALM = ("watching", "quiet", "ended")


class Row(msgspec.Struct, frozen=True):
    """A framework, and what strikes it. `nameless`: both ranks wait, so nobody is to be named."""

    kind: str
    fault: str
    verdicts: tuple[str, ...]
    nameless: bool = False

    @property
    def name(self) -> str:
        """As a caller names it: `lightning:worker`."""
        return f"{self.kind}:{self.fault}"


STRUCK = {
    "worker": ("dataloader_stalled",),
    "sleep": ("rank_waiting",),
    "blocked": ("rank_blocked_io", "rank_waiting"),
    "both": ("collective_mismatch", "rank_waiting", "unknown"),
    "upload": ("rank_waiting", "rank_blocked_io"),
    "debugger": ("rank_waiting",),
}
KINDS = ("lightning", "trainer", "fsdp2")
ROWS = tuple(
    Row(kind, fault, verdicts, nameless=fault == "both")
    for fault, verdicts in STRUCK.items()
    for kind in KINDS
)


def missing_packages(kind: str) -> list[str]:
    """What is not installed of what this training imports."""
    return [one for one in ("torch", *PACKAGES.get(kind, ())) if find_spec(one) is None]


def hung(folder: Path, row: Row, *options: str, after: float = AFTER) -> dict[str, dict[str, Any]]:
    """Run it until both agents have a report, or are no longer waited for: by agent, what it said and when."""
    job_options = (row.kind, "--fault", row.fault, "--after", str(after), *options)
    with ExitStack() as stack:
        beside(stack)
        agents = {
            name: stack.enter_context(world.agent(folder, stall)) for name, stall in AGENTS.items()
        }
        job = stack.enter_context(world.job(folder, *job_options, script=JOB))
        wait_for(f"the strike: {job.tail()}", lambda: job.alive() and job.struck_at(), START + after)  # fmt: skip
        result = followed(agents, job)
        struck = job.struck_at() or world.now()
        return {name: judged(row, name, agents[name], job, result[name], struck) for name in agents}


def beside(stack: ExitStack) -> None:
    """Start what `MLDEBUG_GPU_BESIDE` asks for, ended with the stack: `neighbour`, another program that computes on each of the GPUs."""
    if os.environ.get(BESIDE) == "neighbour":
        for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(","):
            stack.callback(world.end, world.neighbour(gpu))


def followed(agents: Mapping[str, RunningAgent], job: world.Job) -> dict[str, dict[str, float]]:
    """By agent, when it was worried and when it had a report: unix time."""
    table: dict[str, dict[str, float]] = {name: {} for name in agents}
    struck = job.struck_at() or world.now()
    while any(_waits(name, table[name], struck) for name in agents):
        for name, agent in agents.items():
            snapshot = agent.snapshot()
            run = run_of(snapshot, job) if snapshot else None
            if run is not None and run.stage not in CALM:
                table[name].setdefault("worried", world.now())
            if reports_of(agent, job):
                table[name].setdefault("report", world.now())
        time.sleep(POLL)
    return table


def _waits(name: str, table: Mapping[str, float], struck: float) -> bool:
    return "report" not in table and world.now() - struck < PATIENCE[name]


def judged(
    row: Row, name: str, agent: RunningAgent, job: world.Job, table: Mapping[str, float], struck: float
) -> dict[str, Any]:  # fmt: skip
    """One agent's half of a row."""
    snapshot = agent.snapshot()
    run = run_of(snapshot, job) if snapshot else None
    times = {f"{key}_after_s": round(at - struck, 1) for key, at in table.items()}
    found = reports_of(agent, job)
    if not found:
        return {"result": "NOT NOTICED", **times, "summary": f"{run.sentence}; {run.lives_by}" if run else "no run", "log": agent.log[-1500:]}  # fmt: skip
    diagnosis = found[0]["diagnosis"]
    named = [one.get("rank") for one in diagnosis["culprits"] or ()]
    result = judge(row, diagnosis["verdict"], named)
    reported = table.get("report", world.now())  # one that came after nobody waited for it any more
    late = round(reported - struck - ALLOWED[name], 1)
    return {
        "result": result if reported > struck else "TOO EARLY",
        **times,
        "late_s": late,
        "verdict": diagnosis["verdict"],
        "confidence": diagnosis["confidence"],
        "named": named,
        "summary": diagnosis["summary"],
        "evidence": diagnosis["evidence"],
        "reports": len(found),
    }


def judge(row: Row, verdict: str, named: Sequence[int | None]) -> str:
    """right; right, unnamed; unknown; WRONG."""
    if any(rank != CULPRIT for rank in named):
        return "WRONG"
    if verdict == "unknown" and not row.nameless:
        return "unknown"
    if verdict not in row.verdicts:
        return "WRONG"
    return "right" if named or row.nameless else "right, unnamed"


def healthy(folder: Path, kind: str, seconds: float, *options: str) -> dict[str, dict[str, Any]]:
    """A job that nothing strikes, beside both agents: by agent, the reports, of which there may be none, and the stages of its run."""
    with ExitStack() as stack:
        beside(stack)
        agents = {
            name: stack.enter_context(world.agent(folder, stall)) for name, stall in AGENTS.items()
        }
        job = stack.enter_context(world.job(folder, kind, "--fault", "healthy", *options, script=JOB))  # fmt: skip
        end, stages = time.monotonic() + seconds, {name: set[str]() for name in agents}
        step: int | None = None
        while time.monotonic() < end:
            job.alive()
            for name, agent in agents.items():
                snapshot = agent.snapshot()
                run = run_of(snapshot, job) if snapshot else None
                stages[name] |= {run.stage} if run else set()
                step = run.step if run and run.step is not None else step
            time.sleep(POLL)
        reports = {name: [one["diagnosis"]["summary"] for one in reports_of(agent, job)] for name, agent in agents.items()}  # fmt: skip
    return {
        name: {
            "result": "ALARM" if summaries else "right",
            "summary": "; ".join(summaries) or f"no report in {seconds:.0f} s; step {step}; {', '.join(sorted(stages[name]))}",
        }
        for name, summaries in reports.items()
    }  # fmt: skip


def rows(
    folder: Path, names: Sequence[str], seconds: float, *options: str
) -> Iterator[tuple[str, Any]]:
    """One after the other, for as long as another may fit; what fails in one does not keep the others."""
    end, longest = time.monotonic() + seconds, 0.0
    for row in ROWS:
        if names and row.name not in names:
            continue
        began = time.monotonic()
        if began + longest > end:
            yield row.name, {"left out": {"result": "no time was left"}}
            continue
        try:
            yield row.name, hung(folder, row, *options)
        except (AssertionError, OSError, ValueError) as error:
            yield row.name, {"failed": {"result": f"{type(error).__name__}: {error}"[:1500]}}
        longest = max(longest, time.monotonic() - began)
