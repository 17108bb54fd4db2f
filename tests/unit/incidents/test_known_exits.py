"""What is known of exits survives a restart of the agent, and the attempts of one launch stay one story."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mldebug.core.model import Job, LostRank, NodeCapture, RankIdentity
from mldebug.core.report_model import Report
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import (
    AttemptExit,
    KnownExits,
    LauncherWords,
    RankError,
    RankExit,
)
from mldebug.incidents.incident import Incident
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook
from mldebug_agents.agent.recovery import Recovery
from mldebug_agents.incidents.exits.array_failures import (
    MAX_STORED,
    ArrayFailure,
    ArrayFailures,
)
from mldebug_agents.incidents.exits.attempt import GRACE, WatchedAttempt
from mldebug_agents.incidents.exits.exit_tracker import ExitTracker
from mldebug_agents.incidents.exits.failed_attempts import FailedAttempts
from mldebug_agents.incidents.exits.known_exits import (
    MAX_RANKS,
    joined_exits,
    known_exits_of,
    launcher_lives,
    past,
    with_exits,
)
from mldebug_agents.incidents.exits.pidfds import ProcessExit
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.state.run_row import RunRow
from mldebug_agents.system.host import Host
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run

RANKS = tuple(
    RankIdentity(rank=rank, world_size=3, pid=100 + rank, start_ticks=50 + rank, argv=("python",))
    for rank in range(3)
)
LEFT = RankExit(rank=1, pid=101, at=5.0, moment=7, status=0, source="exit status of the process")


def job(*ranks: int, attempt: int = 0, job_id: str = "job", launcher: int | None = 9) -> Job:
    return Job(
        id=job_id,
        name="train.py",
        launcher="torchrun",
        launcher_pid=launcher,
        attempt=attempt,
        ranks=tuple(RANKS[rank] for rank in ranks),
    )


def run(*ranks: int, attempt: int = 0, job_id: str = "job") -> Run:
    return Run(job(*ranks, attempt=attempt, job_id=job_id), StallWatch(StallSettings()))


def ends(*exits: RankExit) -> KnownExits:
    return known_exits_of({one.rank: one for one in RANKS}, {one.rank: one for one in exits})


def test_words_for_exits_leave_out_who_was_not_seen_to_end() -> None:
    following = WatchedAttempt(run(0))
    following.recall(ends(LEFT, RankExit(rank=2, pid=102, moment=8, status=9)))
    assert following.exit_words() == {1: "exit status 0", 2: "killed by SIGKILL (9)"}
    following.recall(ends(LEFT))
    unseen = WatchedAttempt(run(0, 1))
    unseen.recall(ends())
    assert 2 in unseen.exits
    assert unseen.exit_words() == {}


def test_where_a_young_job_writes_to_is_looked_at_again_soon() -> None:
    one = WatchedAttempt(run(0))
    assert one.wants_notes(one.found_at)
    one.noted_at = one.found_at
    assert not one.wants_notes(one.found_at + 2.9)
    assert one.wants_notes(one.found_at + 3.0)
    one.noted_at = one.found_at + 100.0
    assert not one.wants_notes(one.found_at + 129.0)
    assert one.wants_notes(one.found_at + 130.0)


# --- what is kept ---------------------------------------------------------------------------------------


def test_exits_of_an_earlier_agent_keep_their_order_and_lie_before_all_new_ones() -> None:
    exits = [LEFT, RankExit(rank=0, pid=100, moment=3, status=9), RankExit(rank=2, pid=102)]
    moments = {one.rank: one.moment for one in past(exits)}
    assert moments[2] is None
    assert moments[0] is not None
    assert moments[1] is not None
    assert moments[0] < moments[1] < 0


def test_what_is_kept_is_bounded_and_has_those_that_ended() -> None:
    many = {rank: msgspec.structs.replace(RANKS[0], rank=rank) for rank in range(MAX_RANKS + 500)}
    last = MAX_RANKS + 499
    kept = known_exits_of(many, {last: RankExit(rank=last, pid=1)})
    assert len(kept.identities) == MAX_RANKS
    assert kept.identities[0].rank == last
    assert [one.rank for one in kept.exits] == [last]
    assert not any(one.argv for one in kept.identities)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=KnownExits) == kept


def test_a_rank_whose_exit_is_known_is_not_missing() -> None:
    look = RunLook(at=0.0, run="job", missing=(1,))
    changed = msgspec.structs.replace(job(0, 2), lost=(LostRank(rank=1),))
    result, after = with_exits(changed, look, {1: LEFT})
    assert result.lost == (LostRank(rank=1, pid=101, exit_status=0, reason="exit code 0"),)
    assert (after.missing, after.exited) == ((), (1,))
    unseen, _ = with_exits(job(0, 2), look, {1: LEFT})
    assert unseen.lost == result.lost, "discovery does not know of a rank that it never saw"
    alive, _ = with_exits(job(0, 1, 2), look, {1: LEFT})
    assert alive.lost == ()


def test_the_status_of_a_zombie_is_not_replaced() -> None:
    zombie = LostRank(rank=1, pid=101, exit_status=9, reason="killed")
    changed = msgspec.structs.replace(job(0, 2), lost=(zombie,))
    result, _ = with_exits(changed, RunLook(at=0.0, run="job"), {1: RankExit(rank=1, pid=101)})
    assert result.lost == (zombie,)


# --- who follows ----------------------------------------------------------------------------------------


def test_an_exit_from_before_the_restart_is_no_unknown_one() -> None:
    again = WatchedAttempt(run(0, 2))
    again.recall(ends(LEFT))
    again.over_at = 0.0
    exits = {one.rank: one for one in again.as_exit().exits}
    assert (exits[1].status, exits[1].source) == (0, "exit status of the process")
    assert [one.rank for one in again.as_exit().identities] == [0, 1, 2]


def test_all_that_left_with_zero_before_and_after_is_a_normal_end() -> None:
    again = WatchedAttempt(run(0, 2))
    again.recall(ends(LEFT))
    assert not again.normal
    for rank in (0, 2):
        again.exits[rank] = RankExit(rank=rank, pid=100 + rank, moment=rank + 1, status=0)
    assert again.normal


def test_a_failure_that_nobody_judged_before_the_restart_is_judged_after_it() -> None:
    failed = msgspec.structs.replace(LEFT, status=1 << 8)
    again = WatchedAttempt(run(0, 2))
    again.recall(ends(failed))
    assert again.failing_at is not None
    assert again.due(again.failing_at + GRACE)
    done = run(0, 2)
    done.incident = Incident(
        id="x", key="k", job_id="job", detected_at=1.0, kind="abnormal_end", exit=AttemptExit(job=done.job)
    )  # fmt: skip
    quiet = WatchedAttempt(done)
    quiet.recall(ends(failed))
    assert quiet.failing_at is None, "it has its incident"


def test_who_went_while_no_agent_watched_is_an_exit_unknown_and_no_living_rank() -> None:
    again = WatchedAttempt(run(0))
    again.recall(ends(LEFT))
    exits = {one.rank: one for one in again.as_exit().exits}
    assert exits[2].status is None
    assert again.as_exit().living == (0,)


def test_the_early_leaver_is_named_when_its_victims_fail_after_a_restart() -> None:
    again = WatchedAttempt(run(0, 2))
    again.recall(ends(LEFT))
    again.exits[0] = RankExit(rank=0, pid=100, at=8.0, moment=1, status=1 << 8)
    peer = RankError(error="RuntimeError: Connection closed by peer", blames_peer=True)
    ending = msgspec.structs.replace(again.as_exit(), errors={0: peer})
    finding = judge_exit(ending).finding
    assert finding is not None
    assert [culprit.rank for culprit in finding.culprits] == [1]


def test_words_that_only_the_first_agent_could_read_are_not_lost() -> None:
    error = RankError(error="ValueError: bad shard 7")
    first = AttemptExit(
        job=job(0), words=LauncherWords(ended=(4,)), errors={1: error}, log_path="/log"
    )
    second = AttemptExit(job=job(0), words=LauncherWords(ended=(5,), outside="signal 15"))
    result = joined_exits(first, second)
    assert (result.errors, result.log_path) == ({1: error}, "/log")
    assert (result.words.ended, result.words.outside) == ((4, 5), "signal 15")


# --- a launcher between two attempts --------------------------------------------------------------------


def test_a_launcher_is_known_by_its_age() -> None:
    host, me = Host(), os.getpid()
    mine = host.brief(me)
    assert mine is not None

    def ending(start: int, pid: int = me, *, boot: float = 0.0, gone: bool = False) -> AttemptExit:
        rank = msgspec.structs.replace(
            RANKS[0], start_ticks=start, started_at=host.started_at(start) - boot
        )
        launched = job(0, launcher=pid)
        return AttemptExit(job=launched, identities=(rank,), launcher_pid=pid, launcher_gone=gone)

    assert launcher_lives(host, ending(mine.start_ticks + 1))
    assert not launcher_lives(host, ending(mine.start_ticks - 1)), "somebody else has its number"
    assert not launcher_lives(host, ending(mine.start_ticks + 1, boot=3600.0)), "before a reboot"
    assert launcher_lives(host, ending(mine.start_ticks + 1, boot=3600.0), same_boot=True)
    assert not launcher_lives(host, ending(mine.start_ticks + 1), same_boot=False)
    assert not launcher_lives(host, ending(mine.start_ticks + 1, pid=2**22 + 1))
    assert not launcher_lives(host, ending(mine.start_ticks + 1, gone=True))


class Books:
    """Stands in for the ledger."""

    opened = True

    def __init__(self, rows: dict[str, RunRow] | None = None) -> None:
        self.rows = dict(rows or {})
        self.stored: dict[str, bytes] = {}
        self.kept: list[str] = []
        self.reports: list[Report] = []
        self.archive = self

    def memo(self, name: str) -> bytes:
        return self.stored.get(name, b"")

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(name for name in self.stored if name.startswith(beginning))

    def remember(self, name: str, data: bytes) -> None:
        self.stored[name] = data
        if not data:
            del self.stored[name]

    def keep(self, job_id: str, memory: object, incident: Incident | None) -> None:
        self.kept.append(job_id)
        self.rows[job_id] = RunRow(memory=memory, incident=incident)  # type: ignore[arg-type]

    def forget(self, job_id: str) -> None:
        self.rows.pop(job_id, None)

    def forget_others(self, present: object) -> None:
        """No ends without a row here."""

    def found(self) -> dict[str, RunRow]:
        return dict(self.rows)

    def report(self, report_id: str, work: Callable[[], None], *_: object) -> None:
        work()

    def save(self, report: Report, html: str, evidence: object, owner_uid: int = 0) -> None:
        self.reports.append(report)

    def prune(self) -> None:
        """Nothing is too old."""


class Teller:
    """An agent's books of incidents and stories."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.incidents = IncidentManager(books)  # type: ignore[arg-type]
        self.stories = FailedAttempts(self.incidents, lambda _: None, books.forget, books)

    def fail(self, attempt: int, message: str = "bad shard 7") -> Run:
        one = run(attempt=attempt, job_id=f"job-{attempt}")
        error = RankError(error=f"ValueError: {message}")
        exits = (msgspec.structs.replace(LEFT, status=1 << 8),)
        ending = AttemptExit(job=one.job, identities=RANKS, exits=exits, errors={1: error})
        self.stories.failed(one, ending, judge_exit(ending), final=False)
        self.stories.done(one)
        return one

    def settle(self) -> None:
        self.incidents.close_orphans((), self.stories.recall)


