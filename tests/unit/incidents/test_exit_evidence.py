"""What the witness remembers of living jobs: whose files are whose, and how many OOM kills there had been."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from mldebug.config.schema import AgentConfig, Config
from mldebug.core.model import Job, LostRank, RankIdentity
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, RankExit
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.incidents.exits import exit_evidence as module
from mldebug_agents.incidents.exits import job_notes, kernel_deaths
from mldebug_agents.incidents.exits.exit_evidence import ExitEvidence
from mldebug_agents.incidents.exits.kernel_deaths import KEPT, KernelDeathLog

WAIT = 10.0
NO_PID = (
    (1 << 22) + 1
)  # above all that the kernel gives: another process has a control group, and its count of kills
MARKED = "[rank1]: Traceback (most recent call last):\n[rank1]:   x\n[rank1]: ValueError: shard of another\n"
Start = Callable[[Path], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Processes that write to a file, and live until the test ends."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(log: Path) -> int:
        with log.open("ab") as out:
            words = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
            started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=out))
        return started[-1].pid

    yield begin
    for one in started:
        one.communicate(timeout=WAIT)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[ExitEvidence]:
    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""))) as tools:
        yield ExitEvidence(tools.capture)


def job(name: str, *pids: int) -> Job:
    ranks = tuple(
        RankIdentity(rank=rank, world_size=len(pids), pid=pid) for rank, pid in enumerate(pids)
    )
    return Job(id=name, name="train.py", launcher="environment", world_size=len(pids), ranks=ranks)


def collected(watched: ExitEvidence, one: Job) -> AttemptExit:
    return watched.collect(AttemptExit(job=one, identities=one.ranks))


def test_no_word_counts_in_a_log_that_another_run_writes_to(
    tmp_path: Path, start: Start, watched: ExitEvidence
) -> None:
    log = tmp_path / "all.log"
    first, other = (job(name, start(log), start(log)) for name in "ab")
    watched.add_job(first)
    watched.add_job(other)
    log.write_text(MARKED)
    watched.forget("b")  # it has ended, and its words are still there

    evidence = collected(watched, first)

    assert (evidence.errors, evidence.shared_error, evidence.log) == ({}, None, None)
    assert evidence.log_path == str(log)
    assert any(str(log) in gap and "another job" in gap for gap in evidence.gaps)
    assert not evidence.output_read  # so its silence means nothing


def test_attempts_that_follow_each_other_in_one_log_are_no_strangers(
    tmp_path: Path, watched: ExitEvidence
) -> None:
    log = tmp_path / "all.log"
    for name in "ab":
        with log.open("ab") as out:
            process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, stdout=out)  # fmt: skip
        one = job(name, process.pid)
        watched.add_job(one)
        process.communicate(b"\n", timeout=WAIT)
    with log.open("a") as out:
        out.write(MARKED)

    evidence = collected(watched, one)

    assert evidence.errors[0].error == "ValueError: shard of another"


def test_a_log_of_its_own_belongs_to_rank_zero_as_well(
    tmp_path: Path, start: Start, watched: ExitEvidence
) -> None:
    logs = [tmp_path / f"job{rank}.log" for rank in range(2)]
    one = job("a", *(start(log) for log in logs))
    watched.add_job(one)
    for log in logs:
        log.write_text("Traceback (most recent call last):\n  x\nKeyError: 3\n")

    evidence = collected(watched, one)

    assert evidence.shared_error is None
    assert evidence.output_read
    assert evidence.log_paths == {rank: str(log) for rank, log in enumerate(logs)}


def test_only_oom_kills_near_the_end_are_counted(
    tmp_path: Path, start: Start, watched: ExitEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter([1, 1, 2, 3, 3])
    monkeypatch.setattr(module, "oom_counter", lambda *_: "/memory.events")
    monkeypatch.setattr(job_notes, "oom_kills", lambda _: next(kills))
    one = job("a", start(tmp_path / "log"), start(tmp_path / "log"))
    for _ in range(3):
        watched.add_job(one)

    assert collected(watched, one).oom_kills == 2  # 1 at the look before the last, 3 now

    watched.add_job(Job(id="a", name="train.py", launcher="environment", ranks=one.ranks[:1], lost=(LostRank(rank=1),)))  # fmt: skip
    assert collected(watched, one).oom_kills == 2


KILL = b"3,{},1000000,-;Out of memory: Killed process {} (python) total-vm:8kB, anon-rss:4kB\n"


class Kmsg:
    """A /dev/kmsg of our own: what one read after the other gives; then nothing new."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path.write_text("")
        self.answers: list[bytes | OSError] = []
        own = SimpleNamespace(**vars(os))
        own.read = self._read
        monkeypatch.setattr(kernel_deaths, "os", own)
        self.log = KernelDeathLog(str(path))

    def _read(self, _: int, __: int) -> bytes:
        answer = self.answers.pop(0) if self.answers else BlockingIOError()
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.fixture
def kmsg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kmsg:
    monkeypatch.setattr(module, "sees_kernel_pids", lambda _: True)
    return Kmsg(tmp_path / "kmsg", monkeypatch)


