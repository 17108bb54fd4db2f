"""Owners take turns: what one of them has many of, or makes slow, delays another's look, sample and capture by little."""

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from mldebug.jobs.owners import in_turns, owner_of
from mldebug_agents.capture.stacks.pyspy import Dump
from mldebug_agents.jobs.ranks import discovery
from mldebug_agents.system.process.details import MAX_THREADS
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.workers import Result, Worker
from shared.system.patience import PATIENCE
from unit.jobs.test_ranks import Node as Processes
from unit.jobs.test_ranks import plain
from unit.watch.test_watch import FakeTools, Node, SlowPySpy, reader, watch, world

__all__ = ["reader"]
LOW, HIGH = 1001, 1002  # users


def test_one_of_each_and_the_one_who_has_little_is_first() -> None:
    things = [(2, n) for n in range(4)] + [(1, 9)] + [(3, 7), (3, 8)]
    assert in_turns(things, lambda one: one[0]) == [
        *((1, 9), (3, 7), (2, 0)),
        *((3, 8), (2, 1)),
        *((2, 2), (2, 3)),
    ]
    assert in_turns([], lambda one: one) == []


def many(node: Node, count: int, first: int = 1000, **more: Any) -> None:
    """Jobs of another user, of one rank each."""
    for number in range(count):
        variables = world(0, 1, MASTER_PORT=30_000 + number, TORCHELASTIC_RUN_ID=f"x{number}")
        node.tree.add(first + number, 1, environ=variables, uid=HIGH, **more)


