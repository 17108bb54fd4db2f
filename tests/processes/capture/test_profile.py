"""`mldebug profile` of real jobs: with the hook a trace of PyTorch's profiler, without it samples of py-spy; the job goes on as before."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mldebug.capture.profile.trace import parse_trace
from processes.agent.light import light_job
from processes.harness import (
    JOBS,
    MLDEBUG,
    PACE,
    Answer,
    Plan,
    RunningJob,
    clean_environment,
    environment_of_jobs,
    mldebug,
    running,
    wait_for,
)
from processes.incidents.watching import settings, watching
from processes.needs import need_torch
from shared.system.users import system_python

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the jobs train with PyTorch")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is also other users")


def profile(job: RunningJob, *more: str) -> Answer:
    return mldebug(job, "profile", "--job", job_id(job), *more)


def job_id(job: RunningJob) -> str:
    shown = mldebug(job, "status", "--json").report
    pids = set(job.ranks.values())
    found = [one["id"] for one in shown["jobs"] if {r["pid"] for r in one["ranks"]} & pids]
    return str(found[0])


def left(job: RunningJob) -> list[str]:
    """Files of requests and traces in shared memory."""
    names = [
        path.name
        for pid in job.ranks.values()
        for path in Path("/dev/shm").glob(f"mldebug-{pid}-*")
    ]
    return [name for name in names if ".request" in name or "trace" in name]


def descriptors(job: RunningJob) -> dict[int, int]:
    return {rank: len(list(Path(f"/proc/{pid}/fd").iterdir())) for rank, pid in job.ranks.items()}


def test_a_hooked_job_traces_its_next_steps_and_goes_on() -> None:
    with running(Plan(world_size=2, hook=True, options=PACE)) as job:
        job.wait_for_step(5)
        before = job.ranks
        answer = profile(job, "--ranks", "0,1", "--steps", "2", "--json")
        assert answer.code == 0, answer.stdout + answer.stderr
        profiles: list[dict[str, Any]] = answer.report["profiles"]
        assert [one["rank"] for one in profiles] == [0, 1]
        for one in profiles:
            data = gzip.decompress(Path(answer.report["folder"], one["file"]).read_bytes())
            names = [span.name for span in parse_trace(data).operators]
            assert names.count("aten::mse_loss") == 2
            assert one["trace"]["communication"] > 0
            assert one["cost_seconds"] < 30
            assert parse_trace(data).annotations
        text = Path(answer.report["folder"], "profile.txt").read_text()
        assert "c10d::allreduce_" in text
        now = max(map(job.step, before))
        wait_for("more steps", lambda: min(map(job.step, before)) > now + 10)
        assert job.ranks == before
        assert left(job) == []
        assert "rror" not in job.tail(), job.tail()


def test_an_untouched_job_is_sampled_and_is_told_what_that_cannot_see() -> None:
    with running(Plan(world_size=2, options=PACE)) as job:
        job.wait_for_step(5)
        answer = profile(job, "--seconds", "3")
        assert answer.code == 0, answer.stdout + answer.stderr
        assert "samples by py-spy" in answer.stdout
        assert "not seen by py-spy: kernels" in answer.stdout
        assert "train (train.py:" in answer.stdout
        now = max(map(job.step, job.ranks))
        wait_for("more steps", lambda: min(map(job.step, job.ranks)) > now + 5)


def test_a_rank_that_makes_no_step_is_left_alone() -> None:
    with running(Plan(fault="sleep", struck=(1,), world_size=2, hook=True)) as job:
        job.wait_until_stuck()
        before = descriptors(job)
        answer = mldebug(job, "profile", "--job", job_id(job), "--json", "--wait", "2s")
        assert answer.code == 3, answer.stdout + answer.stderr
        assert json.loads(answer.stdout)["profiles"][0]["failure"] == "no step has ended in 2 s"
        assert left(job) == []
        wait_for("as many files as before", lambda: descriptors(job) == before)


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (True, "the job was not started with `mldebug run --memory-history`"),
        (False, "it was not started with `mldebug run --memory-history`"),
    ],
)
def test_memory_of_a_job_that_was_not_armed_is_refused_and_the_job_goes_on(
    hook: bool, why: str
) -> None:
    with running(Plan(world_size=2, hook=hook, options=PACE)) as job:
        job.wait_for_step(5)
        answer = mldebug(job, "memory", "--job", job_id(job))
        assert answer.code == 3, answer.stdout + answer.stderr
        assert why in answer.stdout
        now = max(map(job.step, job.ranks))
        wait_for("more steps", lambda: min(map(job.step, job.ranks)) > now + 5)
        assert left(job) == []


def test_an_untouched_rank_is_sampled_by_one_at_a_time() -> None:
    with running(Plan(world_size=1, options=PACE)) as job, ThreadPoolExecutor() as pool:
        job.wait_for_step(5)
        name = job_id(job)
        first = pool.submit(mldebug, job, "profile", "--job", name, "--seconds", "15")
        wait_for("py-spy to sample it", lambda: sampled_by(job.ranks[0]), 60)
        second = mldebug(job, "profile", "--job", name, "--seconds", "1", "--json")
        assert (second.code, sampled_by(job.ranks[0])) == (3, 1), second.stdout + second.stderr
        assert "one at a time" in second.report["profiles"][0]["failure"]
        answer = first.result()
        assert answer.code == 0, answer.stdout + answer.stderr
        third = mldebug(job, "profile", "--job", name, "--seconds", "1")
        assert third.code == 0, third.stdout + third.stderr


def sampled_by(pid: int) -> int:
    """How many py-spys sample this process now."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        found += words[1:2] == [b"record"] and str(pid).encode() in words
    return found


