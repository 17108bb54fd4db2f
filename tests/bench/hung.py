"""Trainings that hang, several at once under two agents: how long after the strike each agent reports, and whom it names.

    PYTHONPATH=tests python tests/bench/hung.py [--at-once N] [KIND:FAULT ...]

Frameworks' own trainings (tests/jobs/untouched.py) and a loop of one's own (tests/jobs/train.py), two ranks each on gloo; rank 1 is
struck after half a minute of training. One agent has the settings as shipped, and 60 s for a report
(90 s where the training tells nothing); the other a timeout of 15 s, and 20 s. Whoever hangs is ended with the second report, and the next one starts. Exit status 1 where a row is wrong or late.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.alone import alone
from bench.table import Row, show
from gpu import world
from gpu.hanging import reports_of
from gpu.untouched import (
    AFTER,
    AGENTS,
    ALLOWED,
    JOB,
    PATIENCE,
    START,
    STRUCK,
    judged,
    missing_packages,
)
from gpu.untouched import Row as Hang
from processes.incidents.watching import RunningAgent

FRAMEWORKS = (
    "lightning",
    "lightning-csv",
    "trainer",
    "trainer-tensorboard",
    "trainer-wandb",
    "jsonl",
    "silent",
)
STEPLESS = "silent"  # tells nothing: with the settings as shipped it may take longer
WITHOUT_STEPS = 90.0  # seconds
LOOP = "loop"  # tests/jobs/train.py
TRAIN = world.ROOT / "tests" / "jobs" / "train.py"
PACE = 0.1  # seconds of a step of it
OF_LOOP = {
    "sleep": ("rank_waiting",),
    "stopped": ("rank_stopped",),
    "fifo": ("rank_blocked_io",),
    "lock": ("rank_waiting",),
    "gil": ("rank_waiting",),
    "dataloader": ("dataloader_stalled",),
}
HANGS = (
    *(Hang(kind, fault, verdicts, nameless=fault == "both") for kind in FRAMEWORKS for fault, verdicts in STRUCK.items()),
    *(Hang(LOOP, fault, verdicts) for fault, verdicts in OF_LOOP.items()),
)  # fmt: skip
POLL = 0.2
APART = 4.0  # seconds between two starts, so that not all strike in one moment


@dataclass
class Trial:
    """One training on its way to the reports."""

    hang: Hang
    job: world.Job
    stack: ExitStack
    began: float = field(default_factory=time.monotonic)
    reported: dict[str, float] = field(default_factory=dict)  # agent -> unix time

    def over(self, agents: Mapping[str, RunningAgent]) -> bool:
        """Look once; whether both have reported, or are no longer waited for."""
        struck = self.job.struck_at()
        if struck is None:
            return self.job.launcher.poll() is not None or time.monotonic() - self.began > START + AFTER  # fmt: skip
        for name, agent in agents.items():
            if name not in self.reported and reports_of(agent, self.job):
                self.reported[name] = time.time()
        late = {name for name in agents if time.time() - struck > PATIENCE[name]}
        return late | set(self.reported) == set(agents)

    def results(self, agents: Mapping[str, RunningAgent]) -> dict[str, dict[str, Any]]:
        """By agent, what it said and when."""
        struck = self.job.struck_at()
        if struck is None:
            return {name: {"result": f"did not strike: {self.job.tail()}"} for name in agents}
        times = {name: {"report": at} for name, at in self.reported.items()}
        return {
            name: judged(self.hang, name, agent, self.job, times.get(name, {}), struck)
            for name, agent in agents.items()
        }


def start(folder: Path, hang: Hang) -> Trial:
    """Begin one, of two ranks."""
    stack = ExitStack()
    if hang.kind == LOOP:
        workers = ("--workers", "1") if hang.fault == "dataloader" else ()
        options = ("--fault", hang.fault, "--ranks", "1", "--after", str(int(AFTER / PACE)), "--pace", str(PACE), *workers)  # fmt: skip
        job = stack.enter_context(world.job(folder, *options, script=TRAIN))
    else:
        options = (hang.kind, "--fault", hang.fault, "--after", str(AFTER), "--cpu", "--pause", "0.03")  # fmt: skip
        job = stack.enter_context(world.job(folder, *options, script=JOB))
    return Trial(hang, job, stack)


def run(
    folder: Path, hangs: list[Hang], at_once: int
) -> Iterator[tuple[Hang, dict[str, dict[str, Any]]]]:
    """All of them, as they end."""
    with ExitStack() as everything:
        agents = {name: everything.enter_context(world.agent(folder, stall)) for name, stall in AGENTS.items()}  # fmt: skip
        todo, trials, started = list(hangs), list[Trial](), float("-inf")
        while todo or trials:
            if todo and len(trials) < at_once and time.monotonic() - started > APART:
                started = time.monotonic()
                trial = start(folder, todo.pop(0))
                everything.enter_context(trial.stack)
                trials.append(trial)
            for trial in [one for one in trials if one.over(agents)]:
                yield trial.hang, trial.results(agents)
                trial.stack.close()
                trials.remove(trial)
            time.sleep(POLL)


def row(hang: Hang, name: str, result: Mapping[str, Any]) -> Row:
    """One agent's half of a training."""
    seconds = result.get("report_after_s")
    measured = f"{seconds:.1f} s" if seconds is not None else "no report"
    named = f"{result['verdict']} {result['confidence']} of {result['named']}" if "verdict" in result else result.get("summary", "")  # fmt: skip
    allowed = WITHOUT_STEPS if hang.kind == STEPLESS and name == "defaults" else ALLOWED[name]
    met = result["result"] == "right" and seconds is not None and seconds <= allowed
    return Row(f"{hang.name}, {name}: {result['result']}; {named}", measured, f"≤ {allowed:.0f} s", met)  # fmt: skip


def medians(found: Mapping[Hang, Mapping[str, Mapping[str, Any]]]) -> Iterator[Row]:
    """Of each agent over all, those that were noticed."""
    for name in AGENTS:
        times = sorted(one[name]["report_after_s"] for one in found.values() if "report_after_s" in one[name])  # fmt: skip
        right = sum(one[name]["result"] == "right" for one in found.values())
        if times:
            yield Row(f"all, {name}: {right} of {len(found)} right", f"median {statistics.median(times):.1f} s, {times[0]:.1f} … {times[-1]:.1f}")  # fmt: skip


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--at-once", type=int, default=max(2, (os.cpu_count() or 2) // 3))
    parser.add_argument("rows", nargs="*", metavar="KIND:FAULT")
    options = parser.parse_args()
    wanted = [one for one in HANGS if not options.rows or one.name in options.rows]
    for kind in {one.kind: None for one in wanted if missing_packages(one.kind)}:
        print(f"{kind} is left out: {', '.join(missing_packages(kind))} is not installed")
    found: dict[Hang, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        for hang, result in run(Path(name), [one for one in wanted if not missing_packages(one.kind)], options.at_once):  # fmt: skip
            found[hang] = result
            print(hang.name, {who: [one["result"], one.get("report_after_s")] for who, one in result.items()}, flush=True)  # fmt: skip
    rows = [row(hang, name, found[hang][name]) for hang in wanted if hang in found for name in AGENTS]  # fmt: skip
    show("trainings that hang: seconds from the strike to the report", [*rows, *medians(found)])
    return int(not all(one.met for one in rows))


if __name__ == "__main__":
    alone()
    sys.exit(main())
