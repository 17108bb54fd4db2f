"""Failures that people have met, played by real jobs on gloo: what an agent that knows nothing of them reports first.

A job that ends is reported by its end, one that hangs once its timeout is over. To add a case: a function in one of
the scripts of tests/jobs/field, and a row here.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark import ParameterSet

from processes.harness import JOBS, Plan, RunningJob, User, folder_for, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1800)]
need_torch("the jobs train with PyTorch")

STALL = "{timeout: 12s, busy_timeout: 60s, init_timeout: 20s, interval: 1s}"
TOGETHER = 4  # jobs
AT_ONCE = 45.0  # seconds of quiet: far from both timeouts
REPORT_SECONDS = 180.0  # from the start of the job to its report
Freezer = tuple[Path, str, Sequence[str]]
FREEZERS: tuple[Freezer, ...] = (
    (Path("/sys/fs/cgroup"), "cgroup.freeze", "01"),
    (Path("/sys/fs/cgroup/unified"), "cgroup.freeze", "01"),
    (Path("/sys/fs/cgroup/freezer"), "freezer.state", ("THAWED", "FROZEN")),
)
NOBODY: tuple[int, ...] = ()


class Field(NamedTuple):
    """One job and what its report must be: one of `named`, all the patterns of `words`, none of `never`."""

    script: str
    fault: str
    named: tuple[tuple[int, ...], ...]
    verdict: str = ""  # a pattern; "": any
    words: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    inert: bool = (
        False  # told as soon as the timeout is over, not only when those that work are blamed
    )


CASES = (
    Field("locks", "flock_circle", ((0,), NOBODY), words=("circle", "rank 0 holds")),
    Field("locks", "lockf_circle", ((0,), NOBODY), words=("circle", "rank 0 holds")),
    Field("locks", "flock_sleeper", ((3,),), words=(r"sleeps in \S*build_cache", "held by rank 3")),
    Field("locks", "flock_stranger", ((2,),), "rank_blocked_io", ("held by", "python")),
    Field("locks", "lockf_stranger", ((2,),), "rank_blocked_io", ("held by", "python")),
    Field("locks", "worker_fifo", ((2,),), "dataloader_stalled", ("read_fifo", "FIFO"), ("does not answer",)),
    Field("locks", "worker_flock", ((2,),), "dataloader_stalled", ("take_flock", "held by"), ("does not answer",)),
    Field("locks", "worker_lockf", ((2,),), "dataloader_stalled", ("take_lockf", "held by"), ("does not answer",)),
    Field("threads", "gil_held", ((1,),), "rank_waiting", ("GIL", "gpu-metrics"), inert=True),
    Field("threads", "reads_pipe", ((2,),), words=("read_batch",)),
    Field("threads", "prefetcher_died", ((2,),), "rank_waiting", ("queue", "OSError: shard-7.tar: unexpected end of data")),
    Field("threads", "stuck_after_error", ((2,),), "rank_waiting", ("ValueError: bad shard 7",)),
    Field("threads", "swallowed", ((2,),), "rank_waiting", ("KeyError: 'input_ids'",)),
    Field("threads", "upload", ((0,),), "rank_waiting|rank_blocked_io", (r"\bupload\b",)),
    Field("threads", "two_in_one_group", (NOBODY,), words=("all_gather_object",)),
    Field("children", "stuck_writer", ((1,),), "rank_waiting", ("write_shard",)),
    Field("children", "endless_program", ((0,),), "rank_waiting", (r"\bsleep 100000",)),
    Field("children", "inherited_lock", ((2,),), "dataloader_stalled", ("decode",)),
    Field("children", "worker_bus_error", ((2,),), "rank_exited", ("shared memory|Bus error",)),
    Field("branches", "key_never_set", ((0,), NOBODY)),
    Field("branches", "evaluates_alone", ((0,),), "collective_mismatch"),
    Field("branches", "stops_early", ((3,),), "collective_mismatch"),
    Field("branches", "join_throws", ((2,), NOBODY)),
    Field("polls", "wait_for_baton", ((2,),), "rank_waiting", inert=True),
    Field("polls", "wait_for_file", ((2,),), "rank_waiting", inert=True),
    Field("polls", "wait_for_json", ((2,),), "rank_waiting", inert=True),
    Field("polls", "get_with_timeout", ((2,),), "rank_waiting", ("queue",), inert=True),
    Field("polls", "retry_download", ((2,),), "rank_waiting", inert=True),
    Field("polls", "wait_for_flag", ((2,),), "rank_waiting", inert=True),
    Field("polls", "work_slowly", ((2,),), "rank_busy"),
)  # fmt: skip


# Each has a near relation above that runs always: these run nightly
NIGHTLY = frozenset(
    ("lockf_circle", "lockf_stranger", "worker_fifo", "worker_lockf", "reads_pipe", "swallowed", "upload", "endless_program", "evaluates_alone", "wait_for_baton", "wait_for_json", "wait_for_flag", "join_throws")
)  # fmt: skip
FROZEN = Field("threads", "trains", ((2,),), "rank_stopped", ("frozen by its cgroup",), inert=True)


def _case(field: Field) -> ParameterSet:
    nightly = field.fault in NIGHTLY
    return pytest.param(field, id=field.fault, marks=[pytest.mark.long] if nightly else [])


class FieldJob(RunningJob):
    """A script of tests/jobs/field under torchrun."""

    def _script(self) -> list[str]:
        script, fault = self.plan.options
        return [str(JOBS / "field" / f"{script}.py"), str(self.events), fault]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Report | str]]:
    """The first report of each selected job, or why there is none; a few jobs hang at the same time, under one agent."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    fields = [one["field"] for one in calls if isinstance(one.get("field"), Field)]
    with (
        folder_for(User()) as folder,
        watching(folder, settings(folder, stall=STALL)) as agent,
        ThreadPoolExecutor(TOGETHER) as pool,
    ):
        reports = pool.map(lambda field: _report_of(field, agent), fields)
        yield dict(zip((field.fault for field in fields), reports, strict=True))