def test_no_story_is_kept_of_a_job_without_a_launcher_when_it_is_over() -> None:
    teller = Teller(Books())
    for number in range(3):
        one = Run(job(0, 1, 2, job_id=f"lone-{number}", launcher=None), StallWatch(StallSettings()))
        ending = AttemptExit(
            job=one.job, identities=RANKS, exits=(msgspec.structs.replace(LEFT, status=9),)
        )
        teller.stories.failed(one, ending, judge_exit(ending), final=True)
        teller.stories.done(one)
    assert teller.books.reports[-1].state == "ended"
    assert not teller.books.rows
    assert not teller.stories._by_launch


# --- jobs that one script starts, side by side ------------------------------------------------------------


def sibling(name: str, *ranks: int, master: str = "") -> Run:
    """A job of a sweep script, whose pid all its jobs have in common."""
    ours = tuple(msgspec.structs.replace(RANKS[rank], master=master or name) for rank in ranks)
    one = Job(id=name, name="train.py", launcher="environment", launcher_pid=9, ranks=ours)
    return Run(one, StallWatch(StallSettings()))


def lose(teller: Teller, one: Run, message: str, living: tuple[int, ...] = ()) -> None:
    exits = (msgspec.structs.replace(LEFT, status=1 << 8),)
    errors = {1: RankError(error=f"ValueError: {message}")}
    ending = AttemptExit(
        job=one.job, identities=one.job.ranks, exits=exits, errors=errors, living=living
    )
    teller.stories.failed(one, ending, judge_exit(ending), final=not living)


