"""What the witness remembers of living jobs: whose files are whose, and how many OOM kills there had been."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mldebug.config import Agent, Config
from mldebug.endings.facts import Ending
from mldebug.model import Job, LostRank, RankIdentity
from mldebug_agents.exits import notes
from mldebug_agents.exits import witness as module
from mldebug_agents.exits.witness import Witness
from mldebug_agents.workbench import Workbench

WAIT = 10.0
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
def watched(tmp_path: Path) -> Iterator[Witness]:
    with Workbench(Config(agent=Agent(state_dir=tmp_path / "state", listen=""))) as bench:
        yield Witness(bench)


def job(name: str, *pids: int) -> Job:
    ranks = tuple(
        RankIdentity(rank=rank, world_size=len(pids), pid=pid) for rank, pid in enumerate(pids)
    )
    return Job(id=name, name="train.py", launcher="environment", world_size=len(pids), ranks=ranks)


def asked(watched: Witness, one: Job) -> Ending:
    return watched.ask(Ending(job=one, identities=one.ranks))


def test_no_word_counts_in_a_log_that_another_run_writes_to(
    tmp_path: Path, start: Start, watched: Witness
) -> None:
    log = tmp_path / "all.log"
    first, other = (job(name, start(log), start(log)) for name in "ab")
    watched.meet(first)
    watched.meet(other)
    log.write_text(MARKED)
    watched.forget("b")  # it has ended, and its words are still there

    told = asked(watched, first)

    assert (told.errors, told.shared_error, told.log) == ({}, None, None)
    assert told.log_path == str(log)
    assert any(str(log) in gap and "another job" in gap for gap in told.gaps)


def test_attempts_that_follow_each_other_in_one_log_are_no_strangers(
    tmp_path: Path, watched: Witness
) -> None:
    log = tmp_path / "all.log"
    for name in "ab":
        with log.open("ab") as out:
            process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, stdout=out)  # fmt: skip
        one = job(name, process.pid)
        watched.meet(one)
        process.communicate(b"\n", timeout=WAIT)
    with log.open("a") as out:
        out.write(MARKED)

    told = asked(watched, one)

    assert told.errors[0].error == "ValueError: shard of another"


def test_a_log_of_its_own_belongs_to_rank_zero_as_well(
    tmp_path: Path, start: Start, watched: Witness
) -> None:
    logs = [tmp_path / f"job{rank}.log" for rank in range(2)]
    one = job("a", *(start(log) for log in logs))
    watched.meet(one)
    for log in logs:
        log.write_text("Traceback (most recent call last):\n  x\nKeyError: 3\n")

    told = asked(watched, one)

    assert told.shared_error is None
    assert told.log_paths == {rank: str(log) for rank, log in enumerate(logs)}


def test_only_oom_kills_near_the_end_are_counted(
    tmp_path: Path, start: Start, watched: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter([1, 1, 2, 3, 3])
    monkeypatch.setattr(module, "oom_counter", lambda *_: "/memory.events")
    monkeypatch.setattr(notes, "oom_kills", lambda _: next(kills))
    one = job("a", start(tmp_path / "log"), start(tmp_path / "log"))
    for _ in range(3):
        watched.meet(one)

    assert asked(watched, one).oom_kills == 2  # 1 at the look before the last, 3 now

    watched.meet(Job(id="a", name="train.py", launcher="environment", ranks=one.ranks[:1], lost=(LostRank(rank=1),)))  # fmt: skip
    assert asked(watched, one).oom_kills == 2
