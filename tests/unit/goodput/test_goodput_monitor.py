"""From looks at real runs to the accounts of their jobs, and how these survive a restart of the agent."""

import msgspec
import pytest

from mldebug.core.model import Job, LostRank, RankIdentity
from mldebug.goodput.account.segments import GpuUse
from mldebug.goodput.straggler import Excess, Slowness, SlowRank
from mldebug.incidents.incident import Incident
from mldebug.jobs.heartbeat import Heartbeat
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.agent.job_defects import JobDefects
from mldebug_agents.watch.goodput_monitor import LEFT_WELL, GoodputMonitor
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from shared.goodput.memory_store import MemoryStore

BEGAN = 1_700_000_000.0


class Node:
    """A node with one run, whose clock is turned by hand."""

    def __init__(self, memory: MemoryStore) -> None:
        self.now = 100.0
        self.set_by = 0.0  # seconds by which the wall clock was set since the agent started
        self.memory = memory
        self.exits: dict[int, str] = {}
        self.run = Run(job(), StallWatch(StallSettings()))
        self.begin_agent()

    def begin_agent(self) -> None:
        self.monitor = GoodputMonitor(
            self.memory, wall=lambda: BEGAN + self.now + self.set_by, steady=lambda: self.now
        )

    def look(self, seconds: float = 5.0, **fields: object) -> None:
        self.now += seconds
        started = fields.get("step") is not None
        look = RunLook(at=self.now, run=self.run.job.id, started=started)
        self.run.update(JobLook(job=self.run.job, look=look, **fields))  # type: ignore[arg-type]
        self.monitor.tick({self.run.job.id: self.run}, lambda _: self.exits)

    @property
    def shown(self) -> Snapshot:
        state = RunState(id="run1", name="train.py", launcher="torchrun")
        return self.monitor.show(Snapshot(node="n", at=0, started_at=0, runs=(state,)))

    @property
    def seconds(self) -> dict[str, float]:
        (found,) = self.shown.goodput
        return found.gpu_seconds


def job(**fields: object) -> Job:
    ranks = tuple(
        RankIdentity(
            rank=rank, world_size=4, pid=rank + 1, script="train.py", started_at=BEGAN + 90
        )
        for rank in range(4)
    )
    whole = {"id": "run1", "name": "train.py", "launcher": "torchrun", "world_size": 4, "uid": 7, "ranks": ranks}  # fmt: skip
    return Job(**(whole | fields))  # type: ignore[arg-type]


@pytest.fixture
def node() -> Node:
    return Node(MemoryStore())


def test_a_run_is_accounted_for_from_the_start_of_its_processes(node: Node) -> None:
    node.look()
    for step in range(1, 41):
        node.look(step=step)
    assert sum(node.seconds.values()) == pytest.approx(4 * (node.now - 90))
    assert node.seconds["startup"] == pytest.approx(4 * 15)


def test_what_ranks_report_decides_what_a_pause_was(node: Node) -> None:
    for step in range(1, 41):
        node.look(step=step)
    saving = {0: Heartbeat(written_at=0.0, step=40, phase="checkpoint_save"), 1: Heartbeat(written_at=0.0, step=40)}  # fmt: skip
    for _ in range(6):
        node.look(step=40, beats=saving)
    node.look(step=41)
    assert node.seconds["checkpoint"] == pytest.approx(4 * 30, abs=4 * 5)
    assert "evaluation" not in node.seconds


def test_a_step_counts_from_when_the_log_was_read_and_not_from_when_the_look_began(
    node: Node,
) -> None:
    """On a busy node a look takes long, and the steps made meanwhile stand in the log that it reads."""
    for step in range(1, 41):
        node.look(step=step, step_read_at=node.now + 5.0)
    began = node.now
    node.look(
        step=43, step_read_at=began + 8.0
    )  # began 5 s after the look before, and took 3 s to read
    read = BEGAN + began + 8.0
    (found,) = node.shown.goodput
    assert found.at == pytest.approx(read)
    assert sum(found.gpu_seconds.values()) == pytest.approx(4 * (began + 8.0 - 90))