@pytest.mark.parametrize("master", ["", "the same"], ids=["own master", "one master"])
def test_another_job_of_the_same_script_does_not_end_a_story(master: str) -> None:
    teller = Teller(Books())
    hung, failed = sibling("a", 0, 1, 2, master=master), sibling("b", 0, 1, 2, master=master)
    lose(teller, hung, "bad shard 7", living=(0, 2))
    lose(teller, failed, "no file")
    teller.stories.done(failed)
    states = {one.id: one.state for one in teller.books.reports}
    assert list(states.values()) == ["open", "ended"]


@pytest.mark.parametrize("master", ["", "the same"], ids=["own master", "one master"])
def test_another_job_of_the_same_script_does_not_close_a_story_well(master: str) -> None:
    teller = Teller(Books())
    hung, steps = sibling("a", 0, 1, 2, master=master), sibling("b", 0, 1, master=master)
    lose(teller, hung, "bad shard 7", living=(0, 2))
    teller.stories._came["b"] = (-1e9, None)  # it has lived for long
    teller.stories.goes_on(steps)
    assert [one.state for one in teller.books.reports] == ["open"]


def test_a_crash_loop_of_torchrun_is_one_story_though_its_last_attempt_seems_to_live() -> None:
    """On a busy machine both are judged at once; torchrun has no two attempts at a time."""
    teller = Teller(Books())
    first, second = run(0, 1, 2, job_id="job-0"), run(0, 1, 2, attempt=1, job_id="job-1")
    lose(teller, first, "bad shard 7", living=(0,))
    lose(teller, second, "bad shard 7")
    teller.stories.done(first)
    teller.stories.done(second)
    assert len({one.id for one in teller.books.reports}) == 1


