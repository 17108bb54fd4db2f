"""Whose work it is to idle: which jobs are judged when they are quiet; and what a run remembers of its looks."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mldebug.config.schema import Config
from mldebug.core.model import Classification, Job, NodeCapture, RankIdentity, Role
from mldebug.jobs.heartbeat import Heartbeat
from mldebug.jobs.logs.records import LogCounts
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RankLook, RunLook, Stage, StallDecision
from mldebug.status.snapshot import Snapshot
from mldebug_agents.agent.capture_queue import QueuedCapture, take
from mldebug_agents.agent.loop import AgentLoop
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run, no_training, run_state, unjudged


def job_look(
    *,
    launcher: str = "single",
    world: int = 1,
    script: str = "train.py",
    step: int | None = 7,
    records: int = 9,
    wchan: str = "hrtimer_nanosleep",
) -> JobLook:
    """A job that trains, unless told otherwise."""
    rank = RankIdentity(rank=0, world_size=world, pid=1, start_ticks=1, script=script)
    job = Job(id="j", name=script, launcher=launcher, world_size=world, ranks=(rank,))
    look = RunLook(at=0.0, ranks=(RankLook(rank=0, wchan=wchan),))
    return JobLook(job=job, look=look, step=step, log_counts=LogCounts(records=records))


@pytest.mark.parametrize("wchan", ["hrtimer_nanosleep", "futex_do_wait", "sk_wait_data", ""])
def test_a_lone_process_that_told_steps_is_judged(wchan: str) -> None:
    assert unjudged(job_look(wchan=wchan), ()) == ""


@pytest.mark.parametrize("launcher", ["single", "environment", "torchrun"])
@pytest.mark.parametrize("wchan", ["inet_csk_accept", "do_epoll_wait", "ep_poll.isra.0"])
def test_a_lone_process_that_serves_what_it_trained_is_not(launcher: str, wchan: str) -> None:
    job = job_look(launcher=launcher, wchan=wchan)
    assert unjudged(job, ()) == "not judged: one process that waits for clients"
    assert no_training(job) == "", "its end is still told"
    assert unjudged(job_look(launcher=launcher, world=2, wchan=wchan), ()) == ""


def test_one_line_that_looks_like_a_step_makes_no_training() -> None:
    for job in (job_look(step=None), job_look(records=1)):
        assert unjudged(job, ()) == "not judged: one process that has told no steps"
        assert no_training(job)
    assert unjudged(job_look(launcher="torchrun", step=None, records=0), ()) == ""


def test_a_lone_process_whose_hook_tells_steps_is_judged() -> None:
    silent = job_look(step=5, records=0)
    beats = {0: Heartbeat(written_at=1.0, step=5, beats=5, phase="data_wait")}
    assert unjudged(msgspec.structs.replace(silent, beats=beats), ()) == ""
    assert unjudged(silent, ())


@pytest.mark.parametrize("script", ["pytest", "ipykernel_launcher", "unittest"])
def test_tests_and_notebooks_are_no_training(script: str) -> None:
    assert unjudged(job_look(script=script), ()) == f"not judged: {script} is no training"
    assert no_training(job_look(script=script))
    assert not no_training(job_look(script=script, launcher="torchrun", world=2))


def test_the_users_own_words_come_first() -> None:
    assert "stall.exclude" in unjudged(job_look(wchan="inet_csk_accept"), ("train*",))


# --- what is remembered ----------------------------------------------------------------------------------


def test_the_last_frames_of_a_sample_are_shown_until_the_next_one() -> None:
    one = job_look()
    found = Classification(name="sleep", role=Role.INERT, doing="sleeps")
    sampled = msgspec.structs.replace(one, classes={0: found}, frames={0: "load (train.py:7)", 1: ""})  # fmt: skip
    node: Any = SimpleNamespace(config=Config(), _decide=lambda *_: None)
    run = Run(one.job, StallWatch(StallSettings()))
    for look in (sampled, one):
        AgentLoop._see(node, run, look)
    assert run_state(run, {}, "n1").frames == {0: "load (train.py:7)"}


def test_a_sample_of_some_ranks_keeps_what_the_others_did() -> None:
    """Where the machine is busy, the time of a look is over before all have been sampled."""
    one = job_look(world=2)
    sleep = Classification(name="sleep", role=Role.INERT, doing="sleeps")
    collective = Classification(name="collective", role=Role.WAITING, doing="waits")
    run = Run(one.job, StallWatch(StallSettings()))
    run.update(msgspec.structs.replace(one, classes={0: collective, 1: sleep}, frames={0: "a", 1: "b"}))  # fmt: skip
    run.update(msgspec.structs.replace(one, classes={0: collective}, frames={0: "c"}))
    assert (run.classes, run.frames) == ({0: "collective", 1: "sleep"}, {0: "c", 1: "b"})
    assert run.roles == {0: Role.WAITING, 1: Role.INERT}
    again = msgspec.structs.replace(one, job=msgspec.structs.replace(one.job, attempt=1))
    run.update(again)
    assert (run.classes, run.roles, run.frames) == ({}, {}, {})


def test_a_capture_says_how_long_it_was_quiet_and_what_is_usual() -> None:
    job = job_look().job
    taken = NodeCapture(node="n1", taken_at=1.0, job=job)
    stood_still = []

    def capture(*_: object, quiet: float | None, resumed: bool) -> NodeCapture:
        stood_still.append((quiet, resumed))
        return msgspec.structs.replace(taken, quiet_seconds=quiet or 0.0)

    capturer = SimpleNamespace(capture=capture)
    tools: Any = SimpleNamespace(capturer=lambda _: capturer)
    decision = StallDecision(
        stage=Stage.CONFIRMED, sentence="", quiet=40.0, usual_gap=7.0, resumed=True
    )
    _, readings = take(tools, QueuedCapture(job, Discovery(), decision))
    assert (readings.quiet_seconds, readings.usual_gap_seconds) == (40.0, 7.0)
    assert take(tools, QueuedCapture(job, Discovery())) == ("j", taken)
    # what costs a job something is asked only where it stands still, and once over all agents
    assert stood_still == [(40.0, True), (None, False)]


def shown_by(seconds: float, judged: Callable[[], list[object]]) -> tuple[Any, list[Snapshot]]:
    """A main loop whose snapshot takes so many seconds of CPU, of runs that are judged like that, and what it has shown."""
    shown: list[Snapshot] = []

    def snapshot() -> Snapshot:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return Snapshot(node="n1", at=1.0, started_at=1.0, pid=1)

    silent = SimpleNamespace(send=lambda *_: None, status=lambda *_: None)
    node: Any = SimpleNamespace(
        notifier=silent,
        config=Config(),
        _ready=True,
        _looks=1,
        _next_snapshot=0.0,
        _next_calm=0.0,
        _shown=[],
        _judged=judged,
        snapshot=snapshot,
        monitors=SimpleNamespace(notifier=SimpleNamespace(look=lambda *_: None)),
        incidents=SimpleNamespace(remote=SimpleNamespace(cases={})),
        peers=None,
        _parts=SimpleNamespace(store=SimpleNamespace(open_incidents=set)),
        publish=shown.append,
    )
    return node, shown


def test_snapshots_take_a_small_part_of_the_main_loop_s_time() -> None:
    """Beside a flood of one user's runs each message made a snapshot of them all: three quarters of the main loop's time."""
    node, shown = shown_by(0.02, lambda: [object()])
    before = time.thread_time()
    for _ in range(10_000):
        AgentLoop._publish(node)
    assert len(shown) == 1
    assert time.thread_time() - before < 10_000 * 0.02 / 20
    assert 0.0 < node._next_snapshot - time.monotonic() <= 2.0
    node._next_snapshot = time.monotonic()
    AgentLoop._publish(node)
    assert len(shown) == 2


def test_while_there_is_no_news_a_snapshot_is_made_at_most_every_five_seconds() -> None:
    """One for each of the messages of a look took a third of an idle agent's time, one every two seconds a twentieth."""
    judged: list[object] = [object()]
    node, shown = shown_by(0.0, lambda: list(judged))
    for _ in range(100):
        AgentLoop._publish(node)
    assert len(shown) == 1
    assert 4.0 < node._next_calm - time.monotonic() <= 5.0
    node._next_calm = node._next_snapshot = time.monotonic()
    AgentLoop._publish(node)
    assert len(shown) == 2
    node._next_snapshot = time.monotonic()
    judged[0] = object()  # another judgement is shown at once
    AgentLoop._publish(node)
    assert len(shown) == 3
    node._next_snapshot = time.monotonic()
    judged.clear()  # and so is a run that is over
    AgentLoop._publish(node)
    assert len(shown) == 4


def test_each_look_is_shown() -> None:
    """Also where no run is judged anew by it: its steps and rates are news."""
    loop: Any = SimpleNamespace(_all={}, _looks=1_000)
    node, shown = shown_by(0.0, lambda: AgentLoop._judged(loop))
    for new in (0, 0, 1, 0, 1):
        if new:
            loop._looks += 1
        node._next_snapshot = time.monotonic()
        AgentLoop._publish(node)
    assert len(shown) == 3
