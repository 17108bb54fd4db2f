"""A node is recorded beside its agent, from training to a hang to a lost GPU, and played back: the same comes of it."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from fakenvml.library import FakeNvml
from mldebug.config.schema import load_config
from mldebug.hardware.health.model import ComponentHealth
from mldebug.incidents.pseudonyms import COMMON
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.support.replay.player import Player
from mldebug_agents.support.replay.recording import load
from mldebug_agents.web.client import ask_agent
from mldebug_exporters.prometheus import Prometheus
from processes.agent.light import LightJob, light_job
from processes.harness import SCRIPTS, clean_environment, free_port, wait_for
from processes.incidents.watching import RunningAgent, settings, watching
from shared.incidents.bundles import unpacked

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(180)]

STALL = "{timeout: 60s, interval: 500ms}"
NAMES = (
    ("GPU-3b7c1111-2222-3333-4444-555555555555", "1653023011111"),
    ("GPU-9a8d1111-2222-3333-4444-666666666666", "1653023022222"),
)
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
NOT_RECORDED = (
    "mldebug_port_",
    "mldebug_ports",
    "mldebug_rank_waiting_ratio",
    "mldebug_run_straggler_",
)
CLOCKS = 0.05
"""Seconds: two readings of the kernel's clock are some microseconds apart."""
OF_AGENT = ("mldebug_agent_", "mldebug_snapshot_", "mldebug_replay", "mldebug_series")


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    """Two GPUs that train."""
    (tmp_path / "nvml").mkdir()
    made = FakeNvml(tmp_path / "nvml", "training")
    for device, (uuid, serial) in enumerate(NAMES):
        made.set(f"nvmlDeviceGetUUID {device}", uuid)
        made.set(f"nvmlDeviceGetSerial {device}", serial)
    return made


@pytest.fixture
def agent(tmp_path: Path, fake: FakeNvml) -> Iterator[RunningAgent]:
    """An agent whose library is the fake."""
    more = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment, **pythonpath()}
    with watching(tmp_path, settings(tmp_path, stall=STALL), more=more) as one:
        yield one


def work_on(fake: FakeNvml, job: LightJob, recording: str) -> None:
    """Serve a recording in which the ranks of the job have the GPUs open."""
    fake.play(recording)
    for device, (uuid, serial) in enumerate(NAMES):
        fake.set(f"nvmlDeviceGetUUID {device}", uuid)
        fake.set(f"nvmlDeviceGetSerial {device}", serial)
    for rank, pid in job.ranks.items():
        fake.set(f"{PROCESSES} {rank}", pid, 1 << 30)


def looked(agent: RunningAgent) -> Snapshot:
    snapshot = agent.snapshot()
    assert snapshot is not None
    return snapshot


def run_of(snapshot: Snapshot, job: LightJob) -> RunState | None:
    return next((run for run in snapshot.runs if set(run.ranks.values()) & set(job.ranks.values())), None)  # fmt: skip


def gpus_do(agent: RunningAgent, job: LightJob, words: str) -> bool:
    run = run_of(looked(agent), job)
    return run is not None and words in run.devices