def test_the_first_step_is_stored_at_once(node: Node) -> None:
    """An agent that is killed right behind it once took all the time since the last store for the start-up."""
    node.look()
    for _ in range(4):
        node.look(1.0)
    node.look(1.0, step=1)
    first = node.now
    node.begin_agent()
    node.look(8.0, step=60)
    assert node.seconds["startup"] == pytest.approx(4 * (first - 90), abs=4)


def test_steps_that_began_while_no_agent_was_there_are_no_start_up(node: Node) -> None:
    """The next agent finds them in the log."""
    for _ in range(4):
        node.look(1.0)
    before = node.now
    node.begin_agent()
    node.look(10.0, step=40, earlier_steps=tuple(range(1, 41)))
    for step in range(44, 100, 4):
        node.look(1.0, step=step)
    assert node.seconds["startup"] == pytest.approx(4 * (before - 90), abs=4)


def test_an_evaluation_in_the_log_is_one(node: Node) -> None:
    for step in range(1, 41):
        node.look(step=step)
    for count in range(6):
        node.look(step=40, evaluations=count + 1)
    node.look(step=41, evaluations=6)
    assert node.seconds["evaluation"] == pytest.approx(4 * 30, abs=4 * 5)


def test_an_evaluation_that_began_while_no_agent_was_there_is_one(node: Node) -> None:
    """Up to the next agent's first look it once counted as steps."""
    for step in range(1, 41):
        node.look(1.0, step=step)
    node.begin_agent()
    node.look(16.0, step=50, evaluations=3)  # ten steps, and six seconds of the evaluation
    for count in range(4, 10):
        node.look(1.0, step=50, evaluations=count)
    node.look(1.0, step=51, evaluations=9)
    assert node.seconds["evaluation"] == pytest.approx(4 * 12, abs=4 * 1.5)


@pytest.mark.parametrize("looks", [3, 5, 8])
def test_an_agent_that_is_killed_soon_after_the_first_steps_has_told_how_long_they_take(node: Node, looks: int) -> None:  # fmt: skip
    """Its account is stored every ten seconds: what was evaluated up to the next agent's first look once counted as steps."""
    for look in range(looks):
        node.look(1.0, step=5 * look + 1)
    node.begin_agent()
    step = 5 * looks + 51
    node.look(
        16.0, step=step, evaluations=10
    )  # eleven seconds of steps, and five of the evaluation
    for count in range(1, 8):
        node.look(1.0, step=step, evaluations=10 + 2 * count)
    node.look(1.0, step=step + 5, evaluations=24)
    assert node.seconds["evaluation"] == pytest.approx(4 * 12, abs=4 * 1.5)


def test_steps_that_were_made_while_no_agent_was_there_are_no_evaluation(node: Node) -> None:
    for step in range(1, 41):
        node.look(1.0, step=step)
    node.begin_agent()
    for step in range(52, 60):
        node.look(12.0 if step == 52 else 1.0, step=step, evaluations=3)
    assert node.seconds.get("evaluation", 0.0) < 4


def test_ranks_that_wait_for_data_cost_their_share(node: Node) -> None:
    waits = {rank: Heartbeat(written_at=0.0, phase="data_wait" if rank == 0 else "") for rank in range(4)}  # fmt: skip
    for step in range(1, 100):
        node.look(step=step, beats=waits)
    assert node.seconds["data_wait"] / sum(node.seconds.values()) == pytest.approx(0.25, abs=0.02)


def test_a_stall_takes_the_time_since_the_last_step_and_gone_ranks_still_hold_gpus(node: Node) -> None:  # fmt: skip
    for step in range(1, 41):
        node.look(step=step)
    since = node.now
    for _ in range(10):
        node.look(step=40)
    node.run.set_job(job(ranks=job().ranks[:3], lost=(LostRank(rank=3),)))
    incident = Incident(id="i", key="k", job_id="run1", detected_at=BEGAN + node.now, stalled_since=BEGAN + since)  # fmt: skip
    node.run.set_incident(incident)
    for _ in range(10):
        node.look(step=40)
    assert node.seconds["stall"] == pytest.approx(4 * 100)


