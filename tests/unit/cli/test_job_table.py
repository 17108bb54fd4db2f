"""`mldebug status -o table` and its filters."""

import io
import re
from itertools import count

import msgspec
import pytest
import rich.console
from click.testing import CliRunner

from mldebug.cli.main import cli
from mldebug.cli.repeat import EVERY, looks
from mldebug.core.model import Job, RankIdentity
from mldebug.status.job_table import JobFilter, JobRow, table_lines
from mldebug.status.snapshot import RunState
from mldebug_agents.cli.job_list import JobListOptions, show_jobs

NOW = 1_795_240_000.0
JOB = Job(
    id="1a2b3c", name="train.py", launcher="torchrun", world_size=8, uid=1000, user="ada", started_at=NOW - 3725,
    ranks=tuple(RankIdentity(rank=rank, world_size=8, pid=100 + rank) for rank in range(4)),
)  # fmt: skip
RUN = RunState(id="1a2b3c", name="train.py", launcher="torchrun", step=512, quiet_seconds=75.0)
STALLED = msgspec.structs.replace(RUN, incident="20261126T093903Z-1", verdict="rank_waiting", culprits=(2,))  # fmt: skip


def shown(*rows: JobRow) -> list[str]:
    return [line.plain for line in table_lines(rows, NOW)]


def other(run: RunState | None = None) -> JobRow:
    return JobRow(job=msgspec.structs.replace(JOB, id="99ff", name="other.py", started_at=NOW - 60), run=run)  # fmt: skip


def test_a_line_says_how_old_how_far_and_since_when_it_is_quiet() -> None:
    assert shown(JobRow(job=JOB, run=RUN)) == [
        "ID      AGE     JOB       USER  RANKS  STEP  QUIET  STATE     VERDICT  WHO",
        "1a2b3c  62 min  train.py  ada   4/8    512   75 s   watching  -        -",
    ]


def test_an_open_incident_comes_first_with_who_did_it() -> None:
    header, first, second = shown(other(RUN), JobRow(job=JOB, run=STALLED))
    assert re.split("  +", first) == [
        "1a2b3c",
        "62 min",
        "train.py",
        "ada",
        "4/8",
        "512",
        "75 s",
        "incident",
        "rank_waiting",
        "2",
    ]
    assert second.startswith("99ff")
    assert header.index("STATE") == first.index("incident")


def test_a_job_that_no_agent_watches_says_so() -> None:
    assert shown(other())[1].endswith("4/8    -     -      not watched  -        -")


def test_escapes_of_a_job_do_not_reach_the_terminal() -> None:
    bad = JobRow(job=msgspec.structs.replace(JOB, name="a\x1b[2Jb\nc"), run=None)
    lines = shown(bad)
    assert len(lines) == 2
    assert "\x1b" not in lines[1]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (JobFilter(), ["1a2b3c", "99ff"]),
        (JobFilter(job="train.py"), ["1a2b3c"]),
        (JobFilter(job="99"), ["99ff"]),
        (JobFilter(job="train"), []),
        (JobFilter(started_after=NOW - 120), ["99ff"]),
        (JobFilter(verdict="rank_waiting"), ["1a2b3c"]),
        (JobFilter(verdict="rank_busy"), []),
    ],
)
def test_only_the_wanted_jobs_are_listed(wanted: JobFilter, found: list[str]) -> None:
    rows = [JobRow(job=JOB, run=STALLED), other()]
    assert [row.job.id for row in rows if wanted.matches(row)] == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--since", "soon"), "--since"),
        (("--storage", "-o", "table"), "do not go with --cluster, --storage"),
        (("--cluster", "--watch"), "do not go with --cluster, --storage"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(cli, ["status", *words])
    assert message in str(result.exception)


def test_watch_looks_again_and_clears_only_a_terminal() -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    for terminal in (True, False):
        pauses.clear()
        numbers, buffer = count(), io.StringIO()
        console = rich.console.Console(file=buffer, force_terminal=terminal)
        numbers_read: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            numbers_read.extend(looks(lambda numbers=numbers: next(numbers), True, console, pause))
        assert pauses == [EVERY] * 3
        assert ("\x1b[2J" in buffer.getvalue()) is terminal
    assert list(looks(lambda: 7, False, console, pause)) == [7]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (JobListOptions(form="table"), "No training job on n1\n"),
        (JobListOptions(form="table", job="x"), "No training job on n1 is like that\n"),
    ],
)
def test_a_list_without_a_job_says_so(options: JobListOptions, line: str) -> None:
    buffer = io.StringIO()
    show_jobs((), options, "n1", NOW, rich.console.Console(file=buffer))
    assert buffer.getvalue() == line