@pytest.mark.parametrize(
    ("status", "number"), [(None, 1), (2 << 8, 2)], ids=["unknown", "another status"]
)
def test_an_attempt_too_short_to_be_seen_well_failed_in_no_other_way(status: int | None, number: int) -> None:  # fmt: skip
    """On a busy machine its processes are gone before anybody holds them."""
    teller = Teller(Books())
    first, second = run(0, 1, 2, job_id="job-0"), run(0, attempt=1, job_id="job-1")
    lose(teller, first, "bad shard 7")
    teller.stories.done(first)
    exits = (RankExit(rank=0, pid=100, status=status),)
    ending = AttemptExit(job=second.job, identities=RANKS, exits=exits)
    teller.stories.failed(second, ending, judge_exit(ending), final=False)
    teller.stories.done(second)
    assert len({one.id for one in teller.books.reports}) == number
    lose(teller, run(0, 1, 2, attempt=2, job_id="job-2"), "bad shard 7")
    assert len({one.id for one in teller.books.reports}) == 2 * number - 1


def test_a_loop_of_a_shell_is_one_story() -> None:
    teller = Teller(Books())
    for attempt in range(3):
        one = sibling(f"job-{attempt}", 0, 1, 2, master="node1:29500")
        lose(teller, one, "bad shard 7")
        teller.stories.done(one)
    assert len({one.id for one in teller.books.reports}) == 1


# --- tasks of an array, and a script that is started again and again --------------------------------------


def task(number: int, *, uid: int = 0, script: str = "train.py", array: str = "") -> Run:
    """A task of a job array, or one of many runs: a launcher, ranks and a run id of its own."""
    ours = tuple(msgspec.structs.replace(one, run_id=f"4711_{number}", script=script, pid=one.pid + 100 * number, array=array) for one in RANKS)  # fmt: skip
    one = Job(id=f"task-{number}", name=script, launcher="torchrun", launcher_pid=100 + number, uid=uid, ranks=ours)  # fmt: skip
    return Run(one, StallWatch(StallSettings()))


