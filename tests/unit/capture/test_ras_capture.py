"""NCCL RAS from the environment of a real process to the report: found, asked beside the capture, kept, told."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mldebug.config.schema import AgentConfig, Config
from mldebug.core.model import Job, NodeCapture, RankIdentity
from mldebug.diagnosis.diagnose import diagnose
from mldebug.stall.signals import ProgressKind, RunLook, Stage, StallDecision
from mldebug_agents.agent.capture_queue import GLANCE
from mldebug_agents.agent.node_tools import CurrentConfig, NodeTools, open_tools
from mldebug_agents.agent.wiring import build_loop
from mldebug_agents.incidents.manual import write_down
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.host import Host
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.watch import NodeLook
from shared.capture.monitored import library
from shared.capture.rasserver import (
    HOLDS,
    RasServer,
    after_handshake,
    answer,
    drips,
    half,
    says,
    serving,
)
from shared.system.hung import wait_until
from unit.jobs.test_ranks_live import job_when, started

SLEEP = "import time; time.sleep(600)"
SPEAKS = f"{HOLDS}\n{SLEEP}"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeTools]:
    state = AgentConfig(state_dir=tmp_path_factory.mktemp("state"))
    with open_tools(Config(agent=state)) as one:
        yield one


def captured(tools: NodeTools, server: RasServer, **more: object) -> tuple[Job, NodeCapture]:
    """A job of two ranks, of which one is here."""
    variables = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "NCCL_RAS_ADDR": server.address}
    with started(sys.executable, "-c", SPEAKS, **{**variables, **more}) as process:
        server.speak_for()
        job = job_when(tools.capture.finder, process.pid, lambda job: True)
        found = Discovery(jobs=(job,))
        server.serve = says(
            answer({0: {"AllReduce": 9}, 1: {"AllReduce": 8}}, pids={0: process.pid})
        )
        return job, tools.capture.capturer(0.0).capture(job, found.children)


def test_an_answer_is_kept_and_told(tools: NodeTools) -> None:
    with serving(half("")) as server:
        job, taken = captured(tools, server)
    assert job.ranks[0].nccl_ras == server.address
    assert taken.ras is not None
    assert taken.ras.communicators[0].levels != ()
    assert (
        "NCCL RAS: rank 1 has launched 8 AllReduce, the other up to 9"
        in diagnose([taken]).diagnosis.evidence
    )
    assert [gap for gap in taken.gaps if gap.what == "NCCL RAS"] == []


SERVES = f"""{HOLDS}
import ctypes, mmap, socket, sys, threading, time
mapped = open(sys.argv[1], "rb")
held = mmap.mmap(mapped.fileno(), 0, access=mmap.ACCESS_READ)
door = socket.socket(socket.AF_UNIX)
door.bind(sys.argv[2])
door.listen()
def serve():
    ctypes.CDLL(None).prctl(15, b"pt_workerserver", 0, 0, 0)
    taken = door.accept()
    time.sleep(600)
threading.Thread(target=serve).start()
"""


def test_a_report_waits_for_nobody_who_is_slow(tools: NodeTools, tmp_path: Path) -> None:
    """RAS says a byte a second, the worker server never a word: the report does not wait for them."""
    argv = (sys.executable, "-c", SERVES, str(library(tmp_path, "2.13.0")), f"{tmp_path}/server")
    variables = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0}
    with (
        serving(after_handshake(drips)) as server,
        started(*argv, **variables, NCCL_RAS_ADDR=server.address) as one,
    ):
        server.speak_for()
        wait_until(lambda: "pt_workerserver" in _waits(one.pid))
        job = job_when(tools.capture.finder, one.pid, lambda job: True)
        tools.capture.flight_recorders.update(tools.capture.finder.find())
        began = time.monotonic()
        taken = tools.capture.capturer(GLANCE).capture(job, {})
        report = write_down(tools.capture, taken, time.time()).report
        took = time.monotonic() - began
        assert server.connections > 0
    reasons = [gap.reason for gap in report.gaps]
    assert "no answer in time" in reasons
    assert any("its worker server: timed out" in one for one in reasons)
    assert (
        took < 8.0
    )  # 3.9 s on a machine of its own; eleven where each is waited for as long as it likes


def _waits(pid: int) -> list[str]:
    """The threads of a process that wait for a connection."""
    state = Host().process_state(pid)
    return [one.name for one in state.threads if one.syscall.startswith("accept")] if state else []


def test_a_job_that_switched_it_off_is_not_asked(tools: NodeTools) -> None:
    with serving(half("")) as server:
        job, taken = captured(tools, server, NCCL_RAS_ENABLE=0)
        assert server.connections == 0
    assert (job.ranks[0].nccl_ras, taken.ras) == ("off", None)
    (gap,) = [gap for gap in taken.gaps if gap.what == "NCCL RAS"]
    assert gap.reason == "the job has switched it off (NCCL_RAS_ENABLE=0)"


def test_a_capture_of_before_has_no_answer() -> None:
    """Evidence on disk goes on being read."""
    plain = NodeCapture(node="n", taken_at=1.0, job=Job(id="j", name="x", launcher="torchrun"))
    stored = json.loads(msgspec.json.encode(plain))
    del stored["ras"]
    assert msgspec.convert(stored, NodeCapture).ras is None


# --- during the watch ------------------------------------------------------------------------------


def test_the_agent_asks_and_its_decision_hears_of_it(
    tools: NodeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is quiet: two answers whose counts differ, by the real worker, are a sign in the next look."""
    config = Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""))
    node = build_loop(
        CurrentConfig(config),
        tools,
        StateStore(tmp_path / "state", tools.context.spawner),
        lambda _: None,
    )
    looks: list[JobLook] = []
    monkeypatch.setattr(node, "_see", lambda run, one: (run.update(one), looks.append(one)))
    monkeypatch.setattr("mldebug_agents.watch.ras_watch.QUIET", 0.0)
    monkeypatch.setattr("mldebug_agents.watch.ras_watch.AT_MOST", float("inf"))
    with serving(half("")) as server:
        rank = RankIdentity(
            rank=0, world_size=1, pid=os.getpid(), uid=os.geteuid(), nccl_ras=server.address
        )
        job = Job(id="j", name="train.py", launcher="torchrun", ranks=(rank,))
        look = NodeLook(at=1.0, found=Discovery(jobs=(job,)), jobs=(quiet(job),))
        node._looked(look)
        node.runs["j"].decision = StallDecision(stage=Stage.SUSPECT, sentence="")
        for count in (5, 6):
            server.serve = says(answer({0: {"AllReduce": count}}, pids={0: os.getpid()}))
            node._parts.ras.tick(node.runs)
            while (result := node._inbox.get(timeout=20)) is None or result.worker != "ras":
                pass
            node._handle(result)
        node._looked(look)
    assert [one.kind for one in looks[-1].look.progress] == [ProgressKind.RAS]
    assert looks[0].look.progress == ()


def quiet(job: Job) -> JobLook:
    return JobLook(job=job, look=RunLook(at=1.0, run=job.id, backend="nccl"))
