"""An Xid of an application, made on purpose: a kernel of a child of ours writes where nothing is (`gpu.wild`).

Only where it is named: whoever lends the GPU shall decide. The driver ends the child's own context and nothing else.
"""

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from gpu import wild, world
from mldebug.hardware.gpu.readings import GpuEvent
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent

XIDS = (13, 31)  # a fault of a kernel; a fault of the GPU's memory management
ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
PATIENCE = 30.0  # seconds


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """The child is a run of one rank to the agent; strike once it knows that."""
    try:
        ctypes.CDLL(wild.LIBRARY)
    except OSError as error:
        raise AssertionError(f"no CUDA driver: {error}") from error
    with world.agent(folder) as agent, world.reader() as (reader, _), child(folder) as one:
        reader.watch()  # from here on its set takes events
        wait_for("the run of the child", lambda: _known(agent, one.pid), 45)
        began, result = world.now(), struck(one)
        yield "child", {"pid": one.pid, **result}
        events, joined = events_of(agent, reader, one.pid, began)
        yield "events", msgspec.to_builtins(events)
        yield "joined", msgspec.to_builtins(joined)
        snap = agent.snapshot()
        yield "kernel_log", bool(snap and snap.kernel and snap.kernel.readable)
        yield "claims", claims(result, events, joined, one.pid)


@contextmanager
def child(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Ready to strike; gone at the end."""
    argv = [sys.executable, "-m", "gpu.wild"]
    file, env = folder / "wild.log", world.environment(folder, RANK)
    with (
        file.open("wb") as log,
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
        ) as one,
    ):
        try:
            assert _line(one) == "ready", file.read_text()[-1000:]
            yield one
        finally:
            world.end(one)


def struck(one: "subprocess.Popen[str]") -> dict[str, int]:
    """What CUDA said to it."""
    assert one.stdin is not None
    one.stdin.write("strike\n")
    one.stdin.flush()
    table: dict[str, int] = json.loads(_line(one))
    return table


def _line(one: "subprocess.Popen[str]") -> str:
    assert one.stdout is not None
    return one.stdout.readline().strip()


def _known(agent: RunningAgent, pid: int) -> bool:
    snap = agent.snapshot()
    return bool(snap and any(pid in run.ranks.values() for run in snap.runs))


def events_of(
    agent: RunningAgent, reader: Nvidia, pid: int, began: float
) -> tuple[list[GpuEvent], list[RankEvent]]:
    """What the event set told, and what the agent has joined, as soon as both have come; or what there is when time is over."""
    events: list[GpuEvent] = []
    joined: list[RankEvent] = []

    def both() -> bool:
        events.extend(one for one in reader.watch().events if one.xid is not None)
        snap = agent.snapshot()
        joined[:] = [one for one in snap.kernel_events if one.burst.last_at >= began - 1] if snap else []  # fmt: skip
        return bool(events) and any(pid in one.burst.pids for one in joined)

    with suppress(AssertionError):  # the claims tell which of the two is missing
        wait_for("the Xid", both, PATIENCE)
    return events, joined


def claims(
    table: dict[str, int], events: Sequence[GpuEvent], joined: Sequence[RankEvent], pid: int
) -> list[dict[str, Any]]:
    """That the kernel ended in a fault, that the driver told it, and that the agent knows whose it was."""
    xids = [one.xid for one in events]
    mine = [one for one in joined if pid in one.burst.pids and set(XIDS) & one.burst.xids.keys()]
    of_rank = [(one.rank, one.by) for one in mine]
    code = table.get("wait")
    pairs = [(one.burst.xids, one.burst.pids) for one in joined]
    return [
        {"claim": "the child's kernel ended in a fault", "held": code in (ILLEGAL_ADDRESS, LAUNCH_FAILED), "saw": code},
        {"claim": "the event set told Xid 13 or 31", "held": bool(set(XIDS) & set(xids)), "saw": xids},
        {"claim": "the kernel's log told it with the child's pid", "held": bool(mine), "saw": pairs},
        {"claim": "the agent joined it to the rank by its process", "held": (0, "process") in of_rank, "saw": of_rank},
    ]  # fmt: skip
