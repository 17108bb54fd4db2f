"""How jobs end, seen by a real agent beside real torchrun jobs: the first failing rank is named, a normal end is silent."""

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.status.snapshot import Snapshot
from processes.harness import (
    JOBS,
    SCRIPTS,
    Plan,
    RunningJob,
    User,
    send_signal,
    state_of,
    wait_for,
)
from processes.incidents.watching import Report, RunningAgent, settings, start, watching
from shared.system.own_names import own_name

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]

SOON = 30.0  # seconds from an end to its report: grace, the launcher's own second or two, a slow machine
# a job that tells no step has not made its first one where torch has written a warning into its log
STALL = "{timeout: 15s, init_timeout: 15s, interval: 1s}"


class ExitingJob(RunningJob):
    """A job of tests/jobs/ends.py."""

    def __init__(
        self,
        folder: Path,
        options: tuple[str, ...],
        torchrun: tuple[str, ...] = (),
        size: int = 2,
        user: User = User(),  # noqa: B008 - a value
    ) -> None:
        super().__init__(Plan(world_size=size, user=user), folder)
        self.options = options
        self.torchrun = torchrun

    def start(self) -> None:
        """torchrun, or the ranks by hand where `torchrun` is `("none",)`."""
        script = [str(JOBS / "ends.py"), "--events", str(self.events), *self.options]
        size = str(self.plan.world_size)
        if self.torchrun == ("none",):
            for rank in range(self.plan.world_size):
                self._spawn([sys.executable, "-u", *script], self._plain(rank, "29999"))
            return
        launcher = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", size]
        self._spawn([*launcher, *self.torchrun, *script], {})

    def go(self, attempt: int = 0) -> None:
        """Let it end; a later attempt where it is held."""
        (self.events / (f"go.{attempt}" if attempt else "go")).touch()


@contextmanager
def job(
    folder: Path,
    *options: str,
    torchrun: tuple[str, ...] = (),
    size: int = 2,
    user: User = User(),  # noqa: B008 - a value
) -> Iterator[ExitingJob]:
    """A job that waits for `go`; at the end nothing of it is left."""
    (folder / "events").mkdir(exist_ok=True)
    one = ExitingJob(folder, options, torchrun, size, user)
    try:
        one.start()
        yield one
    finally:
        one.end()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    """An agent that looks every second."""
    folder = tmp_path / "agent"
    folder.mkdir()
    with watching(folder, settings(folder, stall=STALL)) as one:
        yield one


def met(agent: RunningAgent, one: ExitingJob) -> None:
    """Wait until the agent knows all ranks, and where their output goes."""
    one.wait_for_event("started", tuple(range(one.plan.world_size)))

    def known() -> bool:
        run = agent.run_of(one)
        return run is not None and set(run.ranks.values()) == set(one.ranks.values())

    wait_for("the agent to know the job", known, 60)
    looked = agent.snapshot()
    assert looked is not None
    wait_for("one more look", lambda: (s := agent.snapshot()) and s.at > looked.at + 2.0, 30)


def report_of(
    agent: RunningAgent, one: ExitingJob, until: Callable[[Report], bool], seconds: float = SOON
) -> Report:
    """The only report on that job, when it is as wanted."""

    def found() -> Report | None:
        mine = reports(agent)
        return mine[0] if mine and until(mine[0]) else None

    try:
        report: Report = wait_for("the report", found, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agent.log}\n{agent.reports()}\n{one.tail()}") from None
    parts = ("id", "job", "trigger", "state", "diagnosis", "ranks", "timeline")
    assert len(reports(agent)) == 1, [[one[part] for part in parts] for one in reports(agent)]
    return report


def reports(agent: RunningAgent) -> list[Report]:
    """Reports on our jobs: other attempts have other pids, and another user may try these jobs on this machine, too."""
    ours = {"name": "ends.py", "user": agent.user.name or pwd.getpwuid(os.geteuid()).pw_name}
    return [report for report in agent.reports() if ours.items() <= report["job"].items()]


def is_over(report: Report) -> bool:
    return bool(report["state"] == "ended")


def blamed(report: Report) -> list[int]:
    return [culprit["rank"] for culprit in report["diagnosis"]["culprits"]]


def text_of(report: Report) -> str:
    return " ".join(event["what"] for event in report["timeline"])


