"""What a node does to an agent: its clock is set while a job hangs, and somebody kills it."""

import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from processes.agent.light import LightJob, light_job
from processes.harness import JOBS, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, start, stop, watching

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]

STALL = "{timeout: 6s, interval: 1s}"
HOUR, DAY = 3600, 86_400


def knows(agent: RunningAgent, job: LightJob) -> bool:
    """Whether the agent has seen it step, and how fast."""
    snap = agent.snapshot()
    return any(run.name == job.name and "usual gap" in run.sentence for run in snap.runs) if snap else False  # fmt: skip


def reports_of(agent: RunningAgent, job: LightJob) -> list[Report]:
    """The reports of this job on the disk."""
    pids = set(job.ranks.values())
    return [one for one in agent.reports() if pids & {rank["pid"] for rank in one["ranks"]}]


@contextmanager
def settable_clock(folder: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """Environment variables of a program whose wall clock goes as many seconds ahead as the file says."""
    library, file = folder / "clock.so", folder / "ahead"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(JOBS / "another_clock.c")]
    subprocess.run(command, check=True)
    set_clock(file, 0)
    yield {"LD_PRELOAD": str(library), "AHEAD_FILE": str(file)}, file


def set_clock(file: Path, ahead: int) -> None:
    """Set the wall clock of who uses the file."""
    with file.open("r+b" if file.exists() else "wb") as opened:
        opened.write(struct.pack("l", ahead))


@pytest.mark.parametrize("step", [DAY, -DAY, HOUR, -HOUR])
def test_a_clock_that_is_set_hides_no_stall_and_makes_none(tmp_path: Path, step: int) -> None:
    with settable_clock(tmp_path) as (more, clock):
        with (
            watching(tmp_path, settings(tmp_path, stall=STALL), more=more) as agent,
            light_job(tmp_path / "hangs") as hangs,
            light_job(tmp_path / "goes on") as goes_on,
        ):
            wait_for("both are known", lambda: knows(agent, hangs) and knows(agent, goes_on), 90)
            os.kill(hangs.ranks[1], signal.SIGSTOP)
            hangs.hang()
            set_clock(clock, step)
            wait_for("the report", lambda: reports_of(agent, hangs), 60)
            (report,) = reports_of(agent, hangs)
            set_clock(clock, 0)  # and back, while the incident is open
            lines = agent.log.count("\n")
            wait_for("a look after that", lambda: knows(agent, goes_on) and agent.snapshot(), 30)
            for process in hangs.processes:
                process.kill()
            wait_for("its end", lambda: reports_of(agent, hangs)[0]["state"] != "open", 60)
            (ended,) = reports_of(agent, hangs)
            assert reports_of(agent, goes_on) == []
            assert agent.process.poll() is None
            assert "Traceback" not in agent.log, agent.log.splitlines()[lines:]
        times = [datetime.fromisoformat(event["at"]).timestamp() for event in ended["timeline"]]
        assert times == sorted(times)
        assert times[-1] - times[0] < 300
        assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [1]


def test_an_agent_that_was_killed_is_named_by_the_next_one(tmp_path: Path) -> None:
    """By the kernel for memory, or by anybody: with SIGKILL it says nothing itself."""
    config = settings(tmp_path, stall=STALL)
    agents = []
    try:
        for number in range(3):
            agents.append(agent := start(tmp_path, config))
            wait_for("its memory", (agent.state / "agent.sqlite").exists, 30)
            wait_for("its name is stored", lambda one=agent: _is_stored(one), 60)
            if number:
                stop(agent)
            else:
                agent.process.kill()
                agent.process.wait(20)
    finally:
        for agent in agents:
            agent.process.kill()
            agent.process.wait(20)
    words = f"the agent before this one (process {agents[0].process.pid}) was killed"
    assert agents[-1].log.count("the agent before this one") == 1  # of three in one log
    assert words in agents[-1].log


def _is_stored(agent: RunningAgent) -> bool:
    """Whether the state on the disk names this process; its keeper has the database locked, so its bytes are read."""
    pid = str(agent.process.pid).encode()
    return any(pid in file.read_bytes() for file in agent.state.glob("agent.sqlite*"))