@pytest.mark.parametrize("order", ["one after the other", "at once"])
def test_tasks_of_an_array_that_fail_alike_share_one_incident(order: str) -> None:
    teller = Teller(Books())
    tasks = [task(number, array="4711") for number in range(8)]
    for one in tasks:
        teller.stories.goes_on(one)
    failed = [tasks[number] for number in (0, 2, 3, 5, 7)]
    for one in failed:
        lose(teller, one, f"bad shard {one.job.id}")
        if order == "one after the other":
            teller.stories.done(one)
            teller.stories.launcher_ended(one.job.launcher_pid or 0)
    for one in failed if order == "at once" else ():
        teller.stories.done(one)
        teller.stories.launcher_ended(one.job.launcher_pid or 0)
    assert len({one.id for one in teller.books.reports}) == 1
    last = teller.books.reports[-1]
    assert last.state == "ended"
    assert "5 of 8 runs of this script failed the same way within an hour" in last.diagnosis.summary
    again = [one.what for one in last.timeline if "another run failed the same way" in one.what]
    assert len(again) == 4
    assert len([row for row in teller.books.rows.values() if row.incident is not None]) <= 1


def test_what_is_no_part_of_the_array_or_failed_otherwise_has_its_own_incident() -> None:
    """Controls: another array, user, script or container, another failure, a task of which ranks live, one long ago."""
    first = task(0, array="4711")
    elsewhere = task(7, array="4711")
    contained = tuple(msgspec.structs.replace(one, container="c1") for one in elsewhere.job.ranks)
    elsewhere.job = msgspec.structs.replace(elsewhere.job, ranks=contained)
    others = [
        task(1, array="4712"),
        task(2, array="4711", uid=7),
        task(3, array="4711", script="other.py"),
        task(4),
        elsewhere,
    ]
    teller = Teller(Books())
    for one in (first, *others):
        lose(teller, one, "bad shard 7")
        teller.stories.done(one)
    assert len({one.id for one in teller.books.reports}) == 6
    lose(teller, task(8, array="4711"), "no such optimizer")
    assert len({one.id for one in teller.books.reports}) == 7
    living = task(9, array="4713")
    lose(teller, living, "bad shard 7", living=(0, 2))
    lose(teller, task(10, array="4713"), "bad shard 7")
    assert len({one.id for one in teller.books.reports}) == 9
    old = task(11, array="4714")
    lose(teller, old, "bad shard 7")
    for story in teller.stories._by_array.values():
        story.failed_at -= 3601.0
    lose(teller, task(12, array="4714"), "bad shard 7")
    assert len({one.id for one in teller.books.reports}) == 11


def test_after_a_restart_the_next_task_of_an_array_continues_the_incident() -> None:
    """Though its story had ended: the report of the earlier tasks is written on, under its id."""
    books = Books()
    for number in range(3):
        teller = Teller(books)
        teller.settle()
        one = task(number, array="4711")
        teller.stories.goes_on(task(9))  # lives through all of it
        lose(teller, one, f"bad shard {number}")
        teller.stories.done(one)
        teller.stories.launcher_ended(one.job.launcher_pid or 0)
        assert books.reports[-1].state == "ended"
    assert len({one.id for one in books.reports}) == 1
    again = [one.what for one in books.reports[-1].timeline if "another run failed" in one.what]
    assert len(again) == 2
    assert "3 of 4 runs of this script failed the same way" in books.reports[-1].diagnosis.summary


@pytest.mark.parametrize("otherwise", ["array", "failure", "long ago", "lives"])
def test_after_a_restart_nothing_else_is_continued(otherwise: str) -> None:
    """Controls: another array, another failure, a failure of more than an hour ago, a task of which ranks still live."""
    books = Books()
    first = Teller(books)
    lose(first, task(0, array="4711"), "bad shard 7", living=(0, 2) if otherwise == "lives" else ())
    if otherwise == "long ago":
        (name,) = books.memos("array/")
        story = msgspec.json.decode(books.memo(name), type=ArrayFailure)
        old = msgspec.structs.replace(story, failed_at=story.failed_at - 3601)
        books.remember(name, msgspec.json.encode(old))
    teller = Teller(books)
    array = "4712" if otherwise == "array" else "4711"
    lose(teller, task(1, array=array), "no memory" if otherwise == "failure" else "bad shard 7")
    assert len({one.id for one in books.reports}) == 2