def test_what_slow_ranks_cost_counts_on_each_node_of_the_run(node: Node) -> None:
    """The incident is that of the slow rank's node; the GPUs of all nodes wait for it."""
    node.run.set_slowness(Slowness(loss=0.5, why_nobody="no rank is waited for all the time"))
    for step in range(1, 41):
        node.look(step=step)
    assert "straggler" not in node.seconds
    slow = SlowRank(rank=9, node="another", waiting=0.01, excess=Excess(kind="same"))
    node.run.set_slowness(Slowness(loss=0.5, ranks=(slow,)))
    for step in range(41, 81):
        node.look(step=step)
    assert node.seconds["straggler"] == pytest.approx(0.5 * 4 * 200, rel=0.05)
    node.run.set_job(job(attempt=1))
    for step in range(1, 41):
        node.look(step=step)
    assert node.seconds["straggler"] == pytest.approx(0.5 * 4 * 200, rel=0.05), (
        "in an attempt that was not compared yet"
    )


def test_a_run_that_cannot_be_accounted_for_leaves_the_others_theirs(node: Node) -> None:
    bad, defects = Run(job(id="bad", name="bad.py"), StallWatch(StallSettings())), JobDefects()
    for step in range(1, 4):
        node.look(step=step)
        bad.update(
            JobLook(job=bad.job, look=RunLook(at=node.now, run="bad", started=True), step="one")
        )  # type: ignore[arg-type]
        node.monitor.tick({"bad": bad, "run1": node.run}, lambda _: {}, defects.catching)
    assert node.shown.runs[0].gpu_seconds
    assert (
        sum(next(one for one in node.shown.goodput if one.name == "train.py").gpu_seconds.values())
        > 0
    )
    assert [one.what for one in defects.gaps] == ["run bad"]


def test_a_killed_agent_loses_fifteen_seconds_at_most(node: Node) -> None:
    for step in range(1, 101):
        node.look(step=step)
    before = node.seconds
    node.begin_agent()  # nothing was stored at the end
    node.look(12.0, step=103)
    whole, was = sum(node.seconds.values()), sum(before.values())
    assert whole == pytest.approx(was + 4 * 12)
    stored = msgspec.json.decode(next(iter(node.memory.values.values())))
    assert BEGAN + node.now - 12.0 - stored["at"] <= 15
    assert (node.shown.goodput[0].restarts, node.shown.goodput[0].attempts) == (0, 1)


def test_a_counter_has_all_states_from_the_beginning_and_never_falls(node: Node) -> None:
    node.look()
    assert set(node.shown.runs[0].gpu_seconds) == set(GpuUse)
    before = 0.0
    for step in range(1, 101):
        node.look(step=step)
        now = sum(node.shown.runs[0].gpu_seconds.values())
        assert now >= before
        before = now
    assert before > 1000


def test_a_run_of_which_only_dead_ranks_are_left_has_ended(node: Node) -> None:
    for step in range(1, 41):
        node.look(step=step)
    assert node.shown.goodput[0].runs == ("run1",)
    node.run.set_job(job(ranks=(), lost=tuple(LostRank(rank=rank) for rank in range(4))))
    node.look(step=40)
    assert node.shown.goodput[0].runs == ()


def test_a_run_whose_id_changes_as_its_launcher_dies_is_counted_once(node: Node) -> None:
    for step in range(1, 21):
        node.look(step=step)
    node.run = Run(job(id="other"), StallWatch(StallSettings()))
    for step in range(21, 41):
        node.look(step=step)
    assert sum(node.seconds.values()) == pytest.approx(4 * (node.now - 90))
    assert (node.shown.goodput[0].attempts, node.shown.goodput[0].runs) == (1, ("other",))


