"""Jobs that look stuck and are not: the agent must not say a word about them, at a timeout of 15 s.

All run at the same time under one agent.
"""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mldebug.status.snapshot import RunState
from processes.agent.light import light_job
from processes.harness import (
    PACE,
    SCRIPTS,
    Plan,
    RunningJob,
    User,
    folder_for,
    free_port,
    running,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the scenarios train with PyTorch")

PLANS: dict[str, dict[str, Any]] = {
    "checkpoint": {"struck": (0,)},
    "evaluation": {"struck": (0,)},
    "compile": {"struck": (1,)},
    "child": {"struck": (1,)},
    "copy": {"struck": (0,)},
    "silent": {"struck": (1,)},
    "irregular": {"struck": (1,)},
    "ramp": {"struck": (0, 1)},
    "healthy_chatty": {"struck": (1,)},
    "spin_healthy": {"struck": (1,)},
    "done": {"struck": (1,), "options": ("--steps", "60")},
}
PAUSES = (
    "checkpoint",
    "evaluation",
    "compile",
    "child",
    "copy",
)  # these tell when they are through
TOO_LATE = 15.0  # seconds; 2 are usual, but a machine may be busy with other things at that moment
WATCHED = 40.0  # seconds, more than twice the timeout
AFTERWARDS = 10  # steps to see before and after the pause


def programs(folder: Path) -> None:
    """Two that work for 40 s, a third of the time, one of them called like a compiler."""
    for name in ("cc1plus", "evaluate"):
        program(folder / name)


def program(path: Path) -> None:
    """A shell script that computes and rests, so that others may compute beside it."""
    computes = "n=0; while [ $n -lt 50000 ]; do n=$((n + 1)); done"
    path.write_text(
        f"#!/bin/sh\ntimeout 40 sh -c 'while :; do {computes}; sleep 0.1; done' || true\n"
    )
    path.chmod(0o755)


def asked_for(items: list[pytest.Item], user: User) -> list[str]:
    """The jobs that tests of this user want, of which `--each-job-once` leaves out half, and the one that ends."""
    mine = "as_is" if user.name is None else "ordinary"
    calls = [item.callspec.params for item in items if hasattr(item, "callspec")]
    names = [one.get("name") for one in calls if one.get("user") == mine]
    return [name for name in PLANS if name in (*names, "done")]


class Watched(NamedTuple):
    """What an agent has made of all jobs, by their names; they have ended since."""

    summaries: dict[str, list[str]]  # of its reports
    runs: dict[str, RunState | None]
    log: str


@pytest.fixture(scope="module")
def watched(user: User, library: Path, request: pytest.FixtureRequest) -> Watched:
    """Of every job, through its pause and after it."""
    with folder_for(user) as folder, ExitStack() as stack:
        agent = stack.enter_context(watching(folder, settings(folder), user))
        jobs = {}
        for name in asked_for(request.session.items, user):
            more = PLANS[name]
            own = stack.enter_context(folder_for(user))
            programs(own / "events")
            options = (*more.get("options", ()), *PACE, "--library", str(library))
            plan = Plan(
                name, world_size=2, after=20, user=user, struck=more["struck"], options=options
            )
            jobs[name] = stack.enter_context(running(plan, own))
        for job in jobs.values():
            job.wait_for_step(20)
        began = time.time()
        for name in filter(jobs.__contains__, PAUSES):
            jobs[name].wait_for_event("done", PLANS[name]["struck"])
            jobs[name].wait_for_step(jobs[name].step(0) + AFTERWARDS)
        wait_for("looks", lambda: (snap := agent.snapshot()) and snap.at > began + WATCHED, 90)
        alive = [job for name, job in jobs.items() if name != "done"]
        with suppress(AssertionError):  # the test says which one it does not know
            wait_for("the agent knows them", lambda: all(map(agent.run_of, alive)), 20)
        return Watched(
            {name: _summaries(agent, job) for name, job in jobs.items()},
            {name: agent.run_of(job) for name, job in jobs.items()},
            agent.log,
        )


def _summaries(agent: RunningAgent, job: RunningJob) -> list[str]:
    return [report["diagnosis"]["summary"] for report in agent.reports(job)]


@pytest.mark.parametrize("name", PLANS)
def test_the_agent_is_silent(name: str, watched: Watched) -> None:
    assert watched.summaries[name] == []


def test_the_runs_were_really_watched(watched: Watched) -> None:
    for name in sorted(set(watched.runs) - {"done"}):
        run = watched.runs[name]
        assert run is not None, name
        assert run.stage != "blamed", (name, run.sentence)
        assert (run.step is None) == (name == "silent"), (name, run)
    assert watched.runs["done"] is None
    assert "(train.py) is over" in watched.log


def test_a_checkpoint_may_outlast_the_patience_with_busy_ranks(user: User) -> None:
    """As long as it writes, however short `busy_timeout` is."""
    stall = "{timeout: 10s, busy_timeout: 20s, interval: 1s}"
    with folder_for(user) as folder, folder_for(user) as own:
        plan = Plan("checkpoint_pieces", world_size=2, after=20, user=user, struck=(0,))
        with (
            watching(folder, settings(folder, stall=stall), user) as agent,
            running(plan, own) as job,
        ):
            job.wait_for_event("done", (0,))
            saved = time.time() - _struck_at(job, 0)
            job.wait_for_step(job.step(0) + AFTERWARDS)
            summaries = _summaries(agent, job)
            run = wait_for("the agent knows it", lambda: agent.run_of(job), 20)
    assert saved > 22, f"it took only {saved:.0f} s"
    assert summaries == []
    assert run.stage != "blamed", run.sentence


# --- what goes on beside a hang ---------------------------------------------------------------------------


def test_a_sleeper_is_named_whatever_its_threads_and_children_do(user: User) -> None:
    """Each by the timeout of 15 s, whatever a monitor thread at 30 % of a core or a child that polls at 10 % does."""
    with folder_for(user) as folder, ExitStack() as stack:
        agent = stack.enter_context(watching(folder, settings(folder), user))
        jobs = []
        for fault in ("busy_thread", "busy_child"):
            own = stack.enter_context(folder_for(user))
            plan = Plan(fault, world_size=2, after=200, user=user, struck=(1,))
            jobs.append(stack.enter_context(running(plan, own)))
        for job in jobs:
            job.wait_for_event("strike", (1,))
            report = wait_for("its report", lambda one=job: agent.reports(one), 60)[0]
            assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [1]
            late = _moment(report["detected_at"]) - _struck_at(job) - 15.0
            print(f"{job.plan.fault}: {late:.1f} s after the timeout")
            assert late <= TOO_LATE * PATIENCE


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _struck_at(job: RunningJob, rank: int = 1) -> float:
    return (job.events / f"strike.{rank}").stat().st_mtime


# --- an elastic restart -------------------------------------------------------------------------------


class ElasticJob(RunningJob):
    """One rank per launcher; each further launcher makes the job begin anew with one rank more.

    The shared store is off: with it the first launcher does not tell the others its port a second time (torch 2.13).
    """

    port = 0

    def start(self) -> None:
        """The first launcher holds the rendezvous."""
        self.port = free_port()
        self.join()

    def join(self) -> None:
        """One more launcher, as on a node that comes later."""
        rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}")
        rendezvous += ("--rdzv-conf", "last_call_timeout=2", "--local-addr", "127.0.0.1")
        size = ("--nnodes", "1:2", "--nproc-per-node", "1")
        launcher = (str(SCRIPTS / "torchrun"), *size, *rendezvous, "--rdzv-id", self.mark)

        self._spawn([*launcher, *self._script()], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def test_a_node_that_joins_is_no_failure(user: User) -> None:
    with folder_for(user) as folder, folder_for(user) as own:
        job = ElasticJob(Plan(world_size=1, struck=(), user=user), own)
        with watching(folder, settings(folder), user) as agent, ended(job):
            job.wait_for_step(20)
            wait_for("the agent to see it", lambda: _moving(agent, job, 1), 30)
            before = dict(job.ranks)
            job.join()
            wait_for("both ranks", lambda: len(job.ranks) == 2 and job.ranks[0] != before[0])
            wait_for("the agent to see both", lambda: _moving(agent, job, 2), 60)
            wait_for("its first end", lambda: "rank 0 ended: killed by SIGTERM" in agent.log, 30)
            wait_for("its judgement", lambda: "from outside" in agent.log, 30)
            pids = {*before.values(), *job.ranks.values()}
            matching = [
                one for one in agent.reports() if pids & {rank["pid"] for rank in one["ranks"]}
            ]
        assert matching == [], agent.log


@contextmanager
def ended(job: RunningJob) -> Iterator[None]:
    """Start a job; nothing of it is left."""
    try:
        job.start()
        yield
    finally:
        job.end()


def _moving(agent: RunningAgent, job: RunningJob, size: int) -> RunState | None:
    run = agent.run_of(job)
    return run if run is not None and run.world_size == size and (run.step or 0) > 5 else None


# --- whose work it is to idle ----------------------------------------------------------------------------


def test_known_traps_are_told_and_are_no_alarm(tmp_path: Path) -> None:
    """`mldebug status` ends with 0, and the job is watched as any other."""
    traps = {
        "launch_blocking": {"CUDA_LAUNCH_BLOCKING": "1"},
        "blocking_wait": {"TORCH_NCCL_BLOCKING_WAIT": "1"},
        "tokenizers_fork": {"TOKENIZERS_PARALLELISM": "true"},
    }
    wrong = {name: value for one in traps.values() for name, value in one.items()}
    # other jobs of this machine may be silent: with a patience of seconds they would be stalls to this agent
    config = settings(tmp_path, stall="{timeout: 10m, interval: 500ms}")
    with light_job(tmp_path / "job", more=wrong) as job, watching(tmp_path, config) as agent:
        began = time.time()
        wait_for("looks at it", lambda: (s := agent.snapshot()) and s.at > began + 6.0, 30)
        run = agent.run_of(job)
        argv = (str(SCRIPTS / "mldebug"), "status", "--config", str(agent.config))
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert agent.reports(job) == []

    assert run is not None
    assert [trap.name for trap in run.traps] == list(traps)
    assert (run.stage, done.returncode) == ("watching", 0), done
    assert "TOKENIZERS_PARALLELISM=true" in done.stdout


def test_an_excluded_job_is_shown_and_never_judged(tmp_path: Path) -> None:
    stall = "{{timeout: 2s, interval: 500ms{}}}"
    excluding = settings(tmp_path, stall=stall.format(", exclude: ['light-*']"))
    with light_job(tmp_path / "job") as job, watching(tmp_path, excluding) as agent:
        wait_for("its steps", lambda: (run := agent.run_of(job)) and (run.step or 0) > 20, 30)
        job.hang()
        hung = time.time()
        wait_for("looks after it", lambda: (s := agent.snapshot()) and s.at > hung + 6.0, 30)
        run = agent.run_of(job)
        assert agent.reports(job) == []
        assert run is not None
        assert run.sentence == "not judged: its name stands in stall.exclude"

        _reload(agent, settings(tmp_path, stall=stall.format("")))
        wait_for("the report of a job that is judged again", lambda: agent.reports(job), 30)
        _reload(agent, excluding)
        wait_for("its end", lambda: agent.reports(job)[0]["state"] == "ended", 30)
        (report,) = agent.reports(job)
    assert "stall.exclude" in report["timeline"][-1]["what"]


def _reload(agent: RunningAgent, config: str) -> None:
    agent.config.write_text(config)
    agent.process.send_signal(signal.SIGHUP)
