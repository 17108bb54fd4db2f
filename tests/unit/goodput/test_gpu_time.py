"""The scripted life of a job, looked at every few seconds: where its GPU seconds are said to have gone."""

import random
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from mldebug.goodput.account.gpu_time import AccountLook, AttemptAccount
from mldebug.goodput.account.job_account import (
    MAX_JOBS,
    RESTART,
    JobAccount,
    JobAccounts,
    JobIdentity,
    command_of,
)
from mldebug.goodput.account.job_goodput import job_goodput
from mldebug.goodput.account.segments import BINS, GpuUse, TimeSegment, UseHistory

GPUS = 8
Part = tuple[GpuUse | None, float]  # None: no process
NAMES = (GpuUse.EVALUATION, GpuUse.CHECKPOINT)


class ScriptedLife:
    """A job that does what a script says: (use, seconds); looked at with one period, by an agent that may be killed."""

    def __init__(self, look_every: float, pace: float, *, stride: int = 1) -> None:
        self.accounts = JobAccounts()
        self.looked: float = look_every
        self.pace, self.stride = pace, stride
        self.now = self.attempt_at = 1_000_000.0
        self.spent: Counter[GpuUse] = Counter()
        self.run, self.attempt, self.step = "run", 0, 0
        self.started, self.work = False, 0.0
        self.stalled: float | None = None
        self.saves: list[tuple[float, float]] = []
        self._due = self.now
        self.hooked = True
        self.records: list[int] | None = None  # of its log, since the last look

    def live(self, *script: tuple[GpuUse, float]) -> "ScriptedLife":
        for use, seconds in script:
            self._pass(use, seconds)
        return self

    def restart(self, gap: float, *, step: int, run: str = "run") -> "ScriptedLife":
        """The processes are gone for a while; the next attempt resumes from a step."""
        self.accounts.ended(lambda _: False, lambda _: "unknown")
        self.spent[GpuUse.RESTART_GAP] += gap * GPUS
        self.now += gap
        self._due = self.attempt_at = self.now
        self.run, self.attempt = run, self.attempt + (run == self.run)
        self.step, self.started, self.stalled = step, False, None
        self.work = 0.0
        return self

    def _pass(self, use: GpuUse, seconds: float) -> None:
        until, begun = self.now + seconds, self.now
        self.spent[use] += seconds * GPUS
        steps = use in (GpuUse.PRODUCTIVE, GpuUse.LOST_WORK)
        while self.now < until - 1e-9:
            at = min(until, self._due, self.now + (self.pace - self.work if steps else seconds))
            if steps:
                self.work += at - self.now
                if self.work >= self.pace - 1e-9:
                    self.step, self.work, self.started = self.step + 1, 0.0, True
                    if self.records is not None and self.step % self.stride == 0:
                        self.records.append(self.step)
            self.now = at
            if at >= self._due:
                self._due += self.looked
                self._look(use, begun)
        if use is GpuUse.CHECKPOINT:
            self.saves.append((begun, self.now))

    def _look(self, use: GpuUse, begun: float) -> None:
        stalled = use is GpuUse.STALL and self.now - begun > 30
        step = self.step // self.stride * self.stride
        look = AccountLook(
            at=self.now,
            gpus=GPUS,
            started=self.started and step > 0,
            step=step or None,
            records=tuple(self.records or ()),
            phase=use if use is GpuUse.DATA_PREPARATION or (self.hooked and use in NAMES) else None,
            stalled_since=begun if stalled else None,
            checkpoints=tuple(one for one in self.saves if self.now - one[1] > 20),
        )
        self.accounts.add(self.who, look)
        if self.records is not None:
            self.records = []

    @property
    def who(self) -> JobIdentity:
        return JobIdentity(
            run=self.run, attempt=self.attempt, name="train.py", user="ada", uid=1000, script="train.py",
            command="train.py", started_at=self.attempt_at,
        )  # fmt: skip

    @property
    def job(self) -> JobAccount:
        (job,) = self.accounts.jobs.values()
        return job

    def kill_agent(self, lost: float) -> "ScriptedLife":
        """The next agent finds what was stored `lost` seconds ago."""
        stored = msgspec.json.encode(list(self.accounts.jobs.values()))
        self._stored, self._until = stored, self.now + lost
        return self

    def next_agent(self) -> "ScriptedLife":
        self.accounts = JobAccounts()
        self.accounts.restore(msgspec.json.decode(self._stored, type=list[JobAccount]))
        return self