def test_a_row_that_cannot_be_read_is_forgotten(node: Node) -> None:
    node.memory.values["goodput:x"] = b'{"name": 5}'
    node.look()
    assert "goodput:x" not in node.memory.values


def test_nothing_is_counted_before_the_store_is_open() -> None:
    node = Node(MemoryStore(opened=False))
    node.look(step=1)
    assert node.shown.goodput == ()


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
def test_a_clock_that_is_set_makes_and_hides_no_time(node: Node, seconds: float) -> None:
    """A node's clock is often wrong until its time service answers. Starts and stalls are told by the clock of then."""
    node.look()
    node.set_by = seconds
    ranks = tuple(msgspec.structs.replace(one, started_at=BEGAN + node.now + seconds) for one in job().ranks)  # fmt: skip
    node.run = Run(job(id="new", name="other.py", ranks=ranks), StallWatch(StallSettings()))
    began = node.now
    for step in range(1, 41):
        node.look(step=step)
    since = node.now
    for _ in range(10):
        node.look(step=40)
    node.run.set_incident(Incident(id="i", key="k", job_id="new", detected_at=BEGAN + node.now + seconds, stalled_since=BEGAN + since + seconds))  # fmt: skip
    for _ in range(10):
        node.look(step=40)
    found = next(one.gpu_seconds for one in node.shown.goodput if one.name == "other.py")
    assert sum(found.values()) == pytest.approx(4 * (node.now - began))
    assert found["stall"] == pytest.approx(4 * 100)


# --- the end of an attempt -----------------------------------------------------------------------


def test_the_end_of_an_attempt_is_remembered_with_the_ranks_that_were_waited_for(
    node: Node,
) -> None:
    slow = SlowRank(rank=2, waiting=0.01, excess=Excess(kind="data", own=0.3))
    node.run.set_slowness(Slowness(loss=0.5, ranks=(slow,)))
    for step in range(1, 41):
        node.look(step=step)
    node.run.set_slowness(Slowness(why_nobody="no rank stands apart from the others"))
    node.look(step=41)
    (living,) = node.shown.goodput[0].newest
    assert (living.outcome, living.ended) == ("", None)
    node.exits = {0: "exited with code 1"}
    node.monitor.tick({}, lambda _: node.exits)
    node.begin_agent()  # it is stored at once
    node.monitor.tick({}, lambda _: {})
    (over,) = node.shown.goodput[0].newest
    assert (over.outcome, over.ended) == ("failed", pytest.approx(BEGAN + node.now))
    (words,) = over.stragglers
    assert words.startswith("rank 2 waits only 1 % of the time, and waits for its DataLoader 30 %")
    assert "waiting for slow ranks" in over.sentence


def test_nobody_is_remembered_as_slow_where_nobody_was_named(node: Node) -> None:
    node.run.set_slowness(Slowness(loss=0.5, why_nobody="no rank is waited for all the time"))
    for step in range(1, 41):
        node.look(step=step)
    node.exits = dict.fromkeys(range(4), LEFT_WELL)
    node.monitor.tick({}, lambda _: node.exits)
    (over,) = node.shown.goodput[0].newest
    assert (over.outcome, over.stragglers) == ("well", ())


def test_a_report_gets_the_time_of_its_own_attempt(node: Node) -> None:
    for step in range(1, 41):
        node.look(step=step)
    first = node.run.job
    again = tuple(msgspec.structs.replace(one, pid=one.pid + 100) for one in first.ranks)
    node.run.set_job(job(attempt=1, ranks=again))
    node.look(step=1)
    view = node.monitor.view(first)
    assert view is not None
    assert (view.attempt, view.job_attempts, view.job_restarts) == (0, 2, 1)
    assert sum(view.gpu_seconds.values()) < sum(view.job_gpu_seconds.values())
    assert node.monitor.view(job(id="another", ranks=())) is None
    renamed = node.monitor.view(job(id="another", ranks=again))  # its launcher has died
    assert renamed is not None
    assert renamed.attempt == 1
