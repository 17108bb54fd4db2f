"""A real Slurm of two nodes: jobs that are watched, drained nodes, arrays, orphans, and a stall that everybody is told of."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mldebug.alerts.view import EventView
from mldebug.jobs.schedulers.model import JobStanding, Queue, SchedulerState
from mldebug_agents.jobs.schedulers import slurm as slurm_plugin
from mldebug_agents.system.spawn import Spawner
from processes.alerts.test_alertmanager import receiver, running_alertmanager
from processes.alerts.test_notices import mailbox, sink
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent, settings, watching
from system.launching import SIZE, Launch, launched, need
from system.slurm import PROGRAMS, Slurm, slurm

pytestmark = [pytest.mark.scenario, pytest.mark.host, pytest.mark.timeout(300)]
NAME = "my träining | 10b"
ORPHAN = """
import os, signal, sys, time
if os.fork():
    time.sleep(1000)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCONT, signal.SIG_IGN)
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def both_nodes() -> Iterator[Slurm]:
    """Two nodes."""
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    need(*PROGRAMS, "squeue", "sbatch")
    with slurm() as one:
        yield one


@pytest.fixture
def cluster(both_nodes: Slurm) -> Iterator[Slurm]:
    """The same, with nothing on it after the test."""
    yield both_nodes
    both_nodes.free()


def submit(cluster: Slurm, folder: Path, *options: str, wrap: str = "sleep 600") -> str:
    """The number of a new job."""
    out = f"--output={folder}/slurm-%j.out"
    return cluster.run("sbatch", "--parsable", f"--chdir={folder}", out, *options, f"--wrap={wrap}").strip()  # fmt: skip


@contextmanager
def asking(folder: Path, cluster: Slurm, expected: str, more: str = "") -> Iterator[RunningAgent]:
    """An agent that asks this Slurm every five seconds."""
    config = settings(folder, stall="{timeout: 8s, interval: 1s}") + (
        "events: {pending: 0s}\n"
        f"schedulers: {{main: {{kind: slurm, only_on: ['*'], interval: 5s, node_events: ['*'], conf: {cluster.folder}/slurm.conf}}}}\n"
        f"jobs: {{orphan_grace: 4s, before_limit: 15m, expected: {{{expected}}}}}\n{more}"
    )
    with watching(folder, config) as agent:
        yield agent


def state_of(agent: RunningAgent) -> SchedulerState | None:
    snap = agent.snapshot()
    found = snap.schedulers if snap else ()
    return found[0] if found and found[0].success_at else None


def sentences(agent: RunningAgent) -> dict[str, str]:
    """Watch -> sentence."""
    state = state_of(agent)
    return {one.name: one.sentence for one in state.watched} if state else {}


def events(agent: RunningAgent, kind: str, state: str = "firing") -> list[EventView]:
    snap = agent.snapshot()
    result = snap.events.events if snap else ()
    return [one for one in result if (one.kind, one.state) == (kind, state)]


def labels(agent: RunningAgent) -> set[tuple[str, str]]:
    """Kind and what it is about, of each event of the scheduler that fires."""
    names = {"node_out": "scheduler_node", "job_missing": "watch", "time_limit_near": "job_id", "job_blocked": "job_id"}  # fmt: skip
    return {(kind, one.labels[name]) for kind, name in names.items() for one in events(agent, kind)}


