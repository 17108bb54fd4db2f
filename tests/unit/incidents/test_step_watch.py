"""Whether a job makes steps while a person looks: a real process that logs them, and one that has stopped to."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.config.schema import AgentConfig, Config
from mldebug.core.model import Job, RankIdentity
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.incidents.step_watch import LONGEST, StepWatch

LOOP = """
import sys
for line in sys.stdin:
    print(f"step {line.strip()} loss 2.5", flush=True)
"""


class Stepper:
    """A process that logs a step when it is asked to."""

    def __init__(self, child: subprocess.Popen[str], log: Path) -> None:
        self.child, self.log = child, log

    def make(self, step: int) -> None:
        assert self.child.stdin
        self.child.stdin.write(f"{step}\n")
        self.child.stdin.flush()
        while f"step {step} " not in self.log.read_text():
            assert self.child.poll() is None


@contextmanager
def stepping(folder: Path) -> Iterator[Stepper]:
    log = folder / "train.log"
    with log.open("w") as out:
        child = subprocess.Popen([sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=out, text=True)  # fmt: skip
    try:
        yield Stepper(child, log)
    finally:
        child.kill()
        child.communicate()


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[CaptureTools]:
    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path / "state"))) as opened:
        yield opened.capture


def job_of(tools: CaptureTools, stepper: Stepper) -> Job:
    pid = stepper.child.pid
    brief = tools.context.host.brief(pid)
    assert brief is not None
    one = RankIdentity(rank=0, world_size=1, pid=pid, start_ticks=brief.start_ticks)
    return Job(id="j", name="train.py", launcher="torchrun", ranks=(one,))


def test_steps_of_the_log_at_the_begin_and_at_the_end(tools: CaptureTools, tmp_path: Path) -> None:
    with stepping(tmp_path) as stepper:
        stepper.make(512)
        watch = StepWatch(tools, job_of(tools, stepper))
        stepper.make(513)
        stepper.make(534)
        assert watch.between() == (512, 534)


def test_a_step_that_is_young_is_waited_for(tools: CaptureTools, tmp_path: Path) -> None:
    with stepping(tmp_path) as stepper:
        stepper.make(4)
        watch = StepWatch(tools, job_of(tools, stepper), sleep=lambda _: stepper.make(5))
        assert watch.between() == (4, 5)


def test_it_is_not_waited_for_long(tools: CaptureTools, tmp_path: Path) -> None:
    with stepping(tmp_path) as stepper:
        stepper.make(4)
        slept: list[float] = []
        watch = StepWatch(
            tools, job_of(tools, stepper), clock=lambda: sum(slept), sleep=slept.append
        )
        assert watch.between() == (4, 4)
        assert sum(slept) <= LONGEST + 0.5


def test_a_job_that_tells_no_step(tools: CaptureTools, tmp_path: Path) -> None:
    with stepping(tmp_path) as stepper:
        assert StepWatch(tools, job_of(tools, stepper)).between() is None
