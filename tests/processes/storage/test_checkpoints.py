"""A real job that saves with torch.distributed.checkpoint is killed halfway: what the agent says of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mldebug.storage.checkpoints.state import SeriesState
from processes.harness import (
    JOBS,
    SCRIPTS,
    User,
    clean_environment,
    environment_of_jobs,
    folder_for,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the scenarios train with PyTorch")

CONFIG = "checkpoints: {settle: 5s, interval: 2s}\n"


@contextmanager
def saving(folder: Path, place: Path, job: str = "saving.py", *words: str) -> Iterator[Path]:
    """The job, and the folder into which it saves."""
    with (folder / "job.log").open("ab") as log:
        running = subprocess.Popen(
            [SCRIPTS / "torchrun", "--standalone", "--nproc-per-node=4", "--max-restarts=1", JOBS / job, place, *words],
            stdout=log, stderr=log, cwd=folder, env=environment_of_jobs(folder) | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )  # fmt: skip
    try:
        yield place
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def made(folder: Path) -> Path:
    place = folder / "ckpt"
    place.mkdir()
    return place


def series_of(
    agent: RunningAgent, folder: Path, wanted: Callable[[SeriesState], bool]
) -> SeriesState:
    """The saves in that folder, as soon as they are as wanted."""

    def found() -> SeriesState | None:
        snap = agent.snapshot()
        saves = [one for run in (snap.runs if snap else ()) for one in run.checkpoint_series]
        return next((one for one in saves if one.folder == str(folder) and wanted(one)), None)

    return wait_for("what is told of the saves", found, 100.0)  # type: ignore[no-any-return]


def newest(one: SeriesState) -> str:
    return f"{one.newest.name} {one.newest.state}" if one.newest else ""


def words(agent: RunningAgent, folder: Path) -> str:
    """What `mldebug status` prints; between two attempts of the job it tells of none."""
    command = [sys.executable, "-m", "mldebug", "status", "--config", agent.config]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(folder), check=False)  # fmt: skip
    return done.stdout


def test_a_save_that_is_killed_halfway_is_told_with_the_last_complete_one_and_what_is_lost() -> (
    None
):
    with folder_for(User()) as folder:
        config = settings(folder, stall="{timeout: 60s, interval: 1s}") + CONFIG
        with watching(folder, config) as agent, saving(folder, made(folder)) as place:
            first = series_of(agent, place, lambda one: one.last is not None)
            died = series_of(agent, place, lambda one: newest(one) == "step_20 incomplete")
            lines = (
                "last complete checkpoint step_10",
                "step_20 is incomplete: there is no .metadata",
            )
            wait_for(
                "the same in words", lambda: all(one in words(agent, folder) for one in lines), 60
            )

    assert first.last is not None
    assert (first.last.name, first.last.layout, first.last.shards) == ("step_10", "distributed", 4)
    assert died.last is not None
    assert died.last.name == "step_10"
    assert died.newest is not None
    assert died.newest.why == "there is no .metadata, which is written last"
    assert died.left_bytes >= 4 << 20
    assert died.lost_steps is not None
    assert 0 <= died.lost_steps <= 2000


def test_a_save_that_grows_in_memory_is_progress_until_it_stops() -> None:
    """The rank writes through a mapping and sleeps in between; it takes 45 s where 12 s are the patience."""
    with folder_for(User()) as folder, TemporaryDirectory(dir="/dev/shm") as name:
        config = settings(folder, stall="{timeout: 12s, interval: 1s}") + CONFIG
        with watching(folder, config) as agent, saving(folder, Path(name), "slow_saving.py", "45"):
            report = wait_for("the report", lambda: next(iter(agent.reports()), None), 120)
            stopped = Path(name) / "stopped"
            assert stopped.exists(), "it was reported while it grew"
            late = _moment(report["detected_at"]) - stopped.stat().st_mtime
    assert late > 0
    assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [0]


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