USES = GpuUse
LIFE = (
    (USES.STARTUP, 40.0),
    (USES.DATA_PREPARATION, 60.0),
    (USES.PRODUCTIVE, 600.0),
    (USES.EVALUATION, 60.0),
    (USES.PRODUCTIVE, 300.0),
    (USES.CHECKPOINT, 45.0),
    (USES.PRODUCTIVE, 300.0),
)


def off(life: ScriptedLife) -> dict[str, float]:
    """By how much each use differs from the script, as a share of the whole."""
    seconds, whole = life.job.seconds, sum(life.spent.values())
    return {use: abs(seconds.get(use, 0.0) - life.spent[use]) / whole for use in GpuUse}


def whole_is_wall(life: ScriptedLife) -> bool:
    """Up to the last look."""
    wall = sum(life.spent.values()) - (life.now - life.job.at) * GPUS
    return abs(sum(life.job.seconds.values()) - wall) <= 0.005 * wall


def scripted(look_every: float, pace: float, stride: int = 1) -> ScriptedLife:
    life = ScriptedLife(look_every, pace, stride=stride).live(*LIFE)
    at_checkpoint = int(900 / pace)
    life.live((USES.STALL, 200.0))
    life.restart(50.0, step=at_checkpoint)
    return life.live((USES.STARTUP, 70.0), (USES.LOST_WORK, 300.0), (USES.PRODUCTIVE, 900.0))


@pytest.mark.parametrize("look_every", [1.0, 5.0, 7.3])
@pytest.mark.parametrize("pace", [0.25, 2.0, 6.0])
def test_each_use_is_within_two_hundredths_of_the_script(look_every: float, pace: float) -> None:
    life = scripted(look_every, pace)
    assert whole_is_wall(life)
    assert max(off(life).values()) < 0.02, off(life)
    assert life.job.restarts == 1


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("startup", [20.3, 21.9, 23.1, 24.6])
def test_a_resumed_attempt_begins_its_steps_when_its_log_shows(startup: float, stride: int) -> None:  # fmt: skip
    """Four steps a second, looked at every 5 s: the first look finds some of them, the next one 20 more."""
    life = ScriptedLife(5.0, 0.25, stride=stride)
    life.records = []
    life.live((USES.STARTUP, 20.0), (USES.PRODUCTIVE, 100.0))
    life.restart(10.0, step=life.step - 100)
    life.live((USES.STARTUP, startup), (USES.LOST_WORK, 25.0), (USES.PRODUCTIVE, 60.0))
    for use in (USES.STARTUP, USES.LOST_WORK):
        assert abs(life.job.seconds[use] - life.spent[use]) / GPUS < 1.0, use
    assert abs(life.job.steps_again - 100) <= 2 * stride


def test_one_stretch_that_tells_wrong_how_long_a_step_takes_moves_no_start() -> None:
    """An agent that was killed behind the first look: the next one has read the log up to an old step at first, and then up to now."""
    account, history = AttemptAccount(run="r", attempt=1, began=0.0, at=0.0), UseHistory()
    account.reached = 64
    steps = [(20.0, None), (22.0, 58), (26.0, 60), (26.5, 78), (27.0, 80), (27.5, 83), (28.0, 85)]
    for at, step in steps:
        records = (51, 52, 53, 54, 55, 56, 57, 58) if step == 58 else ()
        account.add(AccountLook(at=at, gpus=1, started=step is not None, step=step, records=records), history)  # fmt: skip
    assert account.seconds[USES.STARTUP] == pytest.approx(22.0 - 8 * 0.2, abs=0.5)
    assert account.again == 64 - 50


@pytest.mark.parametrize("reached", [210, 170, None])
@pytest.mark.parametrize("before", [(), tuple(range(1, 211))])
def test_an_agent_that_was_away_when_an_attempt_began_its_steps_reads_them_in_the_log(
    reached: int | None, before: tuple[int, ...]
) -> None:
    """All until the first look of the next agent was start-up. `before`: what an earlier attempt wrote into the same log."""
    account, history = AttemptAccount(run="r", attempt=1, began=0.0, at=0.0), UseHistory()
    account.reached = reached
    looks = [(10.0, None), (11.0, None), (20.0, 185), *((20.0 + n, 185 + 5 * n) for n in range(1, 12))]  # fmt: skip
    for at, step in looks:
        records = (*before, *range(141, 186)) if step == 185 else ()
        account.add(AccountLook(at=at, gpus=1, started=step is not None, step=step, records=records), history)  # fmt: skip
    assert account.seconds[USES.STARTUP] == pytest.approx(20.0 - 45 * 0.2, abs=0.3)
    again = 0 if reached is None else reached - 140
    assert account.again == again
    assert account.seconds.get(USES.LOST_WORK, 0.0) == pytest.approx(0.2 * again, abs=0.3)
    assert sum(account.seconds.values()) == pytest.approx(31.0)