def test_watched_jobs_drained_nodes_and_arrays(cluster: Slurm, tmp_path: Path) -> None:
    first = submit(cluster, tmp_path, f"--job-name={NAME}", "--time=10", "--nodelist=a1")
    array = submit(cluster, tmp_path, "--job-name=arr", "--array=1-4%1", "--nodelist=a1")
    cluster.run("scontrol", "update", "nodename=a2", "state=drain", "reason=bad disk, see ticket 7")
    try:
        big = submit(cluster, tmp_path, "--job-name=big", "--nodes=2")
        held = submit(cluster, tmp_path, "--job-name=held", "--hold")
        expected = f"mine: {{name: '{NAME}'}}, arr: {{id: '{array}'}}, big: {{name: big, user: root}}, held: {{id: {held}}}, no: {{name: absent}}"  # fmt: skip
        with asking(tmp_path, cluster, expected) as agent:
            wait_for("the array to begin", lambda: "running" in sentences(agent).get("arr", ""), 60)
            wait_for(
                "the nodes to be told", lambda: (result := state_of(agent)) and result.nodes, 60
            )
            outcome = sentences(agent)
            assert outcome["mine"].startswith(f"{first} ({NAME}): running for ")
            assert "its time limit ends it in " in outcome["mine"]
            state = state_of(agent)
            assert state is not None
            counts = {one.name: one.counts for one in state.watched}
            assert counts["arr"] == {"running": 1, "queued": 1}
            assert state.by == "json"
            assert outcome["big"].startswith(f"{big} (big): pending")
            assert "DOWN, DRAINED" in outcome["big"]
            assert "JobHeldUser" in outcome["held"]
            assert [(one.name, one.state, one.reason) for one in state.nodes] == [("a2", "drained", "bad disk, see ticket 7")]  # fmt: skip
            wait_for("the events", lambda: labels(agent) == {("node_out", "a2"), ("job_missing", "no"), ("time_limit_near", first), ("job_blocked", held)}, 30)  # fmt: skip

            cluster.run("scancel", first)
            wait_for("the cancelled job to be missed", lambda: len(events(agent, "job_missing")) == 2, 60)  # fmt: skip
            (gone,) = [one for one in events(agent, "job_missing") if one.labels["watch"] == "mine"]
            assert "is running or queued" in gone.sentence
            again = submit(cluster, tmp_path, f"--job-name={NAME}", "--nodelist=a1")
            wait_for("it to be back", lambda: events(agent, "job_missing", "resolved"), 60)
            assert sentences(agent)["mine"].startswith(again)
            cluster.run("scontrol", "update", "nodename=a2", "state=resume")
            wait_for("the node to be back", lambda: events(agent, "node_out", "resolved"), 90)
    finally:
        with suppress(AssertionError):
            cluster.run("scontrol", "update", "nodename=a2", "state=resume")


def jobs_and_nodes(options: slurm_plugin.Options, starter: Spawner) -> Queue:
    """Two questions, as the agent asks them."""
    one = slurm_plugin.create(options)
    one.ask(starter, nodes=False)
    return one.ask(starter, nodes=True)


def test_text_tells_what_json_tells(cluster: Slurm, tmp_path: Path) -> None:
    for name in ("squeue", "sinfo"):
        (tmp_path / name).write_text(f'#!/bin/sh\ncase "$*" in *--json*) exit 1;; esac\nexec {name} "$@"\n')  # fmt: skip
        (tmp_path / name).chmod(0o755)
    conf = cluster.folder / "slurm.conf"
    first = submit(cluster, tmp_path, f"--job-name={NAME}\n @", "--time=10")
    submit(cluster, tmp_path, "--job-name=arr", "--array=1-4%1")
    submit(cluster, tmp_path, "--job-name=later", "--begin=now+1hour")
    cluster.run("scontrol", "update", "nodename=a2", "state=drain", "reason=bürk | disk")
    try:
        wait_for("both to run", lambda: cluster.run("squeue", "--noheader", "--states=R").count("\n") >= 2, 60)  # fmt: skip
        with Spawner() as starter:
            new = jobs_and_nodes(slurm_plugin.Options(conf=conf), starter)
            by_text = slurm_plugin.Options(conf=conf, squeue=str(tmp_path / "squeue"), sinfo=str(tmp_path / "sinfo"))  # fmt: skip
            result = jobs_and_nodes(by_text, starter)
    finally:
        cluster.run("scontrol", "update", "nodename=a2", "state=resume")
    assert (new.by, result.by) == ("json", "text")
    alive = {one.id: one for one in new.jobs if one.standing is not JobStanding.OVER}
    assert {one.id: one for one in result.jobs} == alive
    assert alive[first].name == f"{NAME}\n @"
    assert alive[first].ends is not None
    assert [(one.name, one.reason) for one in result.nodes or ()] == [("a2", "bürk | disk")]
    assert result.nodes == new.nodes


def test_a_process_that_scancel_did_not_end_is_told_and_left_alone(
    cluster: Slurm, tmp_path: Path
) -> None:
    script, file = tmp_path / "stray.py", tmp_path / "pid"
    script.write_text(ORPHAN)
    job = submit(cluster, tmp_path, wrap=f"exec {sys.executable} {script} {file}")
    with asking(tmp_path, cluster, f"it: {{id: {job}}}") as agent:
        wait_for("the stray process", file.exists, 60)
        pid = int(file.read_text())
        try:
            wait_for("the job to be seen", lambda: "running" in sentences(agent).get("it", ""), 60)
            assert events(agent, "orphan_process") == []
            cluster.run("scancel", job)
            wait_for("the orphan", lambda: events(agent, "orphan_process"), 90)
            mine = [one for one in events(agent, "orphan_process") if one.labels["pid"] == str(pid)]
            assert len(mine) == 1, events(agent, "orphan_process")
            assert "of root, started 2" in mine[0].sentence
            assert f"outlived Slurm job {job}" in mine[0].sentence
            os.kill(pid, 0)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for("its end", lambda: events(agent, "orphan_process", "resolved"), 60)