# --- one rank fails ----------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_rank_with_a_traceback_is_named_with_its_last_lines(
    agent: RunningAgent, tmp_path: Path
) -> None:
    with job(tmp_path, "--way", "fail") as one:
        met(agent, one)
        one.go()
        report = report_of(agent, one, is_over)

    diagnosis = report["diagnosis"]
    assert (report["kind"], report["trigger"]) == ("abnormal_end", "exit")
    assert (diagnosis["verdict"], blamed(report)) == ("rank_exited", [1])
    assert diagnosis["confidence"] == "medium"  # the traceback bears no rank's mark
    assert "exited with code 1" in diagnosis["summary"]
    assert "ValueError: bad shard 7" in diagnosis["summary"]
    rows = {rank["rank"]: rank for rank in report["ranks"]}
    assert any("ValueError: bad shard 7" in line for line in rows[1]["log"])
    assert "SIGTERM" in rows[0]["doing"]
    snapshot = wait_for("the count of incidents", lambda: with_ends(agent), 30)
    abnormal_end_rank_exited = snapshot.last_report["abnormal_end/rank_exited"]
    assert abnormal_end_rank_exited in {
        one["id"] for one in agent.reports()
    }  # others may have failed since


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("options", "torchrun", "text", "confidence"),
    [
        (("--way", "crash", "--number", "11"), (), "killed by SIGSEGV", "high"),
        (("--way", "fail"), (), "ValueError: bad shard 7", "medium"),
        (("--way", "leave", "--gloo"), (), "left early with exit code 0", "high"),
        (("--way", "fail"), ("--max-restarts", "2"), "3 attempts failed this way", "medium"),
    ],
)
def test_an_agent_sees_how_jobs_of_its_own_user_end(
    user: User,
    folder: Path,
    options: tuple[str, ...],
    torchrun: tuple[str, ...],
    text: str,
    confidence: str,
) -> None:
    config = settings(folder, stall=STALL)
    with (
        watching(folder, config, user) as agent,
        job(folder, *options, torchrun=torchrun, user=user) as one,
    ):
        met(agent, one)
        one.go()
        report = report_of(agent, one, is_over)

    assert blamed(report) == [1]
    assert report["diagnosis"]["confidence"] == confidence
    assert text in report["diagnosis"]["summary"]


@pytest.mark.parametrize(
    ("options", "text", "confidence"),
    [
        (("--way", "crash"), "killed by SIGKILL", "high"),
        pytest.param(
            *(
                ("--way", "crash", "--number", str(signal.SIGSEGV.value)),
                "killed by SIGSEGV",
                "high",
            ),
            marks=pytest.mark.long,  # the test before has one
        ),
        (("--way", "leave", "--code", "3"), "exited with code 3", "medium"),
        (("--way", "crash", "--number", str(signal.SIGTERM.value)), "killed by SIGTERM", "high"),
    ],
)
def test_a_rank_that_dies_without_a_word_is_named_by_its_status(
    agent: RunningAgent, tmp_path: Path, options: tuple[str, ...], text: str, confidence: str
) -> None:
    with job(tmp_path, *options) as one:
        met(agent, one)
        one.go()
        report = report_of(agent, one, is_over)

    assert (report["diagnosis"]["verdict"], blamed(report)) == ("rank_exited", [1])
    assert report["diagnosis"]["confidence"] == confidence
    assert text in report["diagnosis"]["summary"]


@pytest.mark.host
@pytest.mark.skipif("CI" not in os.environ and os.geteuid() != 0, reason="makes a control group")
def test_a_rank_that_the_kernel_kills_for_its_memory_is_out_of_memory(
    user: User, folder: Path
) -> None:
    with (
        memory_group(60 << 20) as group,
        watching(folder, settings(folder, stall=STALL), user) as agent,
        job(folder, "--way", "hoard", user=user) as one,
    ):
        met(agent, one)
        Path(group, "cgroup.procs").write_text(str(one.ranks[1]))
        one.go()
        report = report_of(agent, one, is_over)

    assert (report["diagnosis"]["verdict"], blamed(report)) == ("out_of_memory", [1])
    assert report["diagnosis"]["confidence"] == "high"
    assert any("Killed process" in fact for fact in report["diagnosis"]["evidence"])


@contextmanager
def memory_group(limit: int) -> Iterator[str]:
    """A control group (version 1 or 2) with that much memory."""
    own = Path("/proc/self/cgroup").read_text().splitlines()
    paths = {line.split(":")[1]: line.split(":", 2)[2] for line in own}
    root = Path("/sys/fs/cgroup")
    base = root / "memory" / paths["memory"].strip("/") if "memory" in paths else root
    group = base / own_name()
    group.mkdir()
    name = "memory.limit_in_bytes" if "memory" in paths else "memory.max"
    (group / name).write_text(str(limit))
    try:
        yield str(group)
    finally:
        wait_for("an empty group", lambda: not (group / "cgroup.procs").read_text().strip(), 20)
        group.rmdir()


