"""A real server with pages to show: a run in every state, and reports on disk."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from mldebug.config.schema import AgentConfig
from mldebug.core.model import Gap, HookState, Role
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report_store import ReportStore
from mldebug.status.snapshot import RunState, Snapshot, SourceState
from mldebug_agents.web.listeners import open_unix
from mldebug_agents.web.server import AgentServer
from shared.incidents import samples
from shared.web.snapshots import AT, hooked, moving, snapshot, stalled

HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e{{7*7}}</script>"


def training(ranks: int = 8) -> RunState:
    """A run that goes well, with the hook."""
    by_name = {rank: HookState(step=1200 - rank % 2, step_age=0.2) for rank in range(ranks)}
    return replace(
        moving("5c01", ranks),
        uid=1000,
        name="llama-7b",
        hooks=by_name,
        sentence="last step 1.2 s ago (usual gap 0.4 s)",
        why_timeout="5 times the 99th percentile of its own gaps, at least 30 s",
        log="/scratch/ada/llama-7b/train.log",
        gpus={rank: f"GPU-{rank:08x}-1111" for rank in range(ranks)},
    )


def hanging(ranks: int = 8, culprit: int = 2) -> RunState:
    """A run with an incident that names a rank."""
    return replace(
        stalled("7f3a", ranks),
        uid=1000,
        name="pretrain.py",
        world_size=ranks,
        lost=(),
        loss=2.31,
        classes=dict.fromkeys(range(ranks), "collective") | {culprit: "sleep"},
        roles=dict.fromkeys(range(ranks), Role.WAITING) | {culprit: Role.INERT},
        frames=dict.fromkeys(range(ranks), "all_reduce at train.py:88")
        | {culprit: "slow_data_loader at data.py:41"},
        culprits=(culprit,),
        sentence=f"no step for 75 s (usual gap 0.4 s); {ranks - 1} ranks wait in all_reduce; rank {culprit} sleeps in slow_data_loader",
        report=f"rank {culprit} sleeps in slow_data_loader at data.py:41; {ranks - 1} ranks wait for it in all_reduce",
        log="/scratch/ada/pretrain/out.log",
    )


def hostile() -> RunState:
    """A run that calls everything by names that mean harm."""
    return replace(
        hooked("h0st"), id=f"h0st{HOSTILE}", uid=1000, name=HOSTILE * 3, launcher=HOSTILE, user=HOSTILE,
        sentence=HOSTILE, log=HOSTILE, loss=math.inf, devices=HOSTILE, frames={0: HOSTILE}, classes={0: HOSTILE},
        exits={9: HOSTILE}, lost=(9,), report=HOSTILE, incident="20261121T055041Z-7f3b", stage=HOSTILE,
    )  # fmt: skip


def shown(*runs: RunState, **changes: object) -> Snapshot:
    """A snapshot of a healthy agent."""
    calm: dict[str, object] = {
        "sources": (SourceState(name="watch", seconds=0.05),), "reports_lost": 0,
        "gaps": (Gap(what="kernel log", reason="permission denied", way_out="add CAP_SYSLOG"),),
    }  # fmt: skip
    return snapshot(*runs, **(calm | changes))


def store(state_dir: Path, name: str, job: str = "7f3a", **changes: object) -> str:
    """One of the sample reports, of that run; its id."""
    made = samples.report((samples.ALL | {"huge": samples.huge})[name]())
    job_view = replace(made.job, id=job)
    report = replace(made, job=job_view, **changes)
    ReportStore(state_dir).save(report, render_html(report), {})
    return report.id


@contextmanager
def pages(state_dir: Path, given: Snapshot, **settings: object) -> Iterator[AgentServer]:
    """Served at the socket, and by TCP where `listen` says so."""
    server = AgentServer(AgentConfig(state_dir=state_dir, **({"listen": ""} | settings)))  # type: ignore[arg-type]
    server.publish(given)
    server.start()
    server.serve_socket(open_unix(state_dir))
    try:
        yield server
    finally:
        server.stop(5)


LATER = AT + 5
