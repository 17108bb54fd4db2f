"""Every way to a Flight Recorder in one capture: who is asked by which, what is told of it, and what is left alone."""

import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from builders import WAITER, capture, process, still
from hung import state, wait_until
from mldebug.diagnosis import diagnose
from mldebug.endings.facts import Ending, RankExit
from mldebug.endings.judge import judge_ending
from mldebug.model import Gap, NodeCapture, RankCapture, Said
from mldebug_agents.flights.collecting import Collector
from mldebug_agents.host import Host
from mldebug_agents.reader import Reader
from mldebug_agents.spawn import Spawner
from monitored import RECORDED, Monitored, monitored

WAITS = process(*WAITER, move=still())
SLEEPS = process("sleep (data.py:7)", "<module> (train.py:50)", wchan="hrtimer_nanosleep")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Spawner() as spawner, Reader(spawner) as reader:
        yield Collector(Host(), reader)


def taken(*ranks: RankCapture) -> NodeCapture:
    return msgspec.structs.replace(capture(*ranks, world=2), taken_at=time.time())


def add(collector: Collector, *ranks: RankCapture, left: float = 30.0) -> NodeCapture:
    return collector.add(taken(*ranks), lambda: left)


def told(found: NodeCapture) -> dict[int, str]:
    """By rank, the way of its Flight Recorder."""
    return {one.identity.rank: one.flight.way for one in found.ranks if one.flight is not None}


def reasons(found: NodeCapture) -> list[tuple[str, str]]:
    return [(gap.reason, gap.way_out) for gap in found.gaps]


RUN = "start the job with `mldebug run -- …`: its ranks then tell their Flight Recorder when they are asked"


def test_all_wait_alike_and_the_fifo_tells_who_called_what(
    collector: Collector, tmp_path: Path
) -> None:
    with monitored(tmp_path, 0) as first, monitored(tmp_path, 1) as second:
        found = add(collector, first.captured(WAITS), second.captured(WAITS))
        assert told(found) == {0: "debug FIFO", 1: "debug FIFO"}
        assert reasons(found) == [("ranks 0-1: told by the debug FIFO", RUN)]
        evidence = diagnose([found]).diagnosis.evidence
        assert "Flight Recorder of ranks 0-1: by the debug FIFO" in evidence
        assert [first.end(), second.end()] == [["dump 1 for 1 bytes"]] * 2


def test_who_waits_as_another_does_is_spared(collector: Collector, tmp_path: Path) -> None:
    """The dump may hold a rank up, so one that lags and one that waits are enough."""
    with monitored(tmp_path, 0) as first, monitored(tmp_path, 1) as second:
        third = msgspec.structs.replace(first.identity, rank=2)
        again = msgspec.structs.replace(first.captured(WAITS), identity=third)
        found = add(collector, first.captured(WAITS), second.captured(SLEEPS), again)
        assert told(found) == {0: "debug FIFO", 1: "debug FIFO"}
        spared = "rank 2: not asked by the debug FIFO, whose dump may hold a rank up for a minute: it waits as rank 0 does"
        assert (spared, "") in reasons(found)
        assert first.end() == ["dump 1 for 1 bytes"]