@pytest.mark.usefixtures("torch")
def test_a_rank_that_leaves_early_with_zero_is_named_and_not_its_victim(
    agent: RunningAgent, tmp_path: Path
) -> None:
    with job(tmp_path, "--way", "leave", "--gloo") as one:
        met(agent, one)
        one.go()
        report = report_of(agent, one, is_over)

    assert (report["diagnosis"]["verdict"], blamed(report)) == ("rank_exited", [1])
    assert "left early with exit code 0" in report["diagnosis"]["summary"]


@pytest.mark.usefixtures("torch")
def test_the_first_of_two_is_named_when_the_other_only_lost_its_peer(
    agent: RunningAgent, tmp_path: Path
) -> None:
    with job(tmp_path, "--way", "fail", "--gloo", torchrun=("none",), size=3) as one:
        met(agent, one)
        one.go()
        report = report_of(agent, one, is_over)

    assert (report["diagnosis"]["verdict"], blamed(report)) == ("rank_exited", [1])
    assert "bad shard 7" in report["diagnosis"]["summary"]


# --- ends that are nobody's failure --------------------------------------------------------------------


def test_a_normal_end_is_silent(agent: RunningAgent, tmp_path: Path) -> None:
    with job(tmp_path, "--others", "end") as one:
        met(agent, one)
        one.go()
        wait_for("the end", lambda: "ended: all ranks left with exit 0" in agent.log, SOON)

    assert reports(agent) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_somebody_ends_is_silent(
    agent: RunningAgent, tmp_path: Path, number: signal.Signals
) -> None:
    with job(tmp_path) as one:
        met(agent, one)
        os.kill(one.pid, number)
        wait_for("the end", lambda: "ended from outside" in agent.log, SOON)

    assert reports(agent) == []


def test_a_job_that_is_killed_with_its_launcher_is_silent(
    agent: RunningAgent, tmp_path: Path
) -> None:
    with job(tmp_path) as one:
        met(agent, one)
        one.end()
        wait_for("the end", lambda: "ended from outside" in agent.log, SOON)

    assert reports(agent) == []


# --- attempts ------------------------------------------------------------------------------------------


def test_a_crash_loop_is_one_story(agent: RunningAgent, tmp_path: Path) -> None:
    with job(tmp_path, "--way", "fail", torchrun=("--max-restarts", "2")) as one:
        met(agent, one)
        one.go()
        report = report_of(agent, one, is_over)

    assert blamed(report) == [1]
    assert "3 attempts failed this way (0, 1, 2)" in report["diagnosis"]["summary"]
    assert "attempt 2 failed" in text_of(report)
    snapshot = wait_for("the count of incidents", lambda: with_ends(agent), 30)
    assert snapshot.last_report["abnormal_end/rank_exited"] == report["id"]


def test_attempts_too_short_to_be_seen_are_told_by_the_launcher(
    agent: RunningAgent, tmp_path: Path
) -> None:
    options = ("--way", "fail", "--pause", "0")
    with job(tmp_path, *options, torchrun=("--max-restarts", "2")) as one:
        met(agent, one)
        one.go()
        report = report_of(agent, one, is_over)

    assert "3 attempts failed this way (0, 1, 2)" in report["diagnosis"]["summary"]


def test_a_restart_that_goes_on_is_one_incident_and_no_stall(
    agent: RunningAgent, tmp_path: Path
) -> None:
    options = ("--way", "fail", "--good-attempt", "1")
    with job(tmp_path, *options, torchrun=("--max-restarts", "2")) as one:
        met(agent, one)
        one.go()
        report = report_of(agent, one, lambda _: True)
        second = wait_for("the second attempt", lambda: _attempt(agent) == 1, SOON)

    assert second
    assert (report["kind"], report["state"], blamed(report)) == ("abnormal_end", "open", [1])


def _attempt(agent: RunningAgent) -> int | None:
    snapshot = agent.snapshot()
    runs = [run.attempt for run in snapshot.runs] if snapshot else []
    return max(runs, default=None)


@pytest.mark.usefixtures("torch")
def test_a_stall_that_ends_with_its_job_stays_one_incident(
    agent: RunningAgent, tmp_path: Path
) -> None:
    with job(tmp_path, "--way", "sleep", "--gloo") as one:
        met(agent, one)
        one.go()
        stalled = report_of(agent, one, lambda result: bool(result["captures"]), SOON + 20)
        os.kill(one.ranks[1], signal.SIGKILL)
        ended = report_of(agent, one, is_over)

    assert (stalled["kind"], ended["kind"], ended["id"]) == ("stall", "stall", stalled["id"])
    assert "rank 1 ended: killed by SIGKILL" in text_of(ended)


