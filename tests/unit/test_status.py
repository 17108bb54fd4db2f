"""Status as a person reads it, and as a script does."""

import io
import json
import subprocess
import sys

import msgspec
from rich.console import Console

from mldebug.model import Gap, Job, LostRank, RankIdentity, Remark
from mldebug_agents.commands.status import Seen, status_lines

NOW = 1_795_240_000.0


def job(**changes: object) -> Job:
    ranks = tuple(
        RankIdentity(rank=rank, world_size=8, pid=100 + rank, local_world_size=4)
        for rank in range(4)
    )
    made = Job(
        id="1a2b3c", name="train.py", launcher="torchrun", world_size=8, launcher_pid=99, uid=1000, user="ada",
        started_at=NOW - 3725, nodes=("n1",), ranks=ranks,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def printed(*jobs: Job, remarks: tuple[Remark, ...] = (), gaps: tuple[Gap, ...] = ()) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=80)
    for line in status_lines(Seen(node="n1", now=NOW, jobs=jobs, remarks=remarks, gaps=gaps)):
        console.print(line, soft_wrap=True, highlight=False)
    return buffer.getvalue()


def test_an_empty_node_says_so() -> None:
    assert printed() == "0 training jobs on n1\n"


def test_a_job_says_who_what_where_and_since_when() -> None:
    text = printed(job())
    assert "1 training job on n1" in text
    assert "train.py  id 1a2b3c" in text
    assert "torchrun, user ada, started 1h2m5s ago, launcher pid 99" in text
    assert "ranks 0-3 of 8; pids 100 101 102 103" in text
    assert "expected here" not in text
    assert text.endswith("One of them hangs? mldebug dump\n")


def test_an_absent_rank_is_counted_and_a_dead_one_named() -> None:
    gone = LostRank(rank=3, reason="killed by signal 9")
    text = printed(job(ranks=job().ranks[:3], lost=(gone,)))
    assert "ranks 0-2 of 8, 3 of 4 expected here" in text
    assert "rank 3 is gone: killed by signal 9" in text


def test_a_job_without_living_ranks_is_shown() -> None:
    assert "no rank of 8; pids -" in printed(job(ranks=()))


def test_the_same_gap_is_told_once() -> None:
    gap = Gap(what="environment", reason="permission denied", pid=1, way_out="run as root")
    text = printed(gaps=(gap, msgspec.structs.replace(gap, pid=2), Gap(what="x", reason="y")))
    assert "Not seen:\n  environment (2 times): permission denied → run as root\n  x: y\n" in text


def test_many_remarks_are_cut() -> None:
    text = printed(remarks=tuple(Remark(kind="odd", message=f"thing {n}") for n in range(20)))
    assert "Odd:\n  thing 0" in text
    assert "… and 12 more" in text


def test_names_of_a_job_cannot_paint_the_terminal() -> None:
    text = printed(job(name="[red]x\x1b[2J\u202e", user="a\nb", launcher="\x1b]0;t\x07"))
    assert "[red]x" in text
    assert not {"\x1b", "\u202e", "\x07"} & set(text)


def test_status_runs_on_this_node() -> None:
    argv = [sys.executable, "-m", "mldebug", "status", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(json.loads(done.stdout)) == {"node", "now", "jobs", "remarks", "gaps", "agent"}
