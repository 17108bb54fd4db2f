"""The scripted life of a real job of two gloo ranks (start, steps, evaluation, checkpoint, hang, kill, restart, resume), whose own notes say what
it did when: the agent's account of its GPU time agrees, although the agent is killed in between.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from mldebug.goodput.account.job_goodput import JobGoodput
from processes.harness import User, environment_of_jobs, folder_for, wait_for
from processes.incidents.watching import RunningAgent, settings, start, stop
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.long, pytest.mark.timeout(1200)]
need_torch("the job trains with PyTorch")

JOB = Path(__file__).parents[2] / "jobs/scripted.py"
RANKS = 2
STALL = "{timeout: 15s, interval: 1s}"
HUNG = 20.0  # seconds from the incident to the end of the hung attempt
START = 300.0  # seconds until a stretch begins at the latest
GAP = 8.0  # seconds without a process
AWAY = 4.0  # seconds without an agent, before another begins to start
CLOSE, EXACT = 0.02, 0.005  # of the wall time: a bucket, and the sum of all


class Lives:
    """The job's launches, and what it has noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "out"
        self.folder.mkdir()
        self.log = folder / "train.log"
        self.environ = environment_of_jobs(folder) | {"OMP_NUM_THREADS": "1"}

    @contextmanager
    def launched(self) -> Iterator[None]:
        """One launch, killed at the end with all that belongs to it."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, "--nproc-per-node", str(RANKS), str(JOB), "--output_dir", str(self.folder)]  # fmt: skip
        with self.log.open("ab") as out:
            job = subprocess.Popen(command, stdout=out, stderr=out, env=self.environ)
        try:
            yield
        finally:
            parent = psutil.Process(job.pid)
            for one in (parent, *parent.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            job.wait(30)

    def marks(self) -> list[tuple[float, str]]:
        """When each stretch began, and what it is."""
        file = self.folder / "marks.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(one["at"], one["use"]) for one in map(json.loads, lines)]

    def reaches(self, use: str, times: int = 1) -> None:
        """Wait for the beginning of the stretch of this use that is the first, second …"""
        wait_for(use, lambda: [one for _, one in self.marks()].count(use) >= times, START)

    def has_logged(self, step: int, times: int = 1) -> None:
        """Wait for a step."""
        line = f"step {step} ".encode()
        wait_for(f"step {step}", lambda: self.log.read_bytes().count(line) >= times, START)

    def truth(self, killed: float, until: float) -> dict[str, float]:
        """Seconds of each use. `killed`: when the first launch was; `until`: when the second one was asked for."""
        marks = sorted([*self.marks(), (killed, "restart_gap")])
        ends = [at for at, _ in marks[1:]] + [until]
        found: dict[str, float] = {}
        for (at, use), end in zip(marks, ends, strict=True):
            name = (
                "productive" if use == "end" else use
            )  # as long as nobody knows that it was the last step
            found[name] = found.get(name, 0.0) + end - at
        return found


def killed_and_begun_again(agent: RunningAgent, config: str) -> RunningAgent:
    """kill -9, and another agent some seconds later."""
    agent.process.kill()
    agent.process.wait(10)
    time.sleep(AWAY)
    return start(agent.folder, config)


def account(agent: RunningAgent) -> JobGoodput | None:
    snapshot = agent.snapshot()
    return next((one for one in snapshot.goodput if one.name == JOB.name), None) if snapshot else None  # fmt: skip


def is_stalled(agent: RunningAgent) -> bool:
    snapshot = agent.snapshot()
    return any(run.incident_kind == "stall" for run in snapshot.runs) if snapshot else False


def test_every_second_of_a_scripted_life_is_in_its_bucket() -> None:
    with folder_for(User()) as folder:
        config = settings(folder, stall=STALL) + "checkpoints: {interval: 5s}\n"
        lives, agent = Lives(folder), start(folder, config)
        try:
            with lives.launched():
                lives.has_logged(40)
                agent = killed_and_begun_again(agent, config)
                lives.reaches("stall")
                wait_for("the incident", lambda: is_stalled(agent), START)
                time.sleep(HUNG)
            killed = time.time()
            time.sleep(GAP)
            with lives.launched():
                lives.has_logged(146, times=2)
                agent = killed_and_begun_again(agent, config)
                lives.reaches("end")
                ended = lives.marks()[-1][0]
                found = wait_for("its account", lambda: (one := account(agent)) and one.at > ended and one, 30)  # fmt: skip
        finally:
            stop(agent)
        compare(lives.truth(killed, found.at), found)
    assert (found.restarts, found.attempts) == (1, 2)
    assert found.steps_again == pytest.approx(70, abs=7)


def compare(truth: dict[str, float], found: JobGoodput) -> None:
    wall = sum(truth.values())
    seconds = {use: round(one / RANKS, 2) for use, one in found.gpu_seconds.items()}
    table = {use: (round(truth.get(use, 0.0), 2), seconds.get(use, 0.0)) for use in {*truth, *seconds}}  # fmt: skip
    print(f"wall {wall:.1f} s, (script, agent) by use: {table}")
    off = {use: both for use, both in table.items() if abs(both[0] - both[1]) > CLOSE * wall}
    assert not off, f"of {wall:.1f} s: {off}\n{table}"
    assert sum(seconds.values()) == pytest.approx(wall, rel=EXACT)