# --- the agent is restarted meanwhile ------------------------------------------------------------------


def restarted(agent: RunningAgent, one: ExitingJob) -> RunningAgent:
    """The same agent, killed and started again; it knows the job."""
    agent.process.kill()
    agent.process.wait(20)
    again = start(agent.folder, agent.config.read_text())
    agent.process = again.process  # whoever stops the first one stops this
    wait_for("the agent to know the job", lambda: agent.run_of(one), 60)
    return agent


def test_an_exit_that_an_earlier_agent_saw_is_known_after_its_restart(
    agent: RunningAgent, tmp_path: Path
) -> None:
    with job(tmp_path, "--way", "leave", torchrun=("none",), size=3) as one:
        met(agent, one)
        one.go()
        wait_for("the exit", lambda: (run := agent.run_of(one)) and run.lost == (1,), SOON)
        result = agent.run_of(one)
        assert result is not None
        assert result.exits == {1: "exit status 0"}
        restarted(agent, one)
        os.kill(one.ranks[0], signal.SIGSEGV)
        report = report_of(agent, one, lambda outcome: bool(outcome["captures"]))

    rows = {rank["rank"]: rank for rank in report["ranks"]}
    assert blamed(report) == [0]
    assert sorted(rows) == [0, 1, 2]
    assert "unknown" not in json.dumps([rows[1], report["diagnosis"]]), rows[1]
    assert "0" in rows[1]["doing"], rows[1]


def test_a_job_that_fails_and_goes_while_no_agent_is_there_is_told_all_the_same(
    agent: RunningAgent, tmp_path: Path
) -> None:
    with job(tmp_path, "--way", "leave", torchrun=("none",), size=3) as one:
        met(agent, one)
        os.kill(one.ranks[2], signal.SIGSEGV)
        wait_for("the exit", lambda: (run := agent.run_of(one)) and run.lost == (2,), SOON)
        ranks = one.ranks
        agent.process.kill()
        agent.process.wait(20)
        assert not reports(agent), "the agent was too fast for this test"
        for pid in ranks.values():
            send_signal(pid, signal.SIGKILL)
        for process in one.started:
            process.wait(20)
        agent.process = start(agent.folder, agent.config.read_text()).process
        report = report_of(agent, one, is_over)

    assert blamed(report) == [2]
    assert "SIGSEGV" in report["diagnosis"]["summary"]
    assert "nobody watched when the job ended" in json.dumps(report["gaps"])


def test_a_crash_loop_stays_one_story_over_a_restart_of_the_agent(
    agent: RunningAgent, tmp_path: Path
) -> None:
    options = ("--way", "fail", "--pause", "0", "--hold")
    with job(tmp_path, *options, torchrun=("--max-restarts", "1")) as one:
        met(agent, one)
        one.go()
        first = report_of(agent, one, lambda _: True)
        restarted(agent, one)
        assert _attempt(agent) == 1
        one.go(1)
        report = report_of(agent, one, is_over, 60)

    assert report["id"] == first["id"]
    assert blamed(report) == [1]
    assert "2 attempts failed this way (0, 1)" in report["diagnosis"]["summary"]


# --- the others live on ----------------------------------------------------------------------------------


def test_ranks_that_hang_after_one_died_belong_to_its_story(
    agent: RunningAgent, tmp_path: Path
) -> None:
    with job(tmp_path, "--way", "crash", torchrun=("none",)) as one:
        met(agent, one)
        one.go()
        report = report_of(agent, one, lambda result: bool(result["captures"]))
        rows = {rank["rank"]: rank for rank in report["ranks"]}
        started = time.monotonic()
        wait_for("the stall of the other", lambda: time.monotonic() - started > 25, 60)

        assert len(reports(agent)) == 1
        assert (report["state"], blamed(report)) == ("open", [1])
        assert rows[0]["class"] == "sleep"
        assert state_of(one.ranks[0]) == "S"
    ended = report_of(agent, one, is_over)

    assert (ended["id"], blamed(ended)) == (report["id"], [1])


@pytest.fixture
def torch() -> None:
    """Gloo needs PyTorch."""
    done = subprocess.run([sys.executable, "-c", "import torch"], check=False, capture_output=True)
    if done.returncode:
        assert "CI" not in os.environ, "CI has no PyTorch"
        pytest.skip("needs PyTorch")


def with_ends(agent: RunningAgent) -> Snapshot | None:
    """The agent's snapshot once it counts an end by an exited rank: it is of the last look and not of this moment."""
    snapshot = agent.snapshot()
    return snapshot if snapshot and snapshot.incidents.get("abnormal_end/rank_exited") else None
