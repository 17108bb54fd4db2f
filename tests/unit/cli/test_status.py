"""Status as a person reads it, and as a script does."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from mldebug.cli.console import print_line
from mldebug.core.model import Gap, HookState, Job, LostRank, RankIdentity, Remark
from mldebug.jobs.known_issues.match import KnownIssue
from mldebug.status.snapshot import RunState, Snapshot, SourceState
from mldebug_agents.cli.node_listing import NodeListing, status_lines

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
    for line in status_lines(
        NodeListing(node="n1", now=NOW, jobs=jobs, remarks=remarks, gaps=gaps)
    ):
        console.print(line, soft_wrap=True, highlight=False)
    return buffer.getvalue()


def test_an_empty_node_says_so() -> None:
    assert printed().startswith("0 training jobs on n1\n")


def test_a_job_says_who_what_where_and_since_when() -> None:
    text = printed(job())
    assert "1 training job on n1" in text
    assert "train.py  id 1a2b3c" in text
    assert "torchrun, user ada, started 1 h 2 min ago, launcher pid 99" in text
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


def test_known_traps_stand_below_their_job_and_are_no_alarm() -> None:
    trap = KnownIssue(name="ras_off", message="NCCL_RAS_ENABLE=0\x1b[31m: bad", todo="unset it", source="https://x")  # fmt: skip
    buffer = io.StringIO()
    listing = NodeListing(node="n1", now=NOW, jobs=(job(),), remarks=(), gaps=(), traps={"1a2b3c": (trap,) * 10, "9": (trap,)})  # fmt: skip
    for line in status_lines(listing):
        Console(file=buffer, width=80).print(line, soft_wrap=True, highlight=False)
    text = buffer.getvalue()
    assert text.count("  known trap: NCCL_RAS_ENABLE=0: bad → unset it\n") == 8
    assert "  … and 2 more known traps: --json lists them\n" in text
    assert "incident" not in text


def test_names_of_a_job_cannot_paint_the_terminal() -> None:
    text = printed(job(name="[red]x\x1b[2J\u202e", user="a\nb", launcher="\x1b]0;t\x07"))
    assert "[red]x" in text
    assert not {"\x1b", "\u202e", "\x07"} & set(text)


def test_status_runs_on_this_node() -> None:
    argv = [sys.executable, "-m", "mldebug", "status", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    keys = {"node", "now", "jobs", "remarks", "gaps", "traps", "agent", "agent_trouble"}
    assert set(json.loads(done.stdout)) == keys


# --- beside an agent -----------------------------------------------------------------------------


def watched(**changes: object) -> RunState:
    run = RunState(
        id="1a2b3c", name="train.py", launcher="torchrun", world_size=8, stage="watching", step=1200, loss=2.5,
        sentence="last step 0.4 s ago (usual gap 0.6 s)", log="/logs/train.log",
        timeout_seconds=30.0, why_timeout="5 x 0.6 s, the 99th percentile of 200 gaps, at least 30 s",
    )  # fmt: skip
    return msgspec.structs.replace(run, **changes)


def beside(*runs: RunState, jobs: tuple[Job, ...] = (), width: int = 80, **changes: object) -> str:
    listing = NodeListing(
        node="n1", now=NOW, jobs=jobs or (job(),), remarks=(), gaps=(),
        agent=Snapshot(**({"node": "n1", "at": NOW, "started_at": NOW - 3600, "runs": runs} | changes)),  # type: ignore[arg-type]
    )  # fmt: skip
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=True, color_system=None)
    for line in status_lines(listing):
        print_line(console, line)
    return buffer.getvalue()


def test_without_an_agent_it_says_that_nobody_watches() -> None:
    assert "no agent watches them: a stall is noticed by nobody" in printed(job())


def test_an_agent_that_may_not_be_asked_is_no_absent_one() -> None:
    listing = NodeListing(
        node="n1", now=NOW, jobs=(), remarks=(), gaps=(), agent_trouble="may not ask it"
    )
    lines = [line.plain for line in status_lines(listing)]
    assert "may not ask it" in lines
    assert not any("no agent" in line for line in lines)


def test_a_quiet_run_says_why_it_is_quiet() -> None:
    text = beside(watched())
    assert "an agent watches them for 1 h: no incident open" in text
    assert "step 1200, loss 2.5, log /logs/train.log" in text
    flat = " ".join(text.split())
    assert "watching: last step 0.4 s ago (usual gap 0.6 s); a stall after 30 s (5 x 0.6 s" in flat


def test_what_ranks_say_of_themselves_stands_beside_the_step() -> None:
    result = dict.fromkeys((0, 1), HookState(step=1200, phase="checkpoint_save", phase_age=12.0))
    result |= {2: HookState(step=1199, phase="data_wait", phase_age=900.0), 3: HookState(step=1200)}
    text = " ".join(beside(watched(hooks=result)).split())
    assert (
        "step 1200, loss 2.5, ranks 0-1 in checkpoint_save for 12 s, rank 2 in data_wait for 15 min,"
        " log"
    ) in text


def test_who_is_behind_is_told_and_a_phase_of_a_moment_is_not() -> None:
    result = dict.fromkeys(range(3), HookState(step=1200, phase="data_wait", phase_age=0.01))
    ranks = {rank: 100 + rank for rank in range(4)}
    text = " ".join(beside(watched(hooks=result, ranks=ranks)).split())
    assert "loss 2.5, hook in 3 of 4 ranks, log" in text
    result |= {3: HookState(step=1150)}
    text = " ".join(beside(watched(hooks=result, ranks=ranks)).split())
    assert "loss 2.5, rank 3 at step 1150 of 1200, log" in text


def test_a_stalled_run_says_who_and_where_to_read_on() -> None:
    text = beside(
        watched(stage="blamed", incident="20261121T055041Z-1a2b3c", report="Rank 3 sleeps in x")
    )
    assert "an agent watches them for 1 h: 1 incident open" in text
    assert "Rank 3 sleeps in x" in text
    assert "mldebug reports show 20261121T055041Z-1a2b3c" in text


@pytest.mark.parametrize(("age", "known"), [(0.0, False), (89.0, False), (200.0, True), (-50.0, False)])  # fmt: skip
def test_an_agent_that_no_longer_looks_is_told(age: float, known: bool) -> None:
    text = beside(watched(), at=NOW - age)
    assert ("the agent has not looked for 3 min: what it says is old" in text) == known


def test_what_ails_the_agent_is_told() -> None:
    failing = SourceState(name="write", success=False, error="No space left on device")
    stuck = SourceState(name="capture", stuck=True)
    text = beside(
        watched(), sources=(failing, stuck), reports_waiting=2, reports_lost=3, hidden_runs=2
    )
    for item in (
        "its write fails: No space left on device",
        "its capture is stuck",
        "2 reports wait in memory for the state dir",
        "3 reports or states could not be stored",
        "it hides 2 runs of other users: ask as root or as a member of agent.group",
    ):
        assert item in " ".join(text.split())


def test_a_report_that_is_just_being_written_is_no_trouble() -> None:
    fine = SourceState(name="write")
    assert "wait" not in beside(watched(), sources=(fine,), reports_waiting=1)


def test_long_lines_go_on_below_their_beginning_in_80_columns() -> None:
    text = beside(watched(sentence="last step 0.4 s ago " + "and more " * 20))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    first = next(number for number, line in enumerate(lines) if line.startswith("  watching"))
    assert lines[first + 1].startswith("  ")


# --- what to type next ---------------------------------------------------------------------------


def suggested(*jobs: Job, config: Path | None, **changes: object) -> list[str]:
    """The commands that stand in the answer, as lines of a terminal of 80 columns."""
    listing = NodeListing(node="n1", now=NOW, jobs=jobs, remarks=(), gaps=(), **changes)  # type: ignore[arg-type]
    buffer = io.StringIO()
    console = Console(file=buffer, width=80, force_terminal=True, color_system=None)
    for line in status_lines(listing, config):
        print_line(console, line)
    return re.findall(r"mldebug .*", buffer.getvalue())


def test_what_to_type_next_names_the_config_that_was_given() -> None:
    config = Path(
        "/etc/a very long folder name that does not fit/in one line of a terminal/my.yaml"
    )
    run = watched(stage="blamed", incident="20261121T055041Z-1a2b3c", report="Rank 3 sleeps")
    agent = Snapshot(node="n1", at=NOW, started_at=NOW, runs=(run,))
    result = suggested(job(), job(id="other"), config=config, agent=agent)
    given = f" --config '{config}'"
    assert result == [
        f"mldebug reports show 20261121T055041Z-1a2b3c{given}",
        f"mldebug dump{given}",
        f"mldebug dump --job 1a2b3c{given}",
    ]
    looked_at = suggested(job(), config=config, agent=agent)
    assert looked_at == [f"mldebug reports show 20261121T055041Z-1a2b3c{given}"]
    assert suggested(config=Path("/x.yaml")) == ["mldebug up --config /x.yaml"]
    assert suggested(job(), config=None)[-1] == "mldebug dump"


def test_how_a_rank_ended_is_told_where_the_agent_saw_it() -> None:
    lost = job(lost=(LostRank(rank=4, reason="exit unknown"), LostRank(rank=5, pid=9)))
    text = beside(watched(exits={4: "killed by SIGKILL (9)"}), jobs=(lost,))
    assert "rank 4 is gone: killed by SIGKILL (9)" in text
    assert "rank 5 is gone: nobody saw how it ended" in text
    assert "exit unknown" not in text


def test_a_stall_is_called_one() -> None:
    assert "  stalled: no step for 62 s" in beside(watched(stage="blamed", sentence="no step for 62 s", incident="x"))  # fmt: skip
    assert "stalled, nobody named yet: no step" in " ".join(
        beside(watched(stage="confirmed", sentence="no step for 62 s")).split()
    )


@pytest.mark.parametrize("stage", ["confirmed", "blamed"])
def test_a_stall_is_past_its_limit(stage: str) -> None:
    sentence = "no step for 45 s (usual gap 0.6 s); rank 1 runs evaluate; blamed at 300 s"
    text = " ".join(beside(watched(stage=stage, sentence=sentence)).split())
    assert f"{sentence} " in text
    assert "a stall after" not in text
    assert "a stall after 30 s" in " ".join(beside(watched(stage="suspect")).split())


def test_where_a_limit_comes_from_is_said_once_and_plainly() -> None:
    why = "stall.timeout in the config"
    run = watched(sentence=f"no rank stands still; this job tells no step ({why})", why_timeout=why)
    text = " ".join(beside(run).split())
    assert (
        f"watching: no rank stands still; this job tells no step; a stall after 30 s ({why})"
        in text
    )
    assert text.count(why) == 1