def test_a_fresh_dump_of_the_timeout_spares_the_fifo(collector: Collector, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        write(one)
        found = add(collector, one.captured(WAITS))
        assert told(found) == {0: "dump file"}
        assert one.end() == []


def write(one: Monitored, age: float = 0.0) -> None:
    """Its dump, as PyTorch leaves it at a timeout."""
    recorded = RECORDED / "hang-desync" / f"flight-recorder-rank{one.identity.rank}.pickle"
    one.dump.write_bytes(recorded.read_bytes())
    if age:
        os.utime(one.dump, (time.time() - age,) * 2)


def test_the_dump_of_an_earlier_question_is_not_taken_for_one_of_now(
    collector: Collector, tmp_path: Path
) -> None:
    """Minutes ago somebody else asked; the rank has gone on since, and what it says now counts."""
    with monitored(tmp_path) as one:
        call = {
            "process_group": ("0", "default_pg"), "pg_id": 0, "record_id": 1, "collective_seq_id": 7,
            "profiling_name": "nccl:all_reduce", "state": "started", "time_created_ns": time.time_ns(),
            "timeout_ms": 600_000,
        }  # fmt: skip
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        one.dump.write_bytes(pickle.dumps({"entries": [call], "pg_config": config}, 2))
        found = add(collector, one.captured(WAITS))
        assert told(found) == {0: "debug FIFO"}
        flight = found.ranks[0].flight
        assert flight is not None
        assert flight.groups[0].enqueued == 28807


def test_an_old_dump_of_a_rank_that_lives_is_not_used(collector: Collector, tmp_path: Path) -> None:
    with monitored(tmp_path, how="leaves") as one:
        write(one, age=1000)
        long_ago = msgspec.structs.replace(one.identity, started_at=0.0)
        rank = msgspec.structs.replace(one.captured(WAITS), identity=long_ago)
        found = add(collector, rank)
        assert told(found) == {}
        ((reason, _),) = reasons(found)
        assert reason == (
            "rank 0: its dump file is 1000 s old, and it may have gone on since; nobody reads its debug FIFO"
        )


def test_a_rank_that_the_hook_has_told_of_is_left_alone(
    collector: Collector, tmp_path: Path
) -> None:
    with monitored(tmp_path) as one:
        write(one)
        mine = add(collector, one.captured(WAITS)).ranks[0].flight
        assert mine is not None
        by_hook = msgspec.structs.replace(mine, way="")
        rank = msgspec.structs.replace(one.captured(WAITS), flight=by_hook)
        before = taken(rank)
        assert collector.add(before, lambda: 30.0) == before


def test_a_hook_that_did_not_answer_leaves_the_other_ways(
    collector: Collector, tmp_path: Path
) -> None:
    with monitored(tmp_path) as one:
        rank = msgspec.structs.replace(one.captured(WAITS), said=Said())
        found = add(collector, rank)
        assert told(found) == {0: "debug FIFO"}
        assert found.gaps == ()  # no setting gives a better way than the hook


def test_a_stopped_rank_is_not_asked(collector: Collector, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        os.kill(one.pid, signal.SIGSTOP)
        wait_until(lambda: state(one.pid) == "T")
        found = add(collector, one.captured(WAITS))
        assert (told(found), reasons(found)) == (
            {},
            [("rank 0: it is stopped, or gone, and was not asked", RUN)],
        )
        os.kill(one.pid, signal.SIGCONT)
        assert one.end() == []


def test_a_job_without_any_way_hears_what_to_set(collector: Collector, tmp_path: Path) -> None:
    with monitored(tmp_path, version="2.9.1", TORCH_NCCL_DEBUG_INFO_PIPE_FILE="") as one:
        found = add(collector, one.captured(WAITS))
        assert found.gaps == (
            Gap(
                what="Flight Recorder",
                reason="rank 0: no way leads to it (dump file: its recorder is off; debug FIFO: "
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE is not set)",
                rank=0,
                way_out=f"{RUN}; or set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_",
            ),
        )


def test_a_process_without_pytorch_adds_nothing(collector: Collector, tmp_path: Path) -> None:
    with monitored(tmp_path, version="of my own") as one:
        before = taken(one.captured(WAITS))
        assert collector.add(before, lambda: 30.0) == before


def test_without_time_nobody_is_asked(collector: Collector, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        started = time.monotonic()
        found = add(collector, one.captured(WAITS), left=1.0)
        assert told(found) == {}
        assert time.monotonic() - started < 10
        assert one.end() == []


# --- ranks that have ended -----------------------------------------------------------------------


def test_what_killed_ranks_have_dumped_is_evidence(collector: Collector, tmp_path: Path) -> None:
    """The watchdog ends a rank after its dump: all that is left of it then is that file."""
    with monitored(tmp_path, 0, recorded="hang-sleep") as first, monitored(tmp_path, 1) as second:
        ranks = (first.identity, second.identity)
        collector.meet(ranks)
        for one in (first, second):
            recorded = RECORDED / "hang-sleep" / f"flight-recorder-rank{one.identity.rank}.pickle"
            one.dump.write_bytes(recorded.read_bytes())
            one.end()
        found = collector.left_behind(ranks)
        assert sorted(found) == [0, 1]
        exits = tuple(RankExit(rank=one.rank, pid=one.pid, status=6) for one in ranks)
        job = capture(world=2).job
        outcome = judge_ending(Ending(job=job, identities=ranks, exits=exits, flights=found))
        assert outcome.finding is not None
        assert (
            "Flight Recorder, dumped before the end: rank 0 waited in all_reduce 56812 of group 0, "
            "which rank 1 had not called"
        ) in outcome.finding.evidence


def test_ranks_that_nobody_met_leave_nothing(collector: Collector, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        write(one)
        one.end()
        assert collector.left_behind([one.identity]) == {}
