"""Trainings that nothing strikes, all at once under two agents: which of them raises an alarm, of which there may be none, and by what each is known to move.

    PYTHONPATH=tests python tests/bench/healthy.py [MINUTES [KIND ...]]

Frameworks' own trainings of two ranks on gloo, with evaluation, checkpoints and compilation (tests/jobs/untouched.py). One agent
has the settings as shipped, the other a timeout of 15 s. A training whose packages are not installed is left out, and told.
Exit status 1 where an alarm was raised, or a training ended by itself.
"""

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.alone import alone
from bench.table import Row, show
from gpu import world
from gpu.hanging import reports_of, run_of
from gpu.untouched import AGENTS, JOB, missing_packages
from processes.incidents.watching import RunningAgent

KINDS = ("lightning", "lightning-bare", "lightning-csv", "lightning-tqdm", "trainer", "trainer-tensorboard", "trainer-wandb", "jsonl", "silent", "chatty")  # fmt: skip
ON_CPU = ("--cpu", "--pause", "0.03")
POLL = 2.0
APART = 1.0  # seconds between two starts


@dataclass
class Watched:
    """A training, and what each agent has said of it."""

    kind: str
    job: world.Job
    began: float = field(default_factory=time.monotonic)
    trained: float = 0.0  # seconds since it was started
    ended: str = ""  # the end of its output, where it ended by itself
    step: int | None = None
    stages: dict[str, set[str]] = field(default_factory=dict)
    lives_by: dict[str, str] = field(default_factory=dict)
    alarms: dict[str, list[str]] = field(default_factory=dict)

    def look(self, name: str, agent: RunningAgent) -> None:
        """Note what this agent says of it now."""
        snapshot = agent.snapshot()
        run = run_of(snapshot, self.job) if snapshot else None
        if run is not None:
            self.stages.setdefault(name, set()).add(run.stage)
            self.lives_by[name] = run.lives_by
            self.step = run.step if run.step is not None else self.step
        self.alarms[name] = [one["diagnosis"]["summary"] for one in reports_of(agent, self.job)]

    def row(self, name: str) -> Row:
        """What it came to under this agent."""
        alarms, stages = self.alarms.get(name, []), self.stages.get(name, set())
        text = f"{len(alarms)} alarms in {self.trained:.0f} s; {', '.join(sorted(stages)) or 'never seen'}"
        what = f"{self.kind}, {name}: step {self.step}; lives by {self.lives_by.get(name) or 'nothing'}"
        trouble = [*alarms, *([f"ended by itself: {self.ended}"] if self.ended else [])]
        return Row("; ".join([what, *trouble]), text, "no alarm", bool(stages) and not trouble)


def watch(folder: Path, kinds: list[str], seconds: float) -> list[Row]:
    """Start them, look at them until the time is over, counted from the last start; a row for each and each agent."""
    with ExitStack() as stack:
        agents = {name: stack.enter_context(world.agent(folder, stall)) for name, stall in AGENTS.items()}  # fmt: skip
        found: list[Watched] = []
        for kind in kinds:
            job = stack.enter_context(world.job(folder, kind, "--fault", "healthy", *ON_CPU, script=JOB))  # fmt: skip
            found.append(Watched(kind, job))
            time.sleep(APART)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            look(found, agents)
            time.sleep(POLL)
        look(found, agents)
        return [one.row(name) for one in found for name in AGENTS]


def look(found: list[Watched], agents: dict[str, RunningAgent]) -> None:
    """Once at each that still trains."""
    for one in found:
        if one.ended:
            continue
        if one.job.launcher.poll() is not None:
            one.ended = one.job.tail()
        one.trained = time.monotonic() - one.began
        for name, agent in agents.items():
            one.look(name, agent)


def main() -> int:
    """Print the table; returns the exit status."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    kinds = sys.argv[2:] or list(KINDS)
    for kind in kinds:
        if without := missing_packages(kind):
            print(f"{kind} is left out: {', '.join(without)} is not installed", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        rows = watch(Path(name), [one for one in kinds if not missing_packages(one)], minutes * 60)
    show(f"trainings that nothing strikes, {minutes:g} min", rows)
    return int(not all(row.met for row in rows))


if __name__ == "__main__":
    alone()
    sys.exit(main())
