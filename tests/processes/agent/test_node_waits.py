"""`torchrun` of two nodes of which one came: a run from its first second, an incident in time, a report that says so.

And its controls: the second node comes, and a run of one node that only starts slowly.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mldebug.status.snapshot import RunState
from processes.harness import (
    MLDEBUG,
    SCRIPTS,
    User,
    clean_environment,
    folder_for,
    free_port,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch
from shared.system.hung import missing
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("torchrun comes with PyTorch")

# On a busy machine the imports of torchrun alone take longer than twelve seconds
STALL = f"{{init_timeout: {12 * PATIENCE:g}s, interval: 1s}}"
SCRIPT = "import time; print('ready', flush=True); time.sleep(600)"
WAYS: dict[str, tuple[str, ...]] = {
    **{
        backend: ("--rdzv-backend", backend, "--rdzv-endpoint", "127.0.0.1:{port}", "--rdzv-id", "job7")
        for backend in ("c10d", "etcd", "etcd-v2")
    },
    "static": ("--master-addr", "127.0.0.1", "--master-port", "{port}"),
}  # fmt: skip


@pytest.fixture(params=sorted(WAYS))
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    port = str(free_port())
    with ExitStack() as stack:
        if request.param.startswith("etcd"):
            stack.enter_context(etcd(tmp_path, port))
        yield tuple(word.format(port=port) for word in WAYS[request.param])


@contextmanager
def etcd(folder: Path, port: str) -> Iterator[None]:
    """A real etcd on this port, with the interface that torchrun speaks (etcd up to 3.5 has it)."""
    program = shutil.which("etcd")
    if program is None or find_spec("etcd") is None:
        missing("needs etcd (Debian: etcd-server) and the package python-etcd")
    here, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    command = [program, "--enable-v2", "--data-dir", str(folder / "etcd"), "--listen-client-urls", here, "--advertise-client-urls", here,
               "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]  # fmt: skip
    with (folder / "etcd.log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for("etcd", lambda: _answers(f"{here}/version"), 30)
        yield
    finally:
        server.terminate()
        server.wait(20)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


@contextmanager
def launched(folder: Path, *options: str) -> Iterator[int]:
    """A torchrun and its pid; it is ended with its ranks."""
    script = folder / "train_waits.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(SCRIPTS / "torchrun"), *options, str(script)]
    with (folder / "job.log").open("ab") as log:
        one = subprocess.Popen(
            command, stdout=log, stderr=log, env=clean_environment(folder), start_new_session=True
        )
    try:
        yield one.pid
    finally:
        one.send_signal(signal.SIGTERM)
        try:
            one.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def run_named(agent: RunningAgent, *, ranks: bool) -> RunState | None:
    snap = agent.snapshot()
    runs = (one for one in (snap.runs if snap else ()) if one.name.startswith("train_waits.py"))
    return next((one for one in runs if bool(one.ranks) is ranks), None)


def printed(agent: RunningAgent, *words: str, code: int = 0) -> str:
    """What a command prints beside this agent."""
    done = subprocess.run(
        [*MLDEBUG, *words, "--config", str(agent.config)],
        check=False, capture_output=True, text=True, timeout=60, env=clean_environment(agent.folder),
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout


def report_of(agent: RunningAgent) -> dict[str, Any] | None:
    mine = (one for one in agent.reports() if one["job"]["name"].startswith("train_waits.py"))
    return next(mine, None)


def test_one_of_two_nodes_is_a_run_that_waits_and_then_an_incident(way: tuple[str, ...]) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(User()))
        agent = stack.enter_context(watching(folder, settings(folder, stall=STALL)))
        stack.enter_context(launched(folder, "--nnodes", "2", "--node-rank", "0", *way))
        run = wait_for("the run", lambda: run_named(agent, ranks=False), 60)
        assert run.sentence.startswith("waits for nodes, 1 of 2 present since ")
        shown = printed(agent, "status")
        assert run.id in shown
        assert "waits for nodes, 1 of 2 present since " in shown

        report = wait_for("the report", lambda: report_of(agent), 60)
        assert report["diagnosis"]["verdict"] == "init_incomplete"
        assert report["diagnosis"]["culprits"] == []
        assert "waits for nodes, 1 of 2 present since " in report["diagnosis"]["summary"]
        assert any("its stack" in line for line in report["diagnosis"]["evidence"])

        dumped = json.loads(printed(agent, "dump", "--json", "--job", run.id, code=1))
        assert dumped["diagnosis"]["verdict"] == "init_incomplete"

        # the other node comes
        stack.enter_context(launched(folder, "--nnodes", "2", "--node-rank", "1", *way))
        wait_for("the ranks", lambda: run_named(agent, ranks=True), 90)
        closed = wait_for("its end", lambda: _closed(agent), 30)
        assert closed["state"] == "recovered"
        assert run_named(agent, ranks=False) is None


def _closed(agent: RunningAgent) -> dict[str, Any] | None:
    report = report_of(agent)
    return report if report and report["state"] != "open" else None


def test_a_run_of_one_node_is_no_waiting_run() -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(User()))
        agent = stack.enter_context(watching(folder, settings(folder, stall=STALL)))
        stack.enter_context(launched(folder, "--standalone", "--nproc-per-node", "1"))
        wait_for("the ranks", lambda: run_named(agent, ranks=True), 90)
        assert run_named(agent, ranks=False) is None
        assert report_of(agent) is None