def test_samples_of_one_user_s_hundred_jobs_leave_the_other_s_its_own(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.watch.watch.SAMPLES", 2.0)
    monkeypatch.setattr("mldebug_agents.watch.watch.LOOKS", 60.0)
    node = Node(tmp_path)
    many(node, 40)
    pyspy = SlowPySpy(0.3)
    looks = watch(FakeTools(node.host(), reader, pyspy))
    jobs = looks.look().jobs
    assert len(jobs) == 41
    looks.look({one.job.id for one in jobs})
    assert pyspy.requests[0] in (100, 101, 102)  # before all those of the other user
    assert {100, 101, 102} <= set(pyspy.requests)
    assert 1 <= sum(pid >= 1000 for pid in pyspy.requests) < 40
    first = list(pyspy.requests)
    looks.look({one.job.id for one in jobs})
    again = [pid for pid in pyspy.requests[len(first) :] if pid >= 1000]
    assert again[0] not in first  # those that were left


def test_what_no_time_was_left_for_is_here_and_comes_first_the_next_time(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.watch.watch.LOOKS", 0.0)
    node = Node(tmp_path)
    many(node, 3)
    looks = watch(FakeTools(node.host(), reader))
    one = looks.look()
    assert [look.job.uid for look in one.jobs] == [0, HIGH]
    assert len(one.later) == 2
    others = [looks.look() for _ in range(2)]
    ids = {look.job.id for each in others for look in each.jobs if look.job.uid == HIGH}
    assert ids == one.later
    assert all(len(each.jobs) + len(each.later) == 4 for each in others)


def test_jobs_in_their_environment_alone_are_looked_at_last(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.watch.watch.LOOKS", 0.0)
    node = Node(tmp_path)
    for number in range(5):  # one rank of each, of a world of four, before the real one
        node.tree.add(60 + number, 50, environ=world(0, 4, MASTER_PORT=40_000 + number), uid=1003 + number, torch=False)  # fmt: skip
    looks = watch(FakeTools(node.host(), reader)).look().jobs
    assert [rank.pid for rank in looks[0].job.ranks] == [100, 101, 102]
    assert len(looks) == 6


def test_one_user_has_so_many_runs_watched_and_the_others_all_of_theirs(tmp_path: Path) -> None:
    node = Processes(tmp_path)
    node.tree.add(50, 1, "bash", exe="/bin/bash", uid=HIGH)
    for number in range(discovery.MAX_RUNS + 40):
        node.tree.add(
            5000 + number, 50, environ=plain(0, 2, MASTER_PORT=number + 1), uid=HIGH, torch=False
        )
    first = {job.id for job in node.find().jobs}
    mine = node.torchrun(100, 2, uid=LOW)
    node.tree.add(4000, 1, environ=plain(0, 2, MASTER_PORT=60_000), uid=HIGH)  # with PyTorch
    found = node.find()
    by_user = [sum(job.uid == uid for job in found.jobs) for uid in (LOW, HIGH)]
    assert by_user == [1, discovery.MAX_RUNS]
    assert [rank.pid for rank in next(job for job in found.jobs if job.uid == LOW).ranks] == mine
    assert {job.id for job in found.jobs if job.uid == HIGH} == first  # nothing comes and goes
    (remark,) = (one for one in found.remarks if one.kind == "too_many_runs")
    assert remark.message.startswith("41 more runs of user")


def test_so_many_processes_are_asked_for_pytorch_in_one_look_owners_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.jobs.ranks.registry.MOST_SEARCHES", 10)
    node = Processes(tmp_path)
    node.tree.add(50, 1, "bash", exe="/bin/bash", uid=HIGH)
    for number in range(40):
        node.tree.add(1000 + number, 50, environ=plain(0, 2, MASTER_PORT=number + 1), uid=HIGH)
    mine = node.torchrun(5000, 4, uid=LOW)
    found = node.find()
    assert all(found.programs[pid].libraries.torch for pid in mine)
    theirs = [pid for pid, one in found.programs.items() if one.libraries.torch and pid not in mine]
    assert 0 < len(theirs) <= 6
    for _ in range(8):  # a look each
        found = node.find()
    assert all(one.libraries.torch for one in found.programs.values())


@pytest.mark.parametrize(("others", "most"), [(1, 64), (0, 200)])
def test_of_one_owner_fewer_are_asked_for_pytorch_where_another_has_a_job(
    tmp_path: Path, others: int, most: int
) -> None:
    node = Processes(tmp_path)
    node.tree.add(50, 1, "bash", exe="/bin/bash", uid=HIGH)
    for number in range(200):
        node.tree.add(1000 + number, 50, environ=plain(0, 2, MASTER_PORT=number + 1), uid=HIGH, torch=False)  # fmt: skip
    if others:
        node.torchrun(5000, 4, uid=LOW)
    node.find()
    maps = [path for path in node.paths.requests if path.endswith("/maps")]
    assert sum(1000 <= int(path.split("/")[-2]) < 1200 for path in maps) == most
    assert len(maps) == most + 4 * others


def test_odd_things_of_a_thousand_processes_are_a_few_remarks(tmp_path: Path) -> None:
    node = Processes(tmp_path)
    for number in range(1000):
        node.tree.add(1000 + number, 1, environ=plain(0, 2))
    assert len(node.find().remarks) == discovery.MAX_REMARKS


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_capture_of_one_user_does_not_wait_for_the_other_s_fifty(held: threading.Event) -> None:
    """They were taken in the order in which they came: the 51st came twenty seconds late."""
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()

    def take(order: Any) -> str:
        if order.job.uid == HIGH:
            held.wait(30)
        return str(order.job.uid)

    worker = Worker("capture", take, inbox, 60.0, 4, owner_key=lambda order: owner_of(order.job))
    job = lambda uid: SimpleNamespace(job=SimpleNamespace(uid=uid, ranks=()))
    for _ in range(50):
        assert worker.order(job(HIGH))
    assert worker.order(job(LOW))
    result = inbox.get(timeout=20)
    assert result is not None
    assert result.value == str(LOW)


def test_a_process_with_thousands_of_threads_costs_as_much_as_one_with_some(tmp_path: Path) -> None:

    node = Node(tmp_path)
    task = tmp_path / "proc" / "100" / "task"
    own = task / "100"
    assert own.is_dir()
    for tid in range(20_000, 20_000 + 2 * MAX_THREADS):
        (task / str(tid)).symlink_to(own)
    begun = time.process_time()
    state = node.host().process_state(100)
    assert time.process_time() - begun < 5
    assert state is not None
    assert len(state.threads) == MAX_THREADS


class EndlessForOne(SlowPySpy):
    """The ranks of the other user keep it for as long as it may take."""

    def dump(self, pid: int, *, timeout: float) -> Dump:
        """Quick, but for them."""
        if pid >= 1000:
            time.sleep(timeout)
        return super().dump(pid, timeout=timeout)


def test_one_job_whose_stacks_take_all_the_time_leaves_another_user_s_two_jobs_theirs(
    tmp_path: Path, reader: Reader
) -> None:
    """Who has the fewest jobs is first, and his one job used up the time of all, in every look."""
    node = Node(tmp_path)
    many(node, 1)
    node.tree.add(70, 1, environ=world(0, 1, MASTER_PORT=31_000, TORCHELASTIC_RUN_ID="own"))
    pyspy = EndlessForOne(0.05)
    looks = watch(FakeTools(node.host(), reader, pyspy))
    jobs = looks.look().jobs
    assert sorted(one.job.uid for one in jobs) == [0, 0, HIGH]
    begun = time.monotonic()
    looks.look({one.job.id for one in jobs})
    assert {70, 100, 101, 102, 1000} <= set(pyspy.requests)
    assert time.monotonic() - begun < 5 * PATIENCE


def test_a_run_of_a_thousand_false_ranks_is_not_watched_and_said_to_be_so(tmp_path: Path) -> None:
    """A look at 1,500 ranks took 9 s on a busy node, in which nobody else's job was looked at."""
    node = Processes(tmp_path)
    node.tree.add(50, 1, "bash", exe="/bin/bash", uid=HIGH)
    size = discovery.MAX_RANKS + 1
    for number in range(size):
        node.tree.add(5000 + number, 50, environ=plain(number, size), uid=HIGH, torch=False)
    small = node.torchrun(100, 2, uid=HIGH)
    mine = node.torchrun(200, 2, uid=LOW)
    found = node.find()
    assert sorted([rank.pid for rank in job.ranks] for job in found.jobs) == [small, mine]
    (remark,) = (one for one in found.remarks if one.kind == "too_many_runs")
    assert remark.message.startswith("1 more runs of user")


def test_whose_jobs_are_slow_to_look_at_is_left_out_of_some_looks(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.watch.watch.ALLOWANCE", 0.1)
    node = Node(tmp_path)
    many(node, 1)
    looks = watch(FakeTools(node.host(), reader))
    quick = looks._look

    def slow(job: Any, *rest: Any, **more: Any) -> Any:
        time.sleep(0.35 if job.uid == HIGH else 0)
        return quick(job, *rest, **more)

    monkeypatch.setattr(looks, "_look", slow)
    rounds = [{one.job.uid for one in looks.look().jobs} for _ in range(8)]
    assert all(0 in looked for looked in rounds)
    assert 1 <= sum(HIGH in looked for looked in rounds) <= 4


def test_stacks_that_are_wanted_of_who_is_left_out_are_read_when_it_is_looked_at_again(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were wanted after each look at it, and the next look was always without it: its stacks were never read."""
    monkeypatch.setattr("mldebug_agents.watch.watch.ALLOWANCE", 0.1)
    node = Node(tmp_path)
    many(node, 1)
    pyspy = SlowPySpy(0.0)
    looks = watch(FakeTools(node.host(), reader, pyspy))
    quick = looks._look

    def slow(job: Any, *rest: Any, **more: Any) -> Any:
        time.sleep(0.35 if job.uid == HIGH else 0)
        return quick(job, *rest, **more)

    monkeypatch.setattr(looks, "_look", slow)
    looked: set[str] = set()
    for _ in range(8):  # as the main loop asks: for the stacks of whom it has just judged
        looked = {one.job.id for one in looks.look(looked).jobs}
    assert 1000 in pyspy.requests


def test_a_job_in_its_environment_alone_has_its_look_where_another_user_s_take_all_the_time(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of a run on several nodes whose libraries may not be read is one: it was never looked at."""
    monkeypatch.setattr("mldebug_agents.watch.watch.LOOKS", 0.0)
    node = Node(tmp_path)
    for number in range(3):
        node.tree.add(70 + number, 1, environ=world(0, 1, MASTER_PORT=31_000 + number))
    node.tree.add(60, 50, environ=world(0, 4, MASTER_PORT=40_000), uid=HIGH, torch=False)
    looks = watch(FakeTools(node.host(), reader))
    assert all(HIGH in {one.job.uid for one in looks.look().jobs} for _ in range(3))


def test_what_is_left_of_a_share_is_no_sample_of_another_job(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of one user: the first took nearly all of his share in each look, and the second's stacks had no time to be read."""
    monkeypatch.setattr("mldebug_agents.watch.watch.SAMPLES", 1.0)
    monkeypatch.setattr("mldebug_agents.watch.watch.LOOKS", 60.0)
    node = Node(tmp_path)
    node.tree.add(70, 1, environ=world(0, 1, MASTER_PORT=31_000, TORCHELASTIC_RUN_ID="own"))
    many(node, 1)
    times: list[tuple[int, float]] = []

    class NearlyAll(SlowPySpy):
        """Each dump takes nine tenths of the share."""

        def dump(self, pid: int, *, timeout: float) -> Dump:
            times.append((pid, timeout))
            return super().dump(pid, timeout=timeout)

    looks = watch(FakeTools(node.host(), reader, NearlyAll(0.9)))
    jobs = {one.job.id for one in looks.look().jobs if one.job.uid == 0}
    for _ in range(4):
        looks.look(jobs)
    assert {70, 100} <= {pid for pid, timeout in times if timeout >= 0.9}


def test_who_has_many_suspected_jobs_takes_no_more_of_a_look_than_one_of_them_needs(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of stalls used its whole share of the time for stacks in each look, so that the other's next look came a second late."""
    monkeypatch.setattr("mldebug_agents.watch.watch.LOOKS", 60.0)
    node = Node(tmp_path)
    many(node, 30)
    pyspy = SlowPySpy(0.3)
    looks = watch(FakeTools(node.host(), reader, pyspy))
    jobs = {one.job.id for one in looks.look().jobs}
    for turn in range(1, 4):  # a look each, and no job of his twice
        looks.look(jobs)
        theirs = [pid for pid in pyspy.requests if pid >= 1000]
        assert len(theirs) == len(set(theirs)) == turn
    assert {100, 101, 102} <= set(pyspy.requests)


@pytest.mark.parametrize(
    ("crowd", "interval", "turns"),
    [(30, 0.0, 2), (30, 60.0, 6), (4, 0.0, 6)],
    ids=["slow looks", "looks are quick enough", "a few jobs are no crowd"],
)
def test_a_crowd_of_suspected_jobs_waits_in_two_of_three_slow_looks(
    tmp_path: Path,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    crowd: int,
    interval: float,
    turns: int,
) -> None:
    """At a load of 20 the stacks of one job of the flood took as long as the rest of the look, in each look."""
    monkeypatch.setattr("mldebug_agents.watch.watch.LOOKS", 60.0)
    node = Node(tmp_path)
    many(node, crowd)
    pyspy = SlowPySpy(0.3)
    looks = watch(FakeTools(node.host(), reader, pyspy))
    config = looks.tools.context.config
    monkeypatch.setattr(looks.tools.context, "config", replace(config, stall=replace(config.stall, interval=interval)))  # fmt: skip
    jobs = {one.job.id for one in looks.look().jobs}
    for _ in range(6):
        looks.look(jobs)
    assert sum(pid >= 1000 for pid in pyspy.requests) == turns
    assert pyspy.requests.count(100) == 6


def test_a_look_that_took_very_long_once_leaves_its_user_out_of_a_few(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that was held for a minute left the user whose turn it was out of the next thirty looks."""
    monkeypatch.setattr("mldebug_agents.watch.watch.ALLOWANCE", 0.1)
    monkeypatch.setattr("mldebug_agents.watch.watch.MOST_DEBT", 0.5, raising=False)
    node = Node(tmp_path)
    many(node, 1)
    looks = watch(FakeTools(node.host(), reader))
    quick, held = looks._look, [2.0]

    def slow(job: Any, *rest: Any, **more: Any) -> Any:
        time.sleep(held.pop() if job.uid == HIGH and held else 0)
        return quick(job, *rest, **more)

    monkeypatch.setattr(looks, "_look", slow)
    rounds = [HIGH in {one.job.uid for one in looks.look().jobs} for _ in range(8)]
    assert not all(rounds)
    assert rounds[-1]