def test_a_stall_under_slurm_is_one_mail_one_alert_and_one_payload_with_one_sentence(
    cluster: Slurm, tmp_path: Path
) -> None:
    argv = ("srun", "--nodes=2", f"--ntasks={SIZE}")
    launch = Launch("slurm", argv, cluster.environment, locals=(0, 0))
    (tmp_path / "am").mkdir()
    with (
        receiver() as (passed_to, alerts),
        running_alertmanager(tmp_path / "am", passed_to) as port,
        sink() as (url, posts),
        mailbox() as (smtp, mails),
        launched(tmp_path / "job", launch) as job,
        asking(tmp_path, cluster, "", _channels(url, port, smtp)) as agent,
    ):
        run = wait_for("the agent sees steps", lambda: _steps(agent, set(job.ranks.values())), 60)
        arrived = Arrived(run, posts, mails, alerts)
        for pid in job.ranks.values():
            os.kill(pid, signal.SIGSTOP)
        try:
            wait_for("all channels", lambda: arrived.by_all(1), 90)
        finally:
            for pid in job.ranks.values():
                os.kill(pid, signal.SIGCONT)
        try:
            wait_for("the end by all channels", lambda: arrived.by_all(2), 90)
        except AssertionError as error:
            pytest.fail(f"{error}\n{posts}\n{mails}\n{alerts}\n{agent.log}")
        (report,) = [
            one for one in agent.reports() if one["kind"] == "stall" and one["job"]["id"] == run
        ]

    sentence = report["diagnosis"]["summary"]
    assert [(one["state"], one["sentence"]) for one in arrived.hooks] == [("firing", sentence), ("resolved", sentence)]  # fmt: skip
    assert [one["status"] for one in arrived.alerts] == ["firing", "resolved"]
    assert {one["annotations"]["summary"] for one in arrived.alerts} == {sentence}
    assert [one.strip().partition("]")[0] for one in arrived.subjects] == ["[firing", "[resolved"]
    assert all(sentence[:60] in one for one in arrived.subjects), (sentence, arrived.subjects)


def _channels(url: str, port: int, smtp: int) -> str:
    facts = {
        "ops": {"kind": "webhook", "url": f"{url}/hook"},
        "am": {"kind": "alertmanager", "url": f"http://127.0.0.1:{port}"},
        "mail": {"kind": "email", "server": "127.0.0.1", "port": smtp, "security": "none",
                 "sender": "m@x.org", "to": ["ops@x.org"]},
    }  # fmt: skip
    return f"channels: {json.dumps(facts)}\n"


def _steps(agent: RunningAgent, pids: set[int]) -> str:
    """The run of these ranks, once it makes steps."""
    snap = agent.snapshot()
    mine = [run for run in (snap.runs if snap else ()) if pids & set(run.ranks.values())]
    return mine[0].id if mine and mine[0].step else ""


@dataclass
class Arrived:
    """What arrived of stalls of one run: jobs of other tests may stall on this machine."""

    run: str
    posts: list[tuple[str, Any]]
    mails: list[tuple[str, str]]
    received: list[Any]

    @property
    def hooks(self) -> list[Any]:
        return [
            body
            for _, body in self.posts
            if (body["kind"], body["labels"].get("run")) == ("stall", self.run)
        ]

    @property
    def alerts(self) -> list[Any]:
        wanted = {("alertname", "MldebugStall"), ("run", self.run)}
        return [one for one in self.received if wanted <= set(one["labels"].items())]

    @property
    def subjects(self) -> list[str]:
        sentences = {one["sentence"][:60] for one in self.hooks}
        stalls = [subject for kind, subject in self.mails if kind == "stall"]
        return [one for one in stalls if any(sentence in one for sentence in sentences)]

    def by_all(self, count: int) -> bool:
        return min(map(len, (self.hooks, self.alerts, self.subjects))) >= count
