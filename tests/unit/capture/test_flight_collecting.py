"""Every way to a Flight Recorder in one capture: who is asked by which, what is told of it, and what is left alone."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from mldebug.config.schema import Config
from mldebug.core.model import Gap, HookState, NodeCapture, RankCapture, ThreadState
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, RankExit
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.flight_recorder.collector import FlightRecorderCollector
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.jobs.ranks.libraries import InstalledSoftware
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.capture.flights import job, waits_in
from shared.capture.monitored import Monitored, discovered, monitored, recording
from shared.diagnosis.builders import WAITER, capture, moving, process, still
from shared.system.hung import state, wait_until
from shared.system.patience import PATIENCE

WAITS = process(*WAITER, move=still())
SLEEPS = process(
    "sleep (data.py:7)", "<module> (train.py:50)", wchan="hrtimer_nanosleep", move=still()
)
GOES_ON = process(*WAITER, move=moving())


@pytest.fixture
def collector() -> Iterator[FlightRecorderCollector]:
    with Spawner() as spawner, Reader(spawner) as reader:
        yield FlightRecorderCollector(Host(), reader, InstalledSoftware(Host(), reader))


def taken(*ranks: RankCapture) -> NodeCapture:
    return msgspec.structs.replace(capture(*ranks, world=2), taken_at=time.time())


def add(
    collector: FlightRecorderCollector,
    *ranks: RankCapture,
    left: float = 30.0,
    stalled: bool = True,
) -> NodeCapture:
    return collector.add(taken(*ranks), lambda: left, stalled=stalled)


@contextmanager
def met(
    collector: FlightRecorderCollector, folder: Path, number: int = 0, **kw: str
) -> Iterator[Monitored]:
    """A stand-in that discovery has found, and its PyTorch read."""
    with monitored(folder, number, **kw) as one:
        living.append(one)
        collector._installed.of(f"{one.pid}", one.pid, one.program.libraries)
        collector.update(discovered(*living))
        try:
            yield one
        finally:
            living.remove(one)


living: list[Monitored] = []


def ways(found: NodeCapture) -> dict[int, str]:
    """By rank, the way of its Flight Recorder."""
    return {one.identity.rank: one.flight.way for one in found.ranks if one.flight is not None}


def reasons(found: NodeCapture) -> list[tuple[str, str]]:
    return [(gap.reason, gap.way_out) for gap in found.gaps]


RUN = "start the job with `mldebug run -- …`: its ranks then tell their Flight Recorder when they are asked"


def test_all_wait_alike_and_the_fifo_tells_who_called_what(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with met(collector, tmp_path, 0) as first, met(collector, tmp_path, 1) as second:
        found = add(collector, first.captured(WAITS), second.captured(WAITS))
        assert ways(found) == {0: "debug FIFO", 1: "debug FIFO"}
        assert reasons(found) == [
            ("ranks 0-1: had by the debug FIFO, which may hold a rank up for a minute", RUN)
        ]
        evidence = diagnose([found]).diagnosis.evidence
        assert "Flight Recorder of ranks 0-1: by the debug FIFO" in evidence
        assert [first.end(), second.end()] == [["dump 1 for 1 bytes"]] * 2


def test_a_dump_that_takes_a_minute_delays_nothing_and_is_asked_for_once(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """That of a full recorder. A capture waits 2.5 s for it, no second byte is written while it is owed, and a later one reads it."""
    with met(collector, tmp_path, 0, how="waits") as one:
        began, quiet = time.monotonic(), {"quiet_seconds": 120.0}
        first = add(collector, one.captured(WAITS))
        assert time.monotonic() - began < 5.0 * PATIENCE
        assert (ways(first), first.awaited) == ({}, (0,))
        assert "no dump by its debug FIFO in 2.5 s; it may still come" in str(reasons(first))
        second = add(collector, one.captured(WAITS))
        assert (ways(second), second.awaited) == ({}, (0,))
        assert "an earlier question has not been answered yet" in str(reasons(second))
        by_hand = add(collector, one.captured(WAITS), stalled=False)
        assert by_hand.awaited == (0,), "it asks nobody, and the answer is owed all the same"
        one.let_go()
        third = msgspec.structs.replace(taken(one.captured(WAITS)), **quiet)
        found = collector.add(third, lambda: 30.0, stalled=True)
        assert (ways(found), found.awaited) == ({0: "debug FIFO"}, ())
        assert one.end() == ["dump 1 for 1 bytes"]


def test_a_dump_that_somebody_asked_for_before_us_is_told_to_be_gone(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """PyTorch has one file for each rank; what we asked for ourselves is missed by nobody."""
    with met(collector, tmp_path, 0) as one:
        one.dump.write_bytes(recording(0))
        at = one.dump.stat().st_mtime
        lost = "earlier dump of its Flight Recorder"
        (gap,) = [gap for gap in add(collector, one.captured(WAITS)).gaps if gap.what == lost]
        when = time.strftime("%H:%M:%S UTC in ", time.gmtime(at))
        assert f"{when}{one.dump} is written over" in gap.reason
        assert gap.way_out.startswith("copy a dump that you want to keep")
        assert lost not in {gap.what for gap in add(collector, one.captured(WAITS)).gaps}
        assert one.end() == ["dump 1 for 1 bytes", "dump 2 for 1 bytes"]


def test_who_waits_as_another_does_is_spared_and_who_works_too(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """The dump may hold a rank up, and stacks tell who lags: one that waits is enough."""
    numbers = (0, 1, 2)
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(met(collector, tmp_path, number)) for number in numbers
        )
        told_by = (first.captured(WAITS), second.captured(SLEEPS), third.captured(WAITS))
        found = add(collector, *told_by)
        assert ways(found) == {0: "debug FIFO"}
        price = "not asked by the debug FIFO, whose dump may hold a rank up for a minute: "
        assert [reason for reason, _ in reasons(found)] == [
            f"rank 1: {price}it does not wait",
            f"rank 2: {price}it waits as rank 0 does",
            "rank 0: had by the debug FIFO, which may hold a rank up for a minute",
        ]
        assert [way for _, way in reasons(found)] == [RUN, "", ""]
        assert [first.end(), second.end(), third.end()] == [["dump 1 for 1 bytes"], [], []]


def test_a_fifo_of_that_name_that_another_job_has_made_since_is_not_asked(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """PyTorch takes a FIFO away that is there, and makes its own: a byte would make the other job dump, which may be well."""
    with met(collector, tmp_path / "mine") as mine, monitored(tmp_path / "theirs") as theirs:
        os.replace(theirs.fifo, mine.fifo)
        found = add(collector, mine.captured(WAITS))
        assert ways(found) == {}
        assert "another job has made one of that name since" in str(reasons(found))
        assert [mine.end(), theirs.end()] == [[], []]


WHY_NOT = {
    "which the agent has seen stand still": (WAITS, False),  # a dump by hand: the job may be well
    "a rank of the job moved": (GOES_ON, True),
    "was looked at only once": (process(*WAITER), True),
}


@pytest.mark.parametrize("why", WHY_NOT)
def test_a_fifo_is_left_alone_where_nobody_knows_that_the_job_stands_still(
    collector: FlightRecorderCollector, tmp_path: Path, why: str
) -> None:
    what, stalled = WHY_NOT[why]
    with met(collector, tmp_path, 0) as first, met(collector, tmp_path, 1) as second:
        found = add(collector, first.captured(WAITS), second.captured(what), stalled=stalled)
        assert ways(found) == {}
        ((reason, _),) = reasons(found)
        assert reason.startswith("ranks 0-1: not asked by the debug FIFO")
        assert why in reason
        assert [first.end(), second.end()] == [[], []]


@pytest.mark.parametrize("state", ["D", "t"])
def test_a_rank_with_a_thread_in_the_kernel_or_stopped_is_not_asked(
    collector: FlightRecorderCollector, tmp_path: Path, state: str
) -> None:
    with met(collector, tmp_path) as one:
        rank = one.captured(WAITS)
        assert rank.process.state is not None
        thread = ThreadState(tid=1, name="cuda", state=state)
        held = msgspec.structs.replace(rank.process.state, threads=(thread,))
        process = msgspec.structs.replace(rank.process, state=held)
        found = add(collector, msgspec.structs.replace(rank, process=process))
        assert "one of its threads is stopped, or in the kernel" in str(reasons(found))
        assert one.end() == []


def test_a_fresh_dump_of_the_timeout_spares_the_fifo(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with met(collector, tmp_path) as one:
        write(one)
        found = add(collector, one.captured(WAITS))
        assert ways(found) == {0: "dump file"}
        assert one.end() == []


def write(one: Monitored, age: float = 0.0) -> None:
    """Its dump, as PyTorch leaves it at a timeout."""
    one.dump.write_bytes(recording(one.identity.rank, late=True))
    wait_until(lambda: one.dump.stat().st_mtime + 60 > time.time())
    if age:
        os.utime(one.dump, (time.time() - age,) * 2)


def test_the_dump_of_an_earlier_question_is_not_taken_for_one_of_now(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """Somebody else asked a moment ago; the rank has gone on since, and what it says now counts."""
    with met(collector, tmp_path) as one:
        one.dump.write_bytes(recording(0))
        found = add(collector, one.captured(WAITS))
        assert ways(found) == {0: "debug FIFO"}
    with met(collector, tmp_path / "other", TORCH_NCCL_DEBUG_INFO_PIPE_FILE="") as one:
        one.dump.write_bytes(recording(0))
        found = add(collector, one.captured(WAITS))
        assert ways(found) == {}
        assert "none of a timeout: no call in it had taken too long" in str(reasons(found))


def test_what_a_file_tells_is_never_sure(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """A job on another node with the same home may have written it: one rank is named, and not at high."""
    ranks = range(3)
    with ExitStack() as stack:
        ones = [
            stack.enter_context(met(collector, tmp_path, n, recorded="hang-sleep")) for n in (0, 1)
        ]
        write(ones[0])
        rank = ones[0].captured(WAITS)
        record = add(collector, rank).ranks[0].flight
    assert record is not None
    for way, confidence in (
        ("", "high"),
        ("worker server", "high"),
        ("dump file", "medium"),
        ("debug FIFO", "medium"),
    ):
        theirs, its = (waits_in("all_reduce", n, ranks=tuple(ranks)) for n in (6, 5))
        job_ = job({n: (its,) if n == 2 else (theirs,) for n in ranks}, world=3)
        by_way = tuple(
            msgspec.structs.replace(one, flight=msgspec.structs.replace(one.flight, way=way))
            for one in job_.ranks
            if one.flight is not None
        )
        found = diagnose([msgspec.structs.replace(job_, ranks=by_way)]).diagnosis
        assert ([one.rank for one in found.culprits], found.confidence) == ([2], confidence)


def test_a_file_that_two_living_jobs_write_is_refused_and_named(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """Two jobs of one user with the default names: who was last nobody can tell."""
    with met(collector, tmp_path / "mine") as mine:
        prefix = {"TORCH_FR_DUMP_TEMP_FILE": str(mine.dump)[:-1]}
        with met(collector, tmp_path / "theirs", **prefix) as theirs:
            write(mine)
            found = add(collector, mine.captured(WAITS))
            assert ways(found) == {}
            (gap,) = [gap for gap in found.gaps if "file" in gap.reason]
            assert gap.reason.startswith(
                f"rank 0: its dump file is not believed: rank 0 of theirs (pid {theirs.pid}) may have written it, too; "
                "give each job a TORCH_FR_DUMP_TEMP_FILE of its own"
            )
            assert [mine.end(), theirs.end()] == [
                [],
                [],
            ]  # nor was either FIFO asked: the answer would lie there
            counts = collector.unanswered.counts
            assert {way: count for way, count in counts.items() if count} == {"dump file": 1}


def test_one_file_under_two_names_is_one_file(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """As in two containers that mount one home."""
    with met(collector, tmp_path / "mine") as mine, met(collector, tmp_path / "theirs") as theirs:
        write(mine)
        theirs.dump.hardlink_to(mine.dump)
        found = add(collector, mine.captured(WAITS))
        assert "may have written it, too" in str(reasons(found))
        assert "dump file" not in ways(found).values()


def test_an_old_dump_of_a_rank_that_lives_is_not_used(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with met(collector, tmp_path, how="leaves") as one:
        write(one, age=1000)
        long_ago = msgspec.structs.replace(one.identity, started_at=0.0)
        rank = msgspec.structs.replace(one.captured(WAITS), identity=long_ago)
        found = add(collector, rank)
        assert ways(found) == {}
        ((reason, _),) = reasons(found)
        assert reason == (
            "rank 0: its dump file is 1000 s old, and it may have gone on since; not asked by the debug FIFO,"
            " whose dump may hold a rank up for a minute: it holds no such FIFO open: none was made, or another job has made one of that"
            " name since; give each job a name of its own"
        )


def test_a_rank_that_the_hook_has_told_of_is_left_alone(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with met(collector, tmp_path) as one:
        write(one)
        mine = add(collector, one.captured(WAITS)).ranks[0].flight
        assert mine is not None
        by_hook = msgspec.structs.replace(mine, way="")
        rank = msgspec.structs.replace(one.captured(WAITS), flight=by_hook)
        before = taken(rank)
        assert collector.add(before, lambda: 30.0) == before


def test_a_hook_that_did_not_answer_leaves_the_ways_that_cost_nothing(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with met(collector, tmp_path) as one:
        rank = msgspec.structs.replace(one.captured(WAITS), hook=HookState())
        found = add(collector, rank)
        assert (ways(found), found.gaps) == (
            {},
            (),
        )  # its hook says why; what it has refused its FIFO is not asked for
        assert one.end() == []


def test_a_stopped_rank_is_not_asked(collector: FlightRecorderCollector, tmp_path: Path) -> None:
    with met(collector, tmp_path) as one:
        os.kill(one.pid, signal.SIGSTOP)
        wait_until(lambda: state(one.pid) == "T")
        found = add(collector, one.captured(WAITS))
        assert (ways(found), reasons(found)) == (
            {},
            [("rank 0: it is stopped, or gone, and was not asked", RUN)],
        )
        os.kill(one.pid, signal.SIGCONT)
        assert one.end() == []


def test_a_job_without_any_way_hears_what_to_set(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with met(collector, tmp_path, version="2.9.1", TORCH_NCCL_DEBUG_INFO_PIPE_FILE="") as one:
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


def test_a_process_without_pytorch_adds_nothing(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with met(collector, tmp_path, version="of my own") as one:
        before = taken(one.captured(WAITS))
        assert collector.add(before, lambda: 30.0) == before


def test_of_gloo_alone_nothing_is_missed(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """A job on CPUs has no Flight Recorder that PyTorch could dump; that is no gap of a report."""
    with met(collector, tmp_path, TORCH_NCCL_DEBUG_INFO_PIPE_FILE="") as one:
        rank = one.captured(WAITS)
        assert rank.process.state is not None
        thread = ThreadState(tid=1, name="pt_gloo_runloop", state="S")
        threads = msgspec.structs.replace(rank.process.state, threads=(thread,))
        process = msgspec.structs.replace(rank.process, state=threads)
        assert add(collector, msgspec.structs.replace(rank, process=process)).gaps == ()
        assert len(add(collector, rank).gaps) == 1


def test_without_time_nobody_is_asked(collector: FlightRecorderCollector, tmp_path: Path) -> None:
    with met(collector, tmp_path) as one:
        started = time.monotonic()
        found = add(collector, one.captured(WAITS), left=1.0)
        assert ways(found) == {}
        assert time.monotonic() - started < 10 * PATIENCE
        assert one.end() == []


def test_an_error_of_our_own_costs_the_flight_recorder_and_not_the_capture(tmp_path: Path) -> None:
    def fails(*_: object, **__: object) -> NodeCapture:
        raise KeyError("a defect")

    with open_tools(Config()) as tools, monitored(tmp_path) as one:
        capturer = tools.capture.capturer(0.0)
        capturer.more_flights = fails
        found = capturer.capture(one.job, {})
    assert [rank.identity for rank in found.ranks] == [one.identity]
    (gap,) = [gap for gap in found.gaps if gap.what == "Flight Recorder"]
    assert (gap.reason, gap.way_out) == ("KeyError: 'a defect'", "report it as a defect of mldebug")


# --- ranks that have ended -----------------------------------------------------------------------


def test_what_killed_ranks_have_dumped_is_evidence(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    """The watchdog ends a rank after its dump: all that is left of it then is that file."""
    with (
        met(collector, tmp_path, 0, recorded="hang-sleep") as first,
        met(collector, tmp_path, 1) as second,
    ):
        ranks = (first.identity, second.identity)
        add(collector, first.captured(WAITS))  # their PyTorch is read while they live
        collector.update(discovered(first, second))
        for one in (first, second):
            one.dump.write_bytes(recording(one.identity.rank, "hang-sleep", late=True))
            one.end()
        collector.update(Discovery())
        found = collector.left_behind(ranks)
        assert sorted(found) == [0, 1]
        exits = tuple(RankExit(rank=one.rank, pid=one.pid, status=6) for one in ranks)
        job = capture(world=2).job
        outcome = judge_exit(AttemptExit(job=job, identities=ranks, exits=exits, flights=found))
        assert outcome.finding is not None
        assert (
            "Flight Recorder, dumped before the end: rank 0 waited in all_reduce 56812 of group 0, "
            "which rank 1 had not called"
        ) in outcome.finding.evidence


def test_dumps_that_somebody_asked_for_are_not_what_ended_it(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with met(collector, tmp_path) as one:
        one.dump.write_bytes(recording(0))
        one.end()
        assert collector.left_behind([one.identity]) == {}


def test_ranks_that_nobody_met_leave_nothing(
    collector: FlightRecorderCollector, tmp_path: Path
) -> None:
    with monitored(tmp_path) as one:
        write(one)
        one.end()
        assert collector.left_behind([one.identity]) == {}