def test_stored_arrays_are_bounded() -> None:
    """By number, by age and by size, and what is no story is none."""
    books = Books()
    stories = ArrayFailures(books)  # type: ignore[arg-type]
    incident = Incident(id="i", key="k", job_id="j", detected_at=1.0)
    for number in range(MAX_STORED + 8):
        stories.remember(f"array {number}", ArrayFailure("sign", 100.0 + number, incident))
    assert len(books.stored) == MAX_STORED
    assert stories.recent("array 0", "sign", 200.0) is None
    newest = stories.recent(f"array {MAX_STORED + 7}", "sign", 200.0)
    assert newest is not None
    assert newest.incident == incident
    large = msgspec.structs.replace(incident, sentence="x", captures=(NodeCapture(node="n" * (1 << 20), taken_at=1.0, job=task(0).job, ranks=()),))  # fmt: skip
    stories.remember("large", ArrayFailure("sign", 300.0, large))
    kept = stories.recent("large", "sign", 300.0)
    assert kept is not None
    assert (kept.incident.sentence, kept.incident.captures) == ("x", ())
    stories.remember("late", ArrayFailure("sign", 100_000.0, incident))
    assert len(books.stored) == 1
    for name in books.memos("array/"):
        books.stored[name] = b"{"
    assert stories.recent("late", "sign", 100_000.0) is None


def test_runs_of_one_script_that_fail_alike_are_counted() -> None:
    teller = Teller(Books())
    tasks = [task(number) for number in range(8)]
    for one in tasks:
        teller.stories.goes_on(one)
    for number in (0, 2, 3, 5, 7):
        lose(teller, tasks[number], f"bad shard {number}")
        teller.stories.done(tasks[number])
    first, *_, last = teller.books.reports
    assert "runs of this script" not in first.diagnosis.summary
    assert "5 of 8 runs of this script failed the same way within an hour" in last.diagnosis.summary


def test_runs_that_fail_otherwise_or_of_somebody_else_are_no_part_of_it() -> None:
    teller = Teller(Books())
    lose(teller, task(0), "bad shard 7")
    lose(teller, task(1, uid=7), "bad shard 7")
    lose(teller, task(2, script="other.py"), "bad shard 7")
    lose(teller, task(3), "no such optimizer")
    assert not [
        one for one in teller.books.reports if "runs of this script" in one.diagnosis.summary
    ]


def test_attempts_of_one_launch_are_one_run_of_the_script() -> None:
    teller = Teller(Books())
    for attempt in range(3):
        teller.fail(attempt)
    assert "3 attempts failed this way" in teller.books.reports[-1].diagnosis.summary
    assert "runs of this script" not in teller.books.reports[-1].diagnosis.summary


class Pidfds:
    """Watches nobody."""

    def watch(self, pid: int, start_ticks: int = 0, owner: object = None) -> None:
        pass


def following(teller: Teller) -> ExitTracker:
    return ExitTracker(
        None,  # type: ignore[arg-type]
        Pidfds(),  # type: ignore[arg-type]
        lambda _: True,
        teller.stories,
        lambda *_: None,
    )


@pytest.mark.parametrize(
    ("launcher", "final"), [(None, True), (9, False)], ids=["launcher gone", "launcher lives"]
)
def test_an_end_is_final_where_no_launcher_can_start_again(
    launcher: int | None, final: bool
) -> None:
    results: list[bool] = []
    teller = Teller(Books())
    teller.stories.failed = lambda *_, final: results.append(final)  # type: ignore[method-assign,assignment,misc]
    tracker = following(teller)
    one = Run(job(0, 1, 2, launcher=launcher), StallWatch(StallSettings()))
    one.last_look = JobLook(job=one.job, look=RunLook(at=0.0))
    tracker.follow(one, {})
    tracker.over(one)
    exits = (msgspec.structs.replace(LEFT, status=9),)
    tracker.on_attempt_exit(AttemptExit(job=one.job, identities=RANKS, exits=exits))
    assert results == [final]


def test_a_process_that_turns_out_to_be_a_rank_of_another_job_leaves_no_end_behind() -> None:
    """NCCL RAS tells its rank once the ranks have met: until then it was a job of its own."""
    teller = Teller(Books())
    tracker = following(teller)
    whole = Run(job(0, 1, 2), StallWatch(StallSettings()))
    first = whole.job.ranks[0]
    alone = Run(
        msgspec.structs.replace(whole.job, id="alone", launcher="single", ranks=(first,)),
        StallWatch(StallSettings()),
    )
    for one in (alone, whole):
        one.last_look = JobLook(job=one.job, look=RunLook(at=0.0))
        tracker.follow(one, {})
    tracker.over(alone)
    assert "alone" not in tracker._jobs
    gone = ProcessExit(pid=first.pid, start_ticks=first.start_ticks, at=0.0, moment=1, status=9)
    tracker.exited(gone)
    assert list(tracker.exits(whole.job.id)) == [0]