@pytest.mark.parametrize("looks", [((10.0, None), (11.0, None), (15.0, 230)), ((15.0, 230),)])
def test_a_run_that_resumes_where_the_one_before_stopped_writes_on_in_its_log(
    looks: tuple[tuple[float, int | None], ...],
) -> None:
    """Nothing in it falls: the records of before are not this attempt's."""
    account, history = AttemptAccount(run="r", attempt=1, began=0.0, at=0.0), UseHistory()
    account.reached = 210
    for at, step in (*looks, *((15.0 + n, 230 + 5 * n) for n in range(1, 9))):
        records = tuple(range(1, 231)) if step == 230 else ()
        account.add(AccountLook(at=at, gpus=1, started=step is not None, step=step, records=records), history)  # fmt: skip
    assert account.seconds[USES.STARTUP] == pytest.approx(11.0, abs=0.3)


def test_the_start_of_an_attempt_that_ends_behind_its_first_looks_is_known() -> None:
    account, history = AttemptAccount(run="r", attempt=0, began=0.0, at=0.0), UseHistory()
    for at, step in ((20.0, None), (22.0, 8), (24.0, 18)):
        records = tuple(range(step - 7, step + 1)) if step else ()
        account.add(AccountLook(at=at, gpus=1, started=step is not None, step=step, records=records), history)  # fmt: skip
    account.end("failed")
    account.give_up(history, restarted=True)
    assert account.seconds[USES.STARTUP] == pytest.approx(22.0 - 8 * 0.2)


def test_steps_done_again_are_counted_over_all_restarts_and_restarts_of_the_agent() -> None:
    """300 s of the last attempt of 1,200 s are done again, by 300 steps; then 200 of these once more."""
    life = scripted(5.0, 1.0)
    assert job_goodput(life.job).steps_again == 300
    life.restart(50.0, step=life.step - 200).live((USES.LOST_WORK, 200.0), (USES.PRODUCTIVE, 60.0))
    life.kill_agent(0.0).next_agent()
    assert job_goodput(life.job).steps_again == 500
    life.accounts.ended(lambda _: False, lambda _: "well")
    for one in tuple(life.job.open):
        life.job.close_old(one.at + RESTART + 1)
    life.job._make_room()  # what 32 attempts more would do
    assert job_goodput(life.job).steps_again == 500


@pytest.mark.parametrize("stride", [10, 50])
def test_steps_that_are_logged_seldom_cost_no_more(stride: int) -> None:
    life = scripted(5.0, 1.0, stride)
    assert whole_is_wall(life)
    assert max(off(life).values()) < 0.02, off(life)


def test_a_checkpoint_that_only_its_files_show_is_found_afterwards() -> None:
    life = ScriptedLife(5.0, 1.0)
    life.hooked = False
    life.live((USES.STARTUP, 30.0))
    for _ in range(4):
        life.live((USES.PRODUCTIVE, 200.0), (USES.CHECKPOINT, 30.0))
    life.live((USES.PRODUCTIVE, 100.0))
    assert off(life)[USES.CHECKPOINT] < 0.02, life.job.seconds
    assert life.job.checkpoints == 4


def test_one_that_is_written_beside_the_steps_costs_nothing() -> None:
    life = ScriptedLife(5.0, 1.0).live((USES.STARTUP, 30.0), (USES.PRODUCTIVE, 200.0))
    life.saves.append((life.now, life.now + 30))
    life.live((USES.PRODUCTIVE, 200.0))
    assert life.job.seconds.get(USES.CHECKPOINT, 0.0) == 0.0


def test_a_killed_agent_loses_nothing_of_the_wall_time_and_little_of_the_uses() -> None:
    life = ScriptedLife(5.0, 1.0).live(*LIFE)
    life.kill_agent(lost=10.0).live((USES.PRODUCTIVE, 15.0)).next_agent()
    life.live((USES.PRODUCTIVE, 400.0))
    assert whole_is_wall(life)
    seconds = life.job.seconds
    for use in GpuUse:
        assert abs(seconds.get(use, 0.0) - life.spent[use]) <= 15 * GPUS + 0.02 * sum(
            life.spent.values()
        ), use