def _report_of(field: Field, agent: RunningAgent) -> Report | str:
    with folder_for(User()) as folder:
        job = FieldJob(Plan(fault=field.fault, options=(field.script, field.fault)), folder)
        try:
            job.start()
            return wait_for("a report", lambda: _first(agent, job), REPORT_SECONDS)
        except Exception as error:  # noqa: BLE001 - of this job alone, all others are judged
            return f"{type(error).__name__}: {error}\n{job.tail()}"
        finally:
            job.end()


@pytest.mark.parametrize("field", [_case(field) for field in CASES])
def test_the_first_report_is_right(field: Field, outcomes: dict[str, Report | str]) -> None:
    report = outcomes[field.fault]
    assert not isinstance(report, str), report
    _check(report, field)


def _first(agent: RunningAgent, job: RunningJob) -> Report | None:
    """The first report of this job, and only after all its ranks have announced themselves."""
    reports = agent.reports(job) if len(job.ranks) == job.plan.world_size else []
    return reports[0] if reports else None


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _check(report: dict[str, Any], field: Field) -> None:
    found = report["diagnosis"]
    text = "\n".join((found["verdict"], found["summary"], *found["evidence"]))
    print(f"{field.fault}: {found['confidence']} {text}")
    named = tuple(culprit["rank"] for culprit in found["culprits"] if culprit["rank"] is not None)
    assert named in field.named, text
    assert re.fullmatch(field.verdict or ".*", found["verdict"]), text
    quiet = _seconds(report["detected_at"]) - _seconds(report["stalled_since"] or "")
    assert not field.inert or quiet < AT_ONCE, f"only after {quiet:.0f} s:\n{text}"
    for pattern in field.words:
        assert re.search(pattern, text), f"nothing of {pattern}:\n{text}"
    for pattern in field.never:
        assert not re.search(pattern, text), text


def test_a_rank_whose_cgroup_is_frozen_is_stopped_and_the_report_says_so() -> None:
    """As the ranks of a paused container are."""
    with (
        frozen_cgroup() as (cgroup, freeze),
        folder_for(User()) as folder,
        watching(folder, settings(folder, stall=STALL)) as agent,
    ):
        job = FieldJob(Plan(fault="trains", options=("threads", "trains")), folder)
        try:
            job.start()
            wait_for("its steps", lambda: "step 20 " in job.tail(), REPORT_SECONDS)
            (cgroup / "cgroup.procs").write_text(str(job.ranks[2]))
            freeze(True)
            report = wait_for("a report", lambda: _first(agent, job), REPORT_SECONDS)
        finally:
            freeze(False)
            job.end()
    _check(report, FROZEN)


@contextmanager
def frozen_cgroup() -> Iterator[tuple[Path, Callable[[bool], object]]]:
    """A cgroup of v2 or v1 and what freezes and thaws it; a skip where none may be made."""
    made = next(filter(None, map(_cgroup_with, FREEZERS)), None)
    if made is None:
        pytest.skip("no cgroup with a freezer can be made here")
    file, words = made
    try:
        yield file.parent, lambda on: file.write_text(words[on])
    finally:
        procs = file.with_name("cgroup.procs")
        wait_for("an empty cgroup", lambda: not procs.read_text(), 30)
        file.parent.rmdir()


def _cgroup_with(freezer: Freezer) -> tuple[Path, Sequence[str]] | None:
    parent, name, words = freezer
    folder = parent / f"mldebug-field-{os.getpid()}"
    with suppress(OSError):
        folder.mkdir()
        if (folder / name).exists():
            return folder / name, words
        folder.rmdir()
    return None