def mldebug(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    with (folder / "told").open("ab") as log:
        return subprocess.Popen(
            [str(SCRIPTS / "mldebug"), *arguments],
            stdout=log, stderr=log, cwd=folder, env=clean_environment(folder) | pythonpath(),
        )  # fmt: skip


def pythonpath() -> dict[str, str]:
    return {one: os.environ[one] for one in ("PYTHONPATH",) if one in os.environ}


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(20)


def series(snapshot: Snapshot) -> dict[str, float]:
    """Every line of a scrape that is about the node, not about the agent itself."""
    text = Prometheus().render(snapshot)[0].decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {
        name: float(value)
        for name, _, value in lines
        if not name.startswith((*OF_AGENT, *NOT_RECORDED)) and 'component="ports"' not in name
    }


def test_a_node_is_recorded_and_played_back(
    tmp_path: Path, agent: RunningAgent, fake: FakeNvml
) -> None:
    bundle = tmp_path / "b.tar.gz"
    with light_job(tmp_path / "job") as job:
        work_on(fake, job, "training")
        wait_for("who works where", lambda: (run := run_of(looked(agent), job)) and len(run.gpus) == 2, 60)  # fmt: skip
        arguments = ("--config", str(agent.config), "--out", str(bundle), "--for", "6m")
        with ended(mldebug(tmp_path, "support-bundle", *arguments)) as recorder:
            wait_for("its begin", lambda: "recording for" in (tmp_path / "told").read_text(), 30)
            began = time.time()
            wait_for("work", lambda: gpus_do(agent, job, "compute"), 60)
            wait_for("more looks", lambda: (w := looked(agent).gpu_watch) and w.at > began + 4, 30)
            work_on(fake, job, "hang-sleep")
            wait_for("the hang", lambda: gpus_do(agent, job, "GPU 1 runs nothing"), 30)
            fake.raise_event(1, 79)
            fake.lose(1)
            wait_for(
                "the missing GPU", lambda: missing(looked(agent)), 150
            )  # left alone for a minute
            recorder.send_signal(signal.SIGINT)
            assert recorder.wait(60) == 0, (tmp_path / "told").read_text()
    live = last_snapshot(bundle)
    assert missing(live)
    assert nobody_is_named(bundle)
    compare(live, replayed(bundle, agent.config))
    serves(tmp_path, bundle)


def last_snapshot(bundle: Path) -> Snapshot:
    """What the live agent said last, with the names of the bundle."""
    files = unpacked(bundle)
    (status,) = (value for name, value in files.items() if name.endswith("/status.json"))
    return msgspec.json.decode(status, type=Snapshot)


def nobody_is_named(bundle: Path) -> bool:
    """A machine that is called "vm" or "node" is so in its fields alone."""
    name = socket.gethostname().partition(".")[0].lower()
    names = [one for pair in NAMES for one in pair] + ([] if name in COMMON else [name])
    everything = b"".join(unpacked(bundle).values()).decode().lower()
    assert "serial-1" in everything
    assert [one for one in names if one.lower().removeprefix("gpu-") in everything] == []
    return last_snapshot(bundle).node == "node-1"


def replayed(bundle: Path, config: Path) -> Snapshot:
    """The end of the recording, played as fast as it goes."""
    player = Player(load(bundle), load_config(config))
    for event in player.events:
        player.play(event)
    return player.snapshot()


def compare(live: Snapshot, again: Snapshot) -> None:
    # a recording has no network ports: what this machine's do is no part of it
    recorded = [one for one in live.health if one.component != "ports"]
    assert without_time(again.health) == without_time(recorded)
    assert len(again.health) == len(recorded)
    for one, other in zip(sorted(again.health, key=str), sorted(recorded, key=str), strict=True):
        assert (one.at is None) == (other.at is None)
        assert one.at is None or other.at is None or abs(one.at - other.at) < CLOCKS, (one, other)
    assert [run.devices for run in again.runs] == [run.devices for run in live.runs]
    assert [run.gpus for run in again.runs] == [run.gpus for run in live.runs]
    assert again.kernel is not None
    assert live.kernel is not None
    xids = [(one.device, one.xid, one.count) for one in live.kernel.xids]
    assert [(one.device, one.xid, one.count) for one in again.kernel.xids] == xids
    assert 79 in [one.xid for one in live.kernel.xids]
    assert again.gpus == live.gpus
    before, after = series(live), series(again)
    assert len(before) > 100
    assert before.keys() == after.keys()
    unlike = {name: (value, after[name]) for name, value in before.items() if not alike(name, value, after[name])}  # fmt: skip
    assert unlike == {}


def alike(name: str, one: float, other: float) -> bool:
    return abs(one - other) < CLOCKS if "timestamp" in name else one == other


def without_time(health: Iterable[ComponentHealth]) -> set[str]:
    return {str(msgspec.structs.replace(one, at=None)) for one in health}


def serves(folder: Path, bundle: Path) -> None:
    """A real `mldebug agent --replay` has doors as an agent has."""
    port, state, config = free_port(), folder / "again", folder / "replay.yaml"
    config.write_text(f"agent: {{listen: '127.0.0.1:{port}'}}\n")
    flags = ("--config", str(config), "--state-dir", str(state), "--speed", "10x")
    with ended(mldebug(folder, "agent", "--replay", str(bundle), *flags)) as process:
        result = wait_for("its status", lambda: ask_agent(state) if state.exists() else None, 30)
        assert result.replay
        assert "mldebug_replay_info{" in scrape(port)
        children = Path(f"/proc/{process.pid}/task").glob("*/children")
        assert [one.read_text() for one in children if one.read_text()] == []
        assert process.wait(60) == 0
    text = (folder / "told").read_text()
    assert "gpu_count unhealthy" in text.splitlines()[-1], text
    assert list(state.iterdir()) == []


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def missing(snapshot: Snapshot) -> bool:
    return any(one.reason_code == "gpu_missing" for one in snapshot.health)