def test_certain_seconds_never_fall() -> None:
    life = ScriptedLife(5.0, 2.0)
    before: dict[str, float] = {}
    for part in (*LIFE, (USES.STALL, 200.0), (USES.PRODUCTIVE, 100.0)):
        life.live(part)
        now = life.job.settled("run")
        assert all(now.get(use, 0.0) >= seconds for use, seconds in before.items())
        before = now
    assert sum(before.values()) > 1000


def test_another_run_of_the_same_command_is_a_restart_and_one_that_was_done_is_none() -> None:
    life = ScriptedLife(5.0, 1.0).live((USES.STARTUP, 30.0), (USES.PRODUCTIVE, 300.0))
    life.restart(60.0, step=200, run="next")
    life.live((USES.STARTUP, 30.0), (USES.LOST_WORK, 100.0), (USES.PRODUCTIVE, 100.0))
    assert life.job.restarts == 1
    assert max(off(life).values()) < 0.02, (life.job.seconds, life.spent)
    done = ScriptedLife(5.0, 1.0).live((USES.STARTUP, 30.0), (USES.PRODUCTIVE, 300.0))
    done.accounts.ended(lambda _: False, lambda _: "well")
    done.restart(600.0, step=0, run="next").live((USES.STARTUP, 30.0), (USES.PRODUCTIVE, 100.0))
    assert done.job.restarts == 0
    assert USES.RESTART_GAP not in done.job.seconds
    assert USES.LOST_WORK not in done.job.seconds


def test_a_run_that_begins_anew_is_a_restart_only_where_the_one_before_is_known_to_have_failed() -> (
    None
):
    for outcome, restarts in (("unknown", 0), ("failed", 1)):
        life = ScriptedLife(5.0, 1.0).live((USES.STARTUP, 30.0), (USES.PRODUCTIVE, 300.0))
        life.accounts.ended(lambda _: False, lambda _, how=outcome: how)
        life.restart(60.0, step=0, run="next")
        life.live((USES.STARTUP, 30.0), (USES.LOST_WORK, 300.0), (USES.PRODUCTIVE, 100.0))
        assert life.job.restarts == restarts
        assert (life.job.seconds.get(USES.LOST_WORK, 0.0) > 2000) is bool(restarts)


def test_array_tasks_of_one_job_are_added_up() -> None:
    accounts = JobAccounts()
    for at in range(0, 300, 5):
        for task in ("task1", "task2"):
            who = JobIdentity(
                run=task, attempt=0, name="train.py", user="ada", uid=1, script="train.py",
                command="train.py", started_at=1000.0,
            )  # fmt: skip
            look = AccountLook(at=1000.0 + at, gpus=4, started=True, step=1 + at)
            accounts.add(who, look)
    (job,) = accounts.jobs.values()
    assert sum(job.seconds.values()) == pytest.approx(2 * 4 * 295)
    assert job.restarts == 0


def ended_jobs(accounts: JobAccounts, uid: int, many: int, at: float) -> None:
    """Many short jobs of one user, each with a name of its own, which end at once."""
    for number in range(many):
        who = JobIdentity(
            run=f"{uid}-{number}", attempt=0, name=f"sweep-{number}", user="u", uid=uid, script="s",
            command="s", started_at=at + number,
        )  # fmt: skip
        accounts.add(who, AccountLook(at=at + number, gpus=1, started=True, step=1))
    accounts.ended(lambda _: False, lambda _: "unknown")


def test_jobs_that_ended_are_bounded_and_a_user_with_many_gives_way_first() -> None:
    """Also in the hour in which a restart may follow: a sweep has hundreds of names, and a bad user as many as he likes."""
    accounts = JobAccounts()
    ended_jobs(accounts, 1, 3, at=1000.0)
    ended_jobs(accounts, 2, 300, at=2000.0)
    gone = accounts.tidy(2400.0)
    assert len(accounts.jobs) == MAX_JOBS
    assert {uid for uid, *_ in gone} == {2}
    assert gone[0][1] == "sweep-0"  # the oldest go first


def test_a_job_that_lives_is_never_forgotten() -> None:
    accounts = JobAccounts()
    ended_jobs(accounts, 1, 2 * MAX_JOBS, at=1000.0)
    for job in accounts.jobs.values():
        job.open[0].over = False
    assert accounts.tidy(1100.0) == ()