def test_where_records_were_overwritten_a_kill_for_memory_is_not_ruled_out(
    tmp_path: Path, kmsg: Kmsg
) -> None:
    """All ranks and the launcher were killed at once: from outside, if only the kernel did not do it."""
    one = job("a", NO_PID, NO_PID + 1)
    exits = tuple(RankExit(rank=rank, pid=NO_PID + rank, at=9.0, moment=rank, status=signal.SIGKILL) for rank in range(2))  # fmt: skip
    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""))) as tools:
        watched = ExitEvidence(tools.capture, kmsg.log)
        watched.add_job(one)
        calm = collected(watched, one)
        kmsg.answers = [BrokenPipeError()]
        torn = collected(watched, one)
    gone = [msgspec.structs.replace(item, exits=exits, launcher_gone=True) for item in (calm, torn)]

    assert (calm.kernel_readable, torn.kernel_readable) == (True, False)
    assert [gap for gap in torn.gaps if "overwritten" in gap]
    assert not [gap for gap in torn.gaps if "CAP_SYSLOG" in gap]
    assert [judge_exit(value).kind == "outside" for value in gone] == [True, False]


def test_records_that_were_overwritten_while_all_lived_hide_nothing(
    tmp_path: Path, start: Start, kmsg: Kmsg
) -> None:
    one = job("a", start(tmp_path / "log"), start(tmp_path / "log"))
    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""))) as tools:
        watched = ExitEvidence(tools.capture, kmsg.log)
        watched.add_job(one)
        kmsg.answers = [BrokenPipeError()]
        watched.add_job(one)
        shortly = collected(watched, one)
        watched.add_job(one)
        watched.add_job(one)
        later = collected(watched, one)

    assert (shortly.kernel_readable, later.kernel_readable) == (False, True)


def test_whose_process_was_killed_is_told_to_nobody_else(tmp_path: Path, kmsg: Kmsg) -> None:
    """A rank and a worker of it; not the process of another user, whose name and size the kernel logs as well."""
    one = job("a", 100, 101)
    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""))) as tools:
        watched = ExitEvidence(tools.capture, kmsg.log)
        watched.add_job(one)
        kmsg.answers = [KILL.replace(b"{}", b"%d" % pid) for pid in (100, 7, 9999)]
        evidence = watched.collect(AttemptExit(job=one, identities=one.ranks, children={7: 1}))

    assert [death.pid for death in evidence.deaths] == [100, 7]


def test_in_a_container_the_kernel_means_other_processes(
    tmp_path: Path, kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job("a", 100, 101)
    facts = {}
    for same in (True, False):
        monkeypatch.setattr(module, "sees_kernel_pids", lambda _, same=same: same)
        with open_tools(
            Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""))
        ) as tools:
            watched = ExitEvidence(tools.capture, kmsg.log)
            watched.add_job(one)
            kmsg.answers = [KILL.replace(b"{}", b"100")]
            facts[same] = collected(watched, one)

    assert [death.pid for death in facts[True].deaths] == [100]
    assert (facts[False].deaths, facts[False].kernel_readable) == ((), False)
    assert [gap for gap in facts[False].gaps if "pid namespace" in gap]


def test_another_device_in_its_place_is_no_log_that_is_silent() -> None:
    assert not KernelDeathLog("/dev/null").readable


def test_more_deaths_than_are_remembered_are_no_whole_story(kmsg: Kmsg) -> None:
    mark = kmsg.log.mark()
    kmsg.answers = [KILL.replace(b"{}", b"%d" % (100 + number)) for number in range(KEPT)]
    assert (len(kmsg.log.since(mark)), kmsg.log.whole(mark)) == (KEPT, True)
    kmsg.answers = [KILL.replace(b"{}", b"9")]

    assert (len(kmsg.log.since(mark)), kmsg.log.whole(mark)) == (KEPT, False)
    assert kmsg.log.whole(kmsg.log.mark())
