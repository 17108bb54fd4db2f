"""Real gloo jobs with a rank that is slower than the others, and healthy ones: who is named, why, and that nobody is harmed."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the jobs train with PyTorch")

JOB = Path(__file__).parents[2] / "jobs/uneven.py"
FAST = "goodput: {interval: 5s}\n"


@contextmanager
def training(folder: Path, *options: str, ranks: int = 4) -> Iterator[Path]:
    """A job; yields the file that it prints into."""
    log = folder / "train.log"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", str(ranks), str(JOB), *options]
    environ = environment_of_jobs(folder) | {"OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        job = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environ, cwd=folder
        )
    try:
        wait_for("the first steps", lambda: b"step 10 " in log.read_bytes(), 120)
        yield log
    finally:
        job.terminate()
        job.wait(30)


def slow(folder: Path, *options: str) -> "tuple[int, Any]":
    """What `mldebug slow` finds: its exit code and what it prints."""
    state = folder / "mldebug.yaml"
    state.write_text(settings(folder))
    command = [*MLDEBUG, "slow", "--config", str(state), "--job", JOB.name, *options]
    done = subprocess.run(
        command, capture_output=True, env=clean_environment(folder), timeout=300, check=False
    )
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.returncode, done.stdout.decode()


def report_of(agent: RunningAgent) -> dict[str, Any] | None:
    return next((one for one in agent.reports() if one["kind"] == "slowdown"), None)


def run_of(agent: RunningAgent) -> RunState | None:
    snapshot = agent.snapshot()
    return next((one for one in snapshot.runs if one.name == JOB.name), None) if snapshot else None


@contextmanager
def slow_mount(folder: Path) -> Iterator[Path]:
    """A file of 1 MB on a mount that gives 2 MB a second."""
    source, target = folder / "fast", folder / "slow"
    source.mkdir()
    target.mkdir()
    (source / "shard").write_bytes(bytes(1_000_000))
    options = ["-o", "direct_io", "--read-rate=2M"]
    server = subprocess.Popen(["bindfs", "-f", *options, str(source), str(target)])
    try:
        wait_for("the mount", lambda: (target / "shard").exists(), 30)
        yield target / "shard"
    finally:
        subprocess.run(["umount", "-l", str(target)], check=False)
        server.terminate()
        server.wait(10)


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("bindfs"), reason="a slow mount needs root and bindfs"
)
def test_the_status_says_who_waits_for_data_and_which_mount_is_slow() -> None:
    with (
        folder_for(User()) as folder,
        slow_mount(folder) as shard,
        training(folder, "--fault", "files", "--rank", "1", "--pace", "0.02", "--file", str(shard)),
        watching(folder, settings(folder) + FAST) as agent,
    ):
        found = wait_for("the samples", lambda: (run := run_of(agent)) and run.slowness and run, 120)  # fmt: skip
        ranks = {one.rank: one.loading for one in found.slowness.shares}
        assert ranks[1] > 0.5, ranks
        # on a machine without a free CPU the others' workers are late, too
        assert all(share < 0.25 for rank, share in ranks.items() if rank != 1), ranks
        command = [*MLDEBUG, "status", "--config", str(folder / "mldebug.yaml")]
        text = subprocess.run(command, capture_output=True, text=True, env=clean_environment(folder), timeout=60, check=False).stdout  # fmt: skip
        words = " ".join(text.split())
        assert re.search(r"waits for data \d+ % of the time: rank 1 \d+ %, rank \d \d+ %", words), (
            text
        )
        assert re.search(r"of rank 1 worker \d+ waits for files on \S+/slow \(fuse\S*\)", words), (
            text
        )


@pytest.mark.parametrize(
    ("fault", "words"),
    [("sleep", "stands idle in augment (uneven.py:"), ("data", "waits for its DataLoader")],
)
def test_the_command_names_the_slow_rank_and_what_it_does(fault: str, words: str) -> None:
    with (
        folder_for(User()) as folder,
        training(folder, "--fault", fault, "--extra", "0.1", "--rank", "2"),
    ):
        code, text = slow(folder, "--json")
        (answer,) = json.loads(text)
        assert [one["rank"] for one in answer["found"]["ranks"]] == [2], answer
        assert (code, answer["name"]) == (1, JOB.name)
        assert words in answer["sentence"]


def test_the_agent_names_a_rank_that_becomes_slow_and_the_job_goes_on() -> None:
    fault = ("--fault", "sleep", "--extra", "0.1", "--after", "150")
    with (
        folder_for(User()) as folder,
        training(folder, *fault) as log,
        watching(folder, settings(folder) + FAST) as agent,
    ):
        wait_for("the first samples", lambda: (run := run_of(agent)) and run.slowness, 120)
        report = wait_for("the report", lambda: report_of(agent), 200)
        diagnosis, kind = report["diagnosis"], report["trigger"]
        assert (kind, diagnosis["verdict"], diagnosis["confidence"]) == ("slowdown", "straggler", "medium")  # fmt: skip
        assert [one["rank"] for one in diagnosis["culprits"]] == [1]
        assert "it stands idle in augment (uneven.py:" in diagnosis["summary"]
        run = wait_for("the incident", lambda: (one := run_of(agent)) and one.incident_kind and one, 30)  # fmt: skip
        assert (run.incident_kind, run.culprits, run.stage) == ("slowdown", (1,), "watching")
        steps = log.read_bytes().count(b"step ")
        wait_for("more steps", lambda: log.read_bytes().count(b"step ") > steps + 5, 60)


def test_a_healthy_job_names_nobody_and_ends_as_without_us() -> None:
    with folder_for(User()) as folder, training(folder, "--until", "400") as log, watching(folder, settings(folder) + FAST) as agent:  # fmt: skip
        wait_for("its end", lambda: b"step 400 " in log.read_bytes(), 300)
        assert report_of(agent) is None
        wait_for("the run to be gone", lambda: run_of(agent) is None, 60)
        assert agent.reports() == []
