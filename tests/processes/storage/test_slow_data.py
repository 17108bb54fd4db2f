"""A real job whose data lie on a disk that becomes slow under it: the wait for data is told with the disk."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.status.run_lines import data_words
from mldebug.status.snapshot import RunState
from processes.harness import (
    MLDEBUG,
    User,
    clean_environment,
    environment_of_jobs,
    folder_for,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch
from shared.storage.disks import delayed, slow_disk

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the jobs train with PyTorch")

JOB = Path(__file__).parents[2] / "jobs/uneven.py"
FAST = "goodput: {interval: 5s}\nstorage: {interval: 2s}\n"
LEARNS = 60.0  # seconds: 20 readings and more, in which is learned what is usual
SLOW = (
    r"take \d[\d,.]* ms instead of \S+ ms since \d\d:\d\d UTC \(.*\); [12] of 2 ranks wait for data"
)


def run_of(agent: RunningAgent) -> RunState | None:
    snapshot = agent.snapshot()
    return next((one for one in snapshot.runs if one.name == JOB.name), None) if snapshot else None


def words_of(agent: RunningAgent) -> str:
    run = run_of(agent)
    return data_words(run) if run and run.slowness else ""


def words_for(agent: RunningAgent, seconds: float) -> set[str]:
    """All that is told for so long of the wait for data."""
    found, until = set[str](), time.monotonic() + seconds
    while time.monotonic() < until:
        found.add(words_of(agent))
        time.sleep(1.0)
    return found


def status(folder: Path) -> str:
    """What `mldebug status` prints, in one line."""
    command = [*MLDEBUG, "status", "--config", str(folder / "mldebug.yaml")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(folder), timeout=60, check=False
    )  # fmt: skip
    return " ".join(done.stdout.split())


@contextmanager
def reading(folder: Path, shard: Path) -> Iterator[None]:
    """A job of two ranks whose workers read the file for each sample."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    options = ["--fault", "files", "--ranks", "0,1", "--pace", "0.01", "--file", str(shard)]
    environ = environment_of_jobs(folder) | {"OMP_NUM_THREADS": "1"}
    with (folder / "train.log").open("wb") as out:
        job = subprocess.Popen(
            [*launcher, "2", str(JOB), *options], stdout=out, stderr=out, env=environ, cwd=folder
        )
    try:
        yield
    finally:
        job.terminate()
        job.wait(30)


def test_the_wait_for_data_is_told_with_the_disk_that_became_slow() -> None:
    with folder_for(User()) as folder, slow_disk(folder) as (disk, daemon):
        (disk / "shard").write_bytes(os.urandom(16 << 20))
        os.sync()
        with (
            reading(folder, disk / "shard"),
            watching(folder, settings(folder) + FAST) as agent,
        ):
            wait_for("the samples", lambda: (run := run_of(agent)) and run.slowness, 120)
            usual = words_for(agent, LEARNS)
            assert not any("instead of" in one for one in usual), usual
            with delayed(daemon.pid):
                slow = wait_for(
                    "the sentence",
                    lambda: next((one for one in [words_of(agent)] if "instead of" in one), ""),
                    120,
                )
                wait_for(
                    "the same in words", lambda: "of 2 ranks wait for data" in status(folder), 60
                )
            assert re.fullmatch(rf"reads of {disk} \(/dev/loop\d+\) {SLOW}", slow), slow
