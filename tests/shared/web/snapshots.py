"""Snapshots as an agent publishes them, for the tests and benchmarks of what reads them."""

import math

from mldebug.core.model import Gap, HookState
from mldebug.jobs.known_issues.match import KnownIssue
from mldebug.jobs.logs.records import STEP_BOUNDS, LogCounts, StepTimes
from mldebug.status.snapshot import Children, RunState, Snapshot, SourceState

AT = 1_795_240_000.0
REPORT = "20261121T055041Z-7f3a"


def moving(run: str = "5c01", ranks: int = 4) -> RunState:
    """A run that trains and tells everything."""
    return RunState(
        id=run, name="train.py", launcher="torchrun", id_across_nodes="a0f3", user="ada", attempt=1, world_size=ranks,
        ranks={rank: 100 + rank for rank in range(ranks)}, quiet_seconds=1.2, progress_at=AT - 1.5,
        timeout_seconds=30.0, step=1200, loss=2.75, step_seconds=0.4,
        step_times=StepTimes(counts=(0, 0, 0, 7, 1180, 3, *[0] * 6, 1), seconds=1075.25),
        log_counts=LogCounts(lines=1500, records=1200, binary=2, oversized=1, rotations=1, skipped_bytes=4096),
    )  # fmt: skip


def trapped(run: str = "e4f0") -> RunState:
    """A run that sits in two known traps, in one of them twice."""
    traps = [KnownIssue(name=name, message="m", todo="t", source="s") for name in ("ras_off", "debug_detail", "ras_off")]  # fmt: skip
    return RunState(id=run, name="train.py", launcher="torchrun", user="ada", traps=tuple(traps))


def hooked(run: str = "9d2e", ranks: int = 4) -> RunState:
    """A run whose ranks have the hook; the last one has just begun to save, under a name of the job's own."""
    by_name = {
        rank: HookState(step=41, step_age=0.2, scalars={"loss": 2.5}) for rank in range(ranks)
    }
    by_name |= {
        0: HookState(
            step=41, phase="checkpoint_save", phase_age=12.0, scalars={"loss": 2.25, "lr": 1e-4}
        )
    }
    by_name |= {ranks - 1: HookState(step=40, phase='tidy "up"', phase_age=0.5)}
    return RunState(
        id=run, name="train.py", launcher="torchrun", user="ada", world_size=ranks, hooks=by_name, step=41, loss=2.25,
        ranks={rank: 300 + rank for rank in range(ranks)}, quiet_seconds=0.2, progress_at=AT - 0.2, timeout_seconds=30.0,
    )  # fmt: skip


def stalled(run: str = "7f3a", ranks: int = 4) -> RunState:
    """A run with an open incident: rank 2 sleeps, the others wait."""
    classes = dict.fromkeys(range(ranks), "collective") | {2: "sleep"}
    return RunState(
        id=run, name='run "é" C:\\new', launcher="slurm", user="ada", world_size=ranks + 1, lost=(ranks,),
        ranks={rank: 200 + rank for rank in range(ranks)}, classes=classes, stage="blamed", quiet_seconds=75.0,
        progress_at=AT - 76.0, timeout_seconds=60.0, step=9, loss=math.nan, incident=REPORT, incident_kind="stall",
        incident_since=AT - 76.0, verdict="rank_waiting",
    )  # fmt: skip


def snapshot(*runs: RunState, **changes: object) -> Snapshot:
    """An agent that watches these runs."""
    made = {
        "node": "n1", "at": AT, "started_at": AT - 3600, "runs": runs, "version": "0.2.0",
        "sources": (SourceState(name="watch", seconds=0.05),
                    SourceState(name="capture", success=False, stuck=True, error="OSError")),
        "incidents": {"stall/rank_waiting": 2}, "last_report": {"stall/rank_waiting": REPORT},
        "gaps": (Gap(what="environment", reason="permission denied"),),
        "cpu_seconds": 12.5, "rss_bytes": 41_000_000, "reports_lost": 1,
        "children": Children(count=2, cpu_seconds=3.25, memory_bytes=58_000_000),
    }  # fmt: skip
    return Snapshot(**(made | changes))  # type: ignore[arg-type]


def big(series: int = 2000) -> Snapshot:
    """An agent whose exposition has about so many series."""
    each = 6 + 5 + len(STEP_BOUNDS) + 3 + 7 + 7
    return snapshot(*(moving(f"run{number:04d}", ranks=8) for number in range(series // each - 1)))