def test_commands_of_runs_that_are_over_are_forgotten() -> None:
    """A run's id changes where its launcher dies: what it was called before is no run any more."""
    accounts = JobAccounts()
    for number in range(20):
        for id in ("whole", "orphaned"):
            who = JobIdentity(
                run=f"{id}-{number}", attempt=0, name="n", user="u", uid=1, script="s", command="s",
                processes=(f"{number}/1",), started_at=1000.0 + 5000 * number,
            )  # fmt: skip
            accounts.add(who, AccountLook(at=1010.0 + 5000 * number, gpus=1, started=True, step=1))
        accounts.ended(lambda _: False, lambda _: "unknown")
        accounts.tidy(1010.0 + 5000 * number + RESTART + 1)
    (job,) = accounts.jobs.values()
    assert job.commands == {}


def test_a_count_that_begins_anew_with_each_epoch_makes_no_lost_work() -> None:
    accounts = JobAccounts()
    who = JobIdentity(
        run="r", attempt=0, name="n", user="u", uid=1, script="s", command="s", started_at=1000.0
    )
    for at in range(600):
        accounts.add(who, AccountLook(at=1000.0 + at, gpus=1, started=True, step=1 + at % 100))
    (job,) = accounts.jobs.values()
    assert GpuUse.LOST_WORK not in job.seconds


def test_a_fall_to_an_earlier_step_within_a_run_is_lost_work() -> None:
    accounts = JobAccounts()
    who = JobIdentity(
        run="r", attempt=0, name="n", user="u", uid=1, script="s", command="s", started_at=1000.0
    )
    steps = [*range(1, 400), *range(300, 600)]
    for at, step in enumerate(steps):
        accounts.add(who, AccountLook(at=1000.0 + at, gpus=1, started=True, step=step))
    (job,) = accounts.jobs.values()
    assert job.seconds[GpuUse.LOST_WORK] == pytest.approx(99, abs=2)


def test_waiting_for_data_and_for_slow_ranks_is_taken_from_the_steps() -> None:
    accounts = JobAccounts()
    who = JobIdentity(
        run="r", attempt=0, name="n", user="u", uid=1, script="s", command="s", started_at=1000.0
    )
    for at in range(0, 1000, 5):
        accounts.add(who, AccountLook(at=1000.0 + at, gpus=4, started=True, step=1 + at, data=0.25, straggler=0.1))  # fmt: skip
    (job,) = accounts.jobs.values()
    whole = sum(job.seconds.values())
    assert job.seconds[GpuUse.DATA_WAIT] / whole == pytest.approx(0.25, abs=0.01)
    assert job.seconds[GpuUse.STRAGGLER] / whole == pytest.approx(0.75 * 0.1, abs=0.03)


def lives(random_: random.Random) -> Iterator[tuple[GpuUse, float]]:
    yield USES.STARTUP, random_.uniform(5, 60)
    for _ in range(random_.randint(2, 8)):
        yield USES.PRODUCTIVE, random_.uniform(30, 400)
        yield (
            random_.choice([USES.EVALUATION, USES.CHECKPOINT, USES.STALL]),
            random_.uniform(5, 200),
        )
    yield USES.PRODUCTIVE, 60.0


@pytest.mark.parametrize("seed", range(40))
def test_the_sum_is_the_wall_time_whatever_happens(seed: int) -> None:
    random_ = random.Random(seed)
    life = ScriptedLife(random_.uniform(0.5, 9), random_.uniform(0.1, 9))
    for number in range(random_.randint(1, 4)):
        if number:
            life.restart(random_.uniform(0, 300), step=max(0, life.step - random_.randint(0, 200)))
        life.live(*lives(random_))
    assert whole_is_wall(life)
    shown = job_goodput(life.job)
    assert sum(sum(one.values()) for one in shown.bar) == pytest.approx(
        sum(life.job.seconds.values()), rel=1e-6
    )


def test_the_history_is_bounded_and_keeps_its_sums() -> None:
    history = UseHistory()
    for at in range(0, 2_000_000, 977):
        use = GpuUse.PRODUCTIVE if at % 2 else GpuUse.STALL
        history.add(TimeSegment(start=float(at), end=at + 977.0, use=use, gpus=2))
    assert len(history.bins) <= BINS
    whole = sum(sum(one.values()) for one in history.bins)
    assert whole == pytest.approx(2 * 977 * len(range(0, 2_000_000, 977)))


def test_the_command_of_a_restart_is_the_same_without_what_it_resumes_from() -> None:
    first = command_of(["train.py", "--lr", "1e-4"])
    assert command_of(["train.py", "--resume-from", "ckpt/5", "--lr", "1e-4"]) == first
    assert command_of(["train.py", "--resume", "--lr", "1e-4"]) == first
    assert command_of(["train.py", "--load=x", "--lr", "1e-4"]) == first
    assert command_of(["train.py", "--lr", "2e-4"]) != first
