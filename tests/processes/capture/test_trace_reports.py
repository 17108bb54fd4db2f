"""Real traced jobs beside a real agent: a rank that was killed, and one that is stopped, tell their last calls in the report."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.capture.trace.layout import PREFIX
from mldebug.cli.main import main
from processes.harness import (
    SCRIPTS,
    Plan,
    RunningJob,
    User,
    folder_for,
    send_signal,
    state_of,
    wait_for,
)
from processes.incidents.watching import Report, RunningAgent, settings, watching
from processes.needs import need_torch
from processes.storage.test_stuck_storage import STORAGE, SavingJob, storage_report
from shared.storage.disks import disk, frozen

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]
need_torch("the scenarios train with PyTorch")

RANKS = 2
THAW = "import os, signal, sys; sys.stdin.read(); os.kill(int(sys.argv[1]), signal.SIGCONT)"


TRACE = [str(SCRIPTS / "mldebug"), "run", "--trace", "uninstalled", "--trace-size", "1MiB", "--"]


class TracedSavingJob(SavingJob):
    """tests/jobs/filling.py, its own code traced."""

    def _spawn(self, argv: list[str], extra: dict[str, str]) -> None:
        super()._spawn([*TRACE, *argv], extra)


class TracedJob(RunningJob):
    """tests/jobs/train.py, its own code traced."""

    def _spawn(self, argv: list[str], extra: dict[str, str]) -> None:
        super()._spawn([*TRACE, *argv], extra)

    def end(self) -> None:
        super().end()
        for path in self.rings():
            path.unlink()

    def rings(self) -> list[Path]:
        """Of its ranks, in their order."""
        return rings_of(pid for _, pid in sorted(self.ranks.items()))


def rings_of(pids: Iterable[int]) -> list[Path]:
    """Those in the default place."""
    return [path for pid in pids for path in Path("/dev/shm").glob(f"{PREFIX}{pid}-*")]


@contextmanager
def thawed_at_last(pid: int) -> Iterator[None]:
    """Whatever becomes of us, this process does not stay stopped."""
    guard = subprocess.Popen(
        [sys.executable, "-c", THAW, str(pid)], stdin=subprocess.PIPE, start_new_session=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        send_signal(pid, signal.SIGCONT)
        guard.communicate()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    folder = tmp_path / "agent"
    folder.mkdir()
    config = settings(folder, stall="{timeout: 5s, init_timeout: 60s, interval: 1s}")
    with watching(folder, config) as one:
        yield one


@contextmanager
def traced(agent: RunningAgent) -> Iterator[TracedJob]:
    """A job of which the agent has met all ranks and their rings."""
    plan = Plan(world_size=RANKS)
    with folder_for(plan.user) as folder:
        job = TracedJob(plan, folder)
        try:
            job.start()
            job.wait_for_step(10)

            def met() -> bool:
                run = agent.run_of(job)
                return run is not None and len(run.traced) == RANKS

            wait_for(f"the agent to have met the rings\n{job.rings()}", met, 60)
            yield job
        finally:
            job.end()


def report_of(agent: RunningAgent, job: TracedJob) -> Report:
    """Its report, once somebody is named in it."""

    def found() -> Report | None:
        mine = [one for one in agent.reports(job) if one["diagnosis"]["culprits"]]
        return mine[-1] if mine else None

    try:
        report: Report = wait_for("the report", found, 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agent.log}\n{agent.reports()}\n{job.tail()}") from None
    return report


def check(report: Report, agent: RunningAgent, words: str) -> None:
    """Rank 1 is named, and its last calls stand in the report in all its forms."""
    assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [1]
    rank = next(one for one in report["ranks"] if one["rank"] == 1)
    assert "train.py" in rank["last_call"], rank
    assert any("train.py" in line for line in rank["trace"]), rank["trace"]
    assert words in report["diagnosis"]["summary"], report["diagnosis"]
    page = (agent.state / "reports" / report["id"] / "report.html").read_text()
    assert "Last calls of rank 1" in page


def test_a_rank_that_is_killed_tells_its_last_calls_in_the_report(agent: RunningAgent) -> None:
    with traced(agent) as job:
        os.kill(job.ranks[1], signal.SIGKILL)
        check(report_of(agent, job), agent, "SIGKILL")


@pytest.mark.smoke
def test_a_rank_that_is_stopped_tells_its_last_calls_in_the_report(
    agent: RunningAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    with traced(agent) as job, thawed_at_last(job.ranks[1]):
        os.kill(job.ranks[1], signal.SIGSTOP)
        report = report_of(agent, job)
        check(report, agent, "stopped")
        by_name = {one["rank"]: one for one in report["ranks"]}
        assert all(by_name[rank]["last_call"] for rank in range(RANKS))
        assert all(by_name[rank]["last_call_age"] >= 0.0 for rank in range(RANKS))
        assert main(["trace", "merge", *map(str, job.rings())]) == 0
        out = capsys.readouterr().out
        assert "rank 0 (pid" in out
        assert "rank 1 (pid" in out


def test_a_rank_in_state_d_tells_its_last_call_in_the_report() -> None:
    """It writes to a disk that is frozen: no signal reaches it, nothing can be asked of it, and its ring is read all the same."""
    with folder_for(User()) as folder, disk(folder, "ext4", 400 << 20) as target:
        job = TracedSavingJob(Plan(world_size=2), folder)
        with watching(folder, settings(folder) + STORAGE) as agent:
            try:
                job.start_in(target)
                wait_for("some steps", job.trains, 90)
                with frozen(target):
                    report = wait_for("the report", lambda: storage_report(agent), 90)
                    pid = report["diagnosis"]["culprits"][0]["pid"]
                    assert state_of(pid) == "D"
                rank = next(one for one in report["ranks"] if one["rank"] == 0)
                assert re.fullmatch(r"call filling\.py:\d+ save", rank["last_call"]), rank
                assert re.search(r"filling\.py:\d+ save$", rank["trace"][-1]), rank["trace"]
            finally:
                job.end()
                pids = {rank["pid"] for one in agent.reports() for rank in one["ranks"]}
                for path in rings_of(pids):
                    path.unlink()