def test_while_a_stall_is_open_nobody_profiles(tmp_path: Path) -> None:
    config = settings(tmp_path, stall="{timeout: 5s, interval: 500ms}")
    plan = Plan(fault="sleep", struck=(1,), world_size=2, hook=True, options=PACE)
    with watching(tmp_path, config) as agent, running(plan) as job:
        job.wait_until_stuck()
        wait_for("its incident", lambda: (one := agent.run_of(job)) and one.incident, 120)
        for verb in ("profile", "memory"):
            answer = mldebug(job, verb, "--job", job_id(job), "--config", str(agent.config))
            assert answer.code == 1, answer.stdout
            assert "a stall of" in answer.stderr
            assert "is open (report " in answer.stderr
            assert "way out: mldebug dump --job" in answer.stderr
        assert left(job) == []


PERSON = 65534  # whose job it is
OTHER = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "--inh-caps=-all,+dac_read_search",
         "--ambient-caps=-all,+dac_read_search", "--bounding-set=-all,+dac_read_search"]  # fmt: skip


@as_root
def test_root_profiles_a_job_of_another_user_and_a_third_one_may_not() -> None:
    """The third one may read files, as otherwise this Python may be closed to that user, and no process."""
    person = ["setpriv", f"--reuid={PERSON}", f"--regid={PERSON}", "--clear-groups"]
    with tempfile.TemporaryDirectory(prefix="mldebug-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with light_job(folder / "job", 1, prefix=person, python=system_python()) as job:
            wait_for("its steps", lambda: "step 9 " in job.log.read_text(), 60)
            words = [*MLDEBUG, "profile", "--job", job.name, "--seconds", "2", "--json"]
            done = typed(folder, words)
            assert done.returncode == 0, done.stdout + done.stderr
            (one,) = json.loads(done.stdout)["profiles"]
            assert one["samples"]["samples"] > 10, one
            stranger = typed(folder, [*OTHER, *words])
            assert stranger.returncode != 0
            assert '"samples"' not in stranger.stdout
            before = len(job.log.read_text())
            wait_for("more steps", lambda: len(job.log.read_text()) > before, 30)


def typed(folder: Path, words: list[str]) -> "subprocess.CompletedProcess[str]":
    home = Path(tempfile.mkdtemp(dir=folder))
    home.chmod(0o777)
    return subprocess.run(
        words, env=clean_environment(home), capture_output=True, text=True, timeout=120, check=False, cwd="/"
    )  # fmt: skip


CONTAINER = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child",
             "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]  # fmt: skip


@contextmanager
def in_a_container(folder: Path, *prefix: str) -> Iterator[str]:
    """A job of one rank with processes and shared memory of its own; its name."""
    name, events = f"train-{uuid.uuid4().hex[:8]}.py", folder / "events"
    events.mkdir()
    shutil.copy(JOBS / "train.py", folder / name)
    environ = environment_of_jobs(folder) | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}  # fmt: skip
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (environ.get("PYTHONPATH"), str(JOBS))))
    argv = [
        *CONTAINER,
        *prefix,
        sys.executable,
        name,
        "--events",
        str(events),
        "--ranks",
        "",
        *PACE,
    ]
    with (folder / "job.log").open("wb") as log:
        job = subprocess.Popen(argv, env=environ, cwd=folder, stdout=log, stderr=log)
        try:
            step = events / "step.0"
            wait_for("its steps", lambda: step.exists() and int(step.read_text() or 0) > 3, 120)
            yield name
            assert job.poll() is None, (folder / "job.log").read_text()
        finally:
            job.kill()
            job.wait(20)


@as_root
@pytest.mark.parametrize("hook", [True, False], ids=["hook", "untouched"])
def test_a_job_in_a_container_is_profiled_from_outside(hook: bool, tmp_path: Path) -> None:
    with in_a_container(tmp_path, *([*MLDEBUG, "run", "--"] if hook else [])) as name:
        words = [*MLDEBUG, "profile", "--job", name, "--steps", "2", "--seconds", "2", "--json"]
        done = subprocess.run(
            words, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (one,) = json.loads(done.stdout)["profiles"]
        assert ("trace" in one, "samples" in one) == (hook, not hook), one
