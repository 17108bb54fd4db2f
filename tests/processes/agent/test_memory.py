"""Memory runs out in the agent's own control group: a child goes first, and what the next agent finds is whole."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from processes.agent.light import light_job
from processes.agent.test_hard_times import STALL, knows, reports_of
from processes.harness import MLDEBUG, User, wait_for
from processes.incidents.watching import RunningAgent, settings, start, stop, watching
from shared.system.own_names import own_name

VERSION_1, VERSION_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
HIERARCHY = VERSION_1 if VERSION_1.is_dir() else VERSION_2
pytestmark = [
    pytest.mark.scenario,
    pytest.mark.system,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not os.access(HIERARCHY / "cgroup.procs", os.W_OK), reason="needs a control group of its own"),
]  # fmt: skip
EATS = "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 22)))"


class MemoryGroup:
    """A control group with a limit of memory."""

    def __init__(self, name: str) -> None:
        self.folder = HIERARCHY / name
        self.folder.mkdir()

    def limit(self, size: int) -> None:
        """So many bytes, swap and all."""
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max"]  # fmt: skip
        for name in names:
            if (self.folder / name).exists():
                (self.folder / name).write_text("0" if name == "memory.swap.max" else str(size))

    def take(self, pid: int) -> None:
        """Move a process into it."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def program(self, words: list[str]) -> list[str]:
        """The words that start a program in it."""
        return ["sh", "-c", f'echo $$ >{self.folder}/cgroup.procs; exec "$@"', "sh", *words]

    def kills(self) -> int:
        """How often the kernel has killed for memory there."""
        names = ("memory.oom_control", "memory.events")
        lines = [line for name in names if (self.folder / name).exists() for line in (self.folder / name).read_text().splitlines()]  # fmt: skip
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    made = MemoryGroup(own_name())
    yield made
    for pid in (made.folder / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    wait_for("its end", lambda: not (made.folder / "cgroup.procs").read_text(), 20)
    made.folder.rmdir()


def test_a_child_goes_before_the_agent(tmp_path: Path, group: MemoryGroup) -> None:
    """A py-spy that eats all memory costs its dumps: the stall is reported by the same agent."""
    eater = tmp_path / "py-spy"
    eater.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E -c "{EATS}"\n')
    eater.chmod(0o755)
    group.limit(400 << 20)
    config = settings(tmp_path, stall=STALL) + f"capture: {{py_spy: {eater}}}\n"
    with (
        watching(tmp_path, config, User(), program=group.program(MLDEBUG)) as agent,
        light_job(tmp_path / "job") as job,
    ):
        wait_for("it is known", lambda: knows(agent, job), 90)
        os.kill(job.ranks[1], signal.SIGSTOP)
        job.hang()
        (report,) = wait_for("the report", lambda: reports_of(agent, job), 90)
        wait_for("a kill", group.kills, 30)
        assert agent.process.poll() is None
        # one that was forked this moment has not written its own yet
        wait_for(
            "children to go first", lambda: _children_score(agent) > _score(agent.process.pid), 20
        )
        assert "Traceback" not in agent.log
    assert report["ranks"]


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def _children_score(agent: RunningAgent) -> int:
    """The least of all that the helper has started; the helper itself is as the agent."""
    (helper,) = _below(agent.process.pid)
    assert _score(helper) == _score(agent.process.pid)
    return min(map(_score, _below(helper)))


def _below(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_an_agent_that_is_killed_for_memory_comes_back_with_all_it_knew(
    tmp_path: Path, group: MemoryGroup
) -> None:
    config = settings(tmp_path, stall=STALL)
    agent = start(tmp_path, config)
    try:
        with light_job(tmp_path / "job") as job:
            wait_for("it is known", lambda: knows(agent, job), 90)
            os.kill(job.ranks[1], signal.SIGSTOP)
            job.hang()
            (before,) = wait_for("the report", lambda: reports_of(agent, job), 60)
            group.limit(
                1 << 16
            )  # what it holds stays counted elsewhere: an agent in peace does with 1 MiB more for minutes
            group.take(agent.process.pid)  # it alone: its children are not to go first
            wait_for("the kill", lambda: _asked(agent) is not None, 60)
            assert agent.process.wait(20) == -signal.SIGKILL
            assert group.kills() >= 1
            killed, agent = agent, start(tmp_path, config)
            wait_for("it is known again", lambda: knows(agent, job) or agent.snapshot(), 60)
            words = f"the agent before this one (process {killed.process.pid}) was killed"
            wait_for("it says so", lambda: words in agent.log, 60)
            for process in job.processes:
                process.kill()
            wait_for("its end", lambda: reports_of(agent, job)[0]["state"] != "open", 60)
            (after,) = reports_of(agent, job)
        stop(agent)
    finally:
        agent.process.kill()
        agent.process.wait(20)
    assert after["id"] == before["id"]
    assert after["diagnosis"]["culprits"] == before["diagnosis"]["culprits"]
    assert "Traceback" not in agent.log


def _asked(agent: RunningAgent) -> int | None:
    """Asking makes it use memory, as does each thread in which it answers; its exit status, once it has ended."""
    socket = f"{agent.state}/agent.sock"
    pages = [f"http://localhost/{one}" for one in ("metrics", "runs", "incidents", "api/v1/status")]
    subprocess.run(["curl", "-s", "-Z", "-m", "2", "--unix-socket", socket, *pages], check=False, stdout=subprocess.DEVNULL)  # fmt: skip
    return agent.process.poll()