@pytest.mark.parametrize("restarts", [(), (1,), (2,), (1, 2, 3)])
def test_a_crash_loop_is_one_story_whenever_the_agent_is_restarted(
    restarts: tuple[int, ...],
) -> None:
    books = Books()
    teller = Teller(books)
    for attempt in range(4):
        if attempt in restarts:
            teller = Teller(books)
            teller.settle()
        teller.fail(attempt)
        assert list(books.rows) == [f"job-{attempt}"], "the incident is kept once"
    teller.stories.launcher_ended(9)
    assert len({one.id for one in books.reports}) == 1
    assert books.reports[-1].state == "ended"
    assert "4 attempts failed this way (0, 1, 2, 3)" in books.reports[-1].diagnosis.summary
    assert books.rows == {}


def test_a_story_that_had_ended_well_is_opened_again_by_the_same_failure() -> None:
    books = Books()
    first = Teller(books)
    first.fail(0)
    later = run(0, attempt=1, job_id="job-1")
    first.stories._came["job-1"] = (-1e9, None)  # it has lived for long
    first.stories.goes_on(later)
    assert books.reports[-1].state == "recovered"
    written = len(books.reports)
    gone = Books(books.rows)
    Teller(gone).incidents.close_orphans((), lambda *_: False)
    assert (gone.reports, gone.rows) == ([], {}), "what has ended is not told again"
    again = Teller(books)
    books.kept.clear()
    again.settle()
    assert len(books.reports) == written
    assert books.kept == ["job-0"], "it is ours now: written again where the state dir is lost"
    again.fail(1)
    assert len({one.id for one in books.reports}) == 1
    assert books.reports[-1].state == "open"


def test_another_failure_after_the_restart_is_another_incident() -> None:
    books = Books()
    Teller(books).fail(0)
    again = Teller(books)
    again.settle()
    (open_one,) = {one.id for one in books.reports}
    other = run(attempt=1, job_id="job-1")
    exits = (RankExit(rank=2, pid=102, moment=1, status=11),)
    ending = AttemptExit(job=other.job, identities=RANKS, exits=exits)
    again.stories.failed(other, ending, judge_exit(ending), final=False)
    states = {one.id: one.state for one in books.reports}
    assert len(states) == 2
    assert states[open_one] == "ended"


def test_a_story_whose_launcher_is_gone_is_over() -> None:
    books = Books()
    Teller(books).fail(0)
    again = Teller(books)
    again.incidents.close_orphans((), lambda *_: False)
    assert books.reports[-1].state == "ended"
    assert books.rows == {}


def past_of(memos: dict[str, bytes], host: Host) -> Recovery:
    """What is before an agent whose state dir holds these memos."""
    ledger: Any = SimpleNamespace(
        opened=True, refusal=None, leftovers=(), writer=SimpleNamespace(release=lambda: None),
        memo=lambda name: memos.get(name, b""), remember=memos.__setitem__,
    )  # fmt: skip
    context: Any = SimpleNamespace(host=host, spawner=SimpleNamespace(inherit=lambda _: None))
    stories: Any = SimpleNamespace(recall=lambda *_: True)
    tracker: Any = SimpleNamespace(expect=lambda _: None)
    found = Recovery(ledger, context, tuple, SimpleNamespace(), stories, tracker, lambda _: None)  # type: ignore[arg-type]
    found.tick({}, StallSettings(), looked=False)
    return found


def test_a_launcher_is_known_by_an_agent_that_starts_after_the_clock_was_set() -> None:
    host, memos = Host(), dict[str, bytes]()
    mine = host.brief(os.getpid())
    assert mine is not None
    ticks = mine.start_ticks + 1
    rank = msgspec.structs.replace(RANKS[0], start_ticks=ticks, started_at=host.started_at(ticks) - 3600.0)  # fmt: skip
    attempt_exit = AttemptExit(
        job=job(0, launcher=os.getpid()), identities=(rank,), launcher_pid=os.getpid()
    )
    incident = Incident(id="i", key="k", job_id="j", detected_at=0.0, exit=attempt_exit)
    row = RunRow(StallWatch(StallSettings()).memory(), incident)
    assert not past_of(memos, host)._goes_on("j", row), "nobody knows whether it is the same boot"
    assert past_of(memos, host)._goes_on("j", row)
    assert not past_of({"boot": b'"of-before"'}, host)._goes_on("j", row)
