"""Real processes with the variables of a job that is gone."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from mldebug.alerts.job_events import of_orphans
from mldebug.config.schema import Config
from mldebug.jobs.schedulers.status_lines import orphan_line, orphan_words
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.jobs import orphans
from mldebug_agents.jobs.orphans import OrphanFinder, OrphanRequest

JOB = "4094967001"


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A rank of a Slurm job, and a pager of the same job that is none."""
    monkeypatch.setattr(orphans, "SETTLED", 0.0)
    names = ("SLURM_JOB_ID", "SLURM_PROCID", "RANK", "TORCHELASTIC_RUN_ID")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    facts = {**bare, "SLURM_JOB_ID": JOB}
    both = [subprocess.Popen(["sleep", "600"], env=env) for env in ({**facts, "RANK": "3"}, facts)]
    yield both[0].pid
    for one in both:
        one.kill()
        one.wait()


def test_a_process_that_outlived_its_job_is_told_after_the_grace_and_not_ended(
    tools: NodeTools, left: int
) -> None:
    now = 100.0
    watch = OrphanFinder(tools.context.host, tools.context.reader, lambda: now)
    order = OrphanRequest(alive=frozenset(), gpus={left: {"GPU-1": 3 << 30}}, grace=120.0)
    assert [one for one in watch.look(order) if JOB in one.job] == []
    now += 119
    assert [one for one in watch.look(order) if JOB in one.job] == []
    now += 1
    (found,) = [one for one in watch.look(order) if JOB in one.job]
    assert (found.pid, found.rank, found.uid, found.job) == (left, "3", os.getuid(), f"Slurm job {JOB}")  # fmt: skip
    assert "holds 1 GPU (3.0 GiB): squeue knows no such job that runs" in orphan_words(found)
    assert "runs for 1 min" in orphan_line(found, found.started_at + 60)
    (word,) = of_orphans([found])
    assert [(one.kind, one.uid, one.labels["pid"]) for one in word.alerts] == [("orphan_process", os.getuid(), str(left))]  # fmt: skip
    os.kill(left, 0)


def test_a_job_that_is_known_again_begins_anew(tools: NodeTools, left: int) -> None:
    now = 100.0
    watch = OrphanFinder(tools.context.host, tools.context.reader, lambda: now)
    gone, there = (OrphanRequest(alive=frozenset(alive), grace=120.0) for alive in ((), (JOB,)))
    for order in (gone, there, gone):
        assert [one for one in watch.look(order) if JOB in one.job] == []
        now += 121
    assert [one.pid for one in watch.look(gone) if JOB in one.job] == [left]


def test_without_slurm_nothing_is_known_of_its_jobs(tools: NodeTools, left: int) -> None:
    if any(stat.name == "slurmd" for stat in tools.context.host.briefs().values()):
        pytest.skip("a slurmd runs here, and would know the job")
    watch = OrphanFinder(tools.context.host, tools.context.reader)
    assert [one for one in watch.look(OrphanRequest(alive=None, grace=0)) if JOB in one.job] == []
