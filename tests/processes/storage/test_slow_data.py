"""A real job whose data lie on a disk that becomes slow under it: the wait for data is told with the disk."""

import html
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mldebug.status.run_lines import data_words
from mldebug.status.snapshot import RunState
from mldebug_agents.web.unix_http import UnixConnection
from processes.harness import (
    MLDEBUG,
    User,
    clean_environment,
    environment_of_jobs,
    folder_for,
    free_port,
    wait_for,
)
from processes.incidents.watching import Report, RunningAgent, settings, watching
from processes.needs import need_torch
from shared.storage.disks import delayed, slow_disk
from shared.storage.slow_fuse import SOURCE, slow_fuse

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the jobs train with PyTorch")

JOB = Path(__file__).parents[2] / "jobs/uneven.py"
TEST_READS = (
    "goodput: {interval: 5s}\nstorage: {interval: 2s, canary: {reads: true, read_interval: 1s}}\n"
)
FAST = "goodput: {interval: 5s}\nstorage: {interval: 2s}\n"
LONGER = "{timeout: 30s, interval: 1s}"
LEARNS = 60.0  # seconds: 20 readings and more, in which is learned what is usual
SLOW = r"\d[\d,.]* ms instead of \S+ ms since \d\d:\d\d UTC( \(.*\))?; (1 of 2 ranks waits|2 of 2 ranks wait) for data"
COST = r"(a step takes \d[\d.]* times as long as it used to|the others wait for rank [01] \d+ % of the time)"
"""Of two workers that read the same bucket one may be last each time: then the other rank waits for it."""


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
def reading(folder: Path, shard: Path, pace: str = "0.01") -> Iterator[None]:
    """A job of two ranks whose workers read the file for each sample."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    options = ["--fault", "files", "--ranks", "0,1", "--pace", pace, "--file", str(shard)]
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
                    "the same in words",
                    lambda: re.search("of 2 ranks waits? for data", status(folder)),
                    60,
                )
            assert re.fullmatch(rf"(?:reads|opens) of {disk} \(/dev/loop\d+\) take {SLOW}", slow), (
                slow
            )
            report = wait_for("the incident", lambda: slowdown(agent), 120)
            print(report["diagnosis"])
            assert f"eads of {disk} (" in report["diagnosis"]["summary"]
            assert report["diagnosis"]["verdict"] == "storage_fault"


def slowdown(agent: RunningAgent) -> Report | None:
    """The report of the run that has become slower."""
    return next((one for one in agent.reports() if one["kind"] == "slowdown"), None)


def page(agent: RunningAgent, path: str) -> str:
    """A page as the agent serves it, its words alone."""
    with closing(UnixConnection(agent.state)) as connection:
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", text).split()))


def test_the_wait_for_data_is_told_with_the_object_store_whose_reads_became_slow() -> None:
    port = free_port()
    with (
        folder_for(User()) as folder,
        folder_for(User()) as bed,
        slow_fuse(bed, 1 << 20, 0.003) as (bucket, delay),
        reading(folder, bucket / "shard", "0.05"),
        watching(
            folder, settings(folder, stall=LONGER, listen=f"127.0.0.1:{port}") + TEST_READS
        ) as agent,
    ):
        wait_for("the samples", lambda: (run := run_of(agent)) and run.slowness, 180)
        learnt = lambda: "usually read in" in page(agent, "/storage")
        wait_for("what is usual", learnt, 180)
        assert not any("instead of" in one for one in words_for(agent, 10.0))
        delay.write_text(
            "0.3"
        )  # five steps take 12 s and more, and the run is quiet between two lines
        found = lambda: next((one for one in [words_of(agent)] if "instead of" in one), "")
        slow = wait_for("the sentence", found, 180)
        assert re.fullmatch(rf"(?:reads|opens) of {bucket} \({SOURCE}\) take {SLOW}", slow), slow
        slow_words = f"of {bucket} ({SOURCE}) take"
        # a slow rank may be known before its mount is: the report is written again then
        named = lambda: (one := slowdown(agent)) and one["diagnosis"]["verdict"] == "storage_fault" and one  # fmt: skip
        report = wait_for("the incident that names the mount", named, 120)
        found = report["diagnosis"]
        print(found)
        assert re.fullmatch(rf"(?:Reads|Opens) of {bucket} \({SOURCE}\) take {SLOW}: {COST}", found["summary"]), found  # fmt: skip
        assert (found["verdict"], found["confidence"]) == ("storage_fault", "medium")
        (culprit,) = found["culprits"]
        assert culprit["kind"] == "mount"
        assert any("for files on" in one for one in found["evidence"]), found
        wait_for(
            "the same in words", lambda: re.search("of 2 ranks waits? for data", status(folder)), 90
        )
        wait_for("the alarm and who waits", lambda: re.search(re.escape(slow_words) + r".{10,80}; ([12] of 2 ranks of uneven.py) waits? for data", page(agent, "/storage")), 90)  # fmt: skip
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
        path = re.escape(str(bucket))
        value = re.search(rf'mldebug_filesystem_canary_read_seconds{{[^}}]*mount="{path}"[^}}]*operation="read"[^}}]*}} (\S+)', metrics)  # fmt: skip
        assert value, [line for line in metrics.splitlines() if "canary" in line]
        assert float(value[1]) >= 0.3
