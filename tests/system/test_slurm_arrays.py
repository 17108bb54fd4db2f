"""Job arrays of a real Slurm: tasks that fail alike share one report, also where the agent was started again between them."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from processes.harness import JOBS, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, start, stop
from system.slurm import Slurm
from system.test_schedulers import both_nodes, cluster, submit

pytestmark = [pytest.mark.scenario, pytest.mark.host, pytest.mark.timeout(300)]
__all__ = ["both_nodes", "cluster"]  # fixtures
SIZE = 2


class ArrayTask:
    """The folder of one task's ranks, by which they are told how to end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "libtorch_cpu.so").write_bytes(b"\x7fELF" + bytes(8192))
        os.mkfifo(folder / "fifo")

    def pids(self) -> set[int]:
        """Of its ranks, once all have started."""
        files = list(self.folder.glob("started.*"))
        return {int(file.read_text()) for file in files} if len(files) == SIZE else set()

    def end(self, rank: int, way: str) -> None:
        """Tell one rank how to end."""
        making = self.folder / "telling"
        making.write_text(way)
        making.rename(self.folder / f"way.{rank}")


def array(cluster: Slurm, folder: Path, size: int) -> list[ArrayTask]:
    """An array whose tasks run one after the other, each with its ranks by srun."""
    tasks = [ArrayTask(folder / str(number)) for number in range(size)]
    train = shutil.copy(
        JOBS / "launched.py", folder / f"array{os.getpid()}.py"
    )  # no other runs of that name
    wrap = f"srun --kill-on-bad-exit=1 --ntasks={SIZE} {sys.executable} -u {train} {folder}/$SLURM_ARRAY_TASK_ID"
    submit(cluster, folder, f"--array=0-{size - 1}%1", "--nodelist=a1", f"--ntasks={SIZE}", wrap=wrap)  # fmt: skip
    return tasks


def first_in_line(agent: RunningAgent) -> RunningAgent:
    """The same agent, before all others on its processors: slurmstepd reaps a rank at once, and whoever looks later cannot know how
    it ended (and says so, without a report).
    """
    for thread in Path(f"/proc/{agent.process.pid}/task").iterdir():
        try:
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
        except PermissionError:  # where control groups give no real time
            os.setpriority(os.PRIO_PROCESS, int(thread.name), -19)
    return agent


def fails(agent: RunningAgent, one: ArrayTask, *, killed: bool = False) -> Report:
    """Have rank 1 of a task fail once the agent watches it; the report about this task, once it is closed."""
    pids = wait_for("the task's ranks", one.pids, 90)

    def watched() -> bool:
        found = agent.snapshot()
        return any(set(run.ranks.values()) >= pids for run in (found.runs if found else ()))

    wait_for("the agent to watch them", watched, 60)
    if killed:
        os.kill(int((one.folder / "started.1").read_text()), signal.SIGKILL)
    else:
        one.end(1, "exit 3")

    def reported() -> Report | None:
        mine = [report for report in agent.reports() if pids & {rank["pid"] for rank in report["ranks"]}]  # fmt: skip
        return next((report for report in mine if report["state"] == "ended"), None)

    found: Report = wait_for("its report", reported, 60)
    return found


def test_tasks_of_an_array_that_fail_alike_are_one_report_over_a_restart(
    cluster: Slurm, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    tmp_path.chmod(0o755)
    config = settings(tmp_path, stall="{timeout: 60s, interval: 1s}")
    agent = first_in_line(start(tmp_path, config, more=cluster.environment))
    try:
        tasks = array(cluster, folder, 4)
        first = fails(agent, tasks[0])
        second = fails(agent, tasks[1])
        stop(agent)
        agent = first_in_line(start(tmp_path, config, more=cluster.environment))
        third = fails(agent, tasks[2])
        other = fails(agent, tasks[3], killed=True)
    finally:
        stop(agent)
    assert {one["id"] for one in (first, second, third)} == {first["id"]}
    assert [one["rank"] for one in third["diagnosis"]["culprits"]] == [1]
    again = [one["what"] for one in third["timeline"] if "another run failed the same way" in one["what"]]  # fmt: skip
    assert len(again) == 2
    assert re.search(
        r"3 of [34] runs of this script failed the same way", third["diagnosis"]["summary"]
    )  # the next task may have begun
    assert other["id"] != first["id"]  # a control: it failed in another way
    ours = {pid for task in tasks for pid in task.pids()}  # the machine has other jobs, too
    mine = [one for one in agent.reports() if ours & {rank["pid"] for rank in one["ranks"]}]
    assert {one["id"] for one in mine} == {first["id"], other["id"]}
