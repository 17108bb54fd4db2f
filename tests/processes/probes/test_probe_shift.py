"""A real agent tells the shift of a series that root has measured, and that it is over."""

import stat
import time
import urllib.request
from pathlib import Path

import pytest

from mldebug.probes.history import ProbeRun, ProbeSeries
from mldebug_agents.probes.history.store import NAME, add_runs
from processes.harness import User, folder_for, free_port, wait_for
from processes.incidents.watching import settings, watching

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
SERIES = ProbeSeries(
    op="all_reduce", bytes=1 << 24, dtype="float32", ranks=8, device="NVIDIA H200", nodes="n1",
    torch="2.9.0", nccl="2.27.5", nccl_algo="", variables="",
)  # fmt: skip


def probed(state_dir: Path, *speeds: float) -> None:
    for speed in speeds:
        add_runs(state_dir, [(SERIES, ProbeRun(at=time.time(), seconds=1e-3, busbw=speed))])


def shifts(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return [one for one in lines if one.startswith("mldebug_probe_shifted{")]


def _config(folder: Path, port: int) -> str:
    return settings(folder, listen=f"127.0.0.1:{port}") + "events: {pending: 0s}\n"


def test_a_shift_is_told_until_later_runs_end_it(user: User) -> None:
    port = free_port()
    with folder_for(user) as folder, watching(folder, _config(folder, port), user) as agent:
        assert not shifts(port)
        probed(agent.state, *[400e9] * 10, *[350e9] * 3)
        facts = (agent.state / NAME).stat()
        assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (agent.state.stat().st_uid, 0o600)

        def states() -> list[str]:
            snap = agent.snapshot()
            events = snap.events.events if snap else ()
            return [one.state for one in events if one.kind == "probe_shift"]

        wait_for("the event", lambda: states() == ["firing"], 120)
        wait_for("the metric", lambda: any(one.endswith(" 1.0") for one in shifts(port)), 60)
        probed(agent.state, 401e9)
        wait_for("its end", lambda: states() == ["resolved"], 120)
        wait_for("the metric", lambda: all(one.endswith(" 0.0") for one in shifts(port)), 60)
        assert len(shifts(port)) == 1
