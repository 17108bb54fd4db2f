"""Failures that people have met, played by real jobs on gloo: what an agent that knows nothing of them reports first.

A job that ends is reported by its end, one that hangs once its timeout is over. To add a case: a function in one of
the scripts of tests/jobs/field, and a row here.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from processes.harness import JOBS, Plan, RunningJob, folder_for, wait_for
from processes.needs import need_torch
from processes.watching import Report, RunningAgent, settings, watching

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the jobs train with PyTorch")

STALL = "{timeout: 12s, busy_timeout: 60s, init_timeout: 20s, interval: 1s}"
AT_ONCE = 45.0  # seconds of quiet: far from both timeouts
PATIENCE = 180.0  # seconds from the start of the job to its report
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


class FieldJob(RunningJob):
    """A script of tests/jobs/field under torchrun."""

    def _script(self) -> list[str]:
        script, fault = self.plan.options
        return [str(JOBS / "field" / f"{script}.py"), str(self.events), fault]


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    plan = Plan()
    with folder_for(plan.user) as folder, watching(folder, settings(folder, stall=STALL)) as agent:
        yield agent


@pytest.mark.parametrize("field", CASES, ids=lambda field: field.fault)
def test_the_first_report_is_right(field: Field, agent: RunningAgent) -> None:
    with folder_for(Plan().user) as folder:
        job = FieldJob(Plan(fault=field.fault, options=(field.script, field.fault)), folder)
        try:
            job.start()
            report = wait_for("a report", lambda: _first(agent, job), PATIENCE)
        finally:
            job.end()
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
