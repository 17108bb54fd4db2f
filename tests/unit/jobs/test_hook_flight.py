"""Flight Recorders on demand: real processes are asked by their signal, none is harmed, and no answer is taken for true."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mldebug.core.model import RankIdentity
from mldebug.jobs.heartbeat import parse_record
from mldebug_agents.jobs.hook.flight_recorder import HookFlightRecorder, HookFlightRecords
from mldebug_agents.jobs.hook.signals import HookSignals
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.jobs.hooked import HOLDS, RANK, SHM, process, state
from shared.system.hung import wait_until
from shared.system.patience import PATIENCE

TORCH = """
    import json, types
    class Group:
        group_desc = "dp"
        def rank(self): return 0
    group = Group()
    world = types.SimpleNamespace(pg_names={group: "3"}, pg_group_ranks={group: {0: 0, 1: 1}}, default_pg=group)
    call = {"pg_id": 0, "process_group": ["3", "dp"], "collective_seq_id": 7, "profiling_name": "gloo:barrier", "state": "scheduled"}
    dump = lambda: json.dumps({"version": "2.10", "entries": [call]}).encode()
    bindings = types.SimpleNamespace(_dump_fr_trace_json=dump)
    sys.modules["torch._C"] = types.SimpleNamespace(_distributed_c10d=bindings)
    sys.modules["torch.distributed.distributed_c10d"] = types.SimpleNamespace(_world=world)
"""
SLEEPS = RANK + TORCH + "    slow_data_loader()\n"
FLIGHT_SIGNAL = signal.SIGRTMIN + 13  # the second below the one for stacks


@pytest.fixture
def asking() -> Iterator[HookFlightRecorder]:
    with Spawner() as spawner, Reader(spawner) as reader:
        yield HookFlightRecorder(HookSignals(Host(), reader), reader)


def identity(pid: int, rank: int = 0) -> RankIdentity:
    start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return RankIdentity(rank=rank, world_size=2, pid=pid, start_ticks=start)


def ask(
    asking: HookFlightRecorder, one: "subprocess.Popen[str]", timeout: float = 20.0
) -> HookFlightRecords:
    return asking.ask([identity(one.pid)], timeout)


def pending(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("ShdPnd")).split()[1], 16)


# --- ranks that can be asked ---------------------------------------------------------------------


def test_ranks_are_asked_at_once_and_sleep_on(asking: HookFlightRecorder) -> None:
    with ExitStack() as stack:
        ranks = [stack.enter_context(process(SLEEPS)) for _ in range(2)]
        for one in ranks:
            wait_until(lambda one=one: state(one.pid) == "S")
        for _ in range(3):
            found = asking.ask([identity(one.pid, n) for n, one in enumerate(ranks)], 20)
            assert (sorted(found.flights), found.gaps) == ([0, 1], ())
            (group,) = found.flights[1].groups
            assert (group.name, group.description, group.members) == ("3", "dp", "0-1")
            assert [(call.op, call.sequence) for call in group.calls] == [("barrier", 7)]
        assert all(one.poll() is None for one in ranks)


def test_a_recorder_that_holds_nothing_of_the_calls_is_a_named_gap(
    asking: HookFlightRecorder,
) -> None:
    counts = """
        def name(self): return "nccl2"
        def _get_sequence_number_for_group(self): return 41
        def rank(self)"""
    code = SLEEPS.replace("\n        def rank(self)", counts)
    with process(code) as one:
        found = ask(asking, one)
        assert found.flights[0].silent == ("nccl2",)
        (gap,) = found.gaps
        assert gap.reason == "that of nccl2 holds none of its calls: its recorder was never seen running"  # fmt: skip


def test_a_process_without_pytorch_says_that_it_has_no_group(asking: HookFlightRecorder) -> None:
    with process(RANK + "    slow_data_loader()\n") as one:
        found = ask(asking, one)
        assert found.flights[0].groups == ()
        assert found.gaps == ()


def test_who_cannot_answer_costs_no_more_than_the_time_given(asking: HookFlightRecorder) -> None:
    """C code holds the interpreter lock; it is not interrupted, and the rest of the ranks answers."""
    with process(HOLDS) as held, process(SLEEPS) as free:
        wait_until(lambda: state(held.pid) == "S")
        started = time.monotonic()
        found = asking.ask([identity(held.pid, 0), identity(free.pid, 1)], 3)
        assert time.monotonic() - started < 10 * PATIENCE
        assert list(found.flights) == [1]
        assert [(gap.rank, gap.reason) for gap in found.gaps] == [(0, "no answer in 3 s")]
        assert asking.unanswered.counts["hook"] == 1
        assert held.poll() is None
        assert state(held.pid) == "S"


# --- and those that must not be ------------------------------------------------------------------


def test_a_stopped_rank_is_not_asked(asking: HookFlightRecorder) -> None:
    with process(SLEEPS) as one:
        os.kill(one.pid, signal.SIGSTOP)
        wait_until(lambda: state(one.pid) == "T")
        assert ask(asking, one) == HookFlightRecords()
        assert not pending(one.pid) >> (FLIGHT_SIGNAL - 1) & 1


def test_a_process_that_has_become_another_program_lives_on(asking: HookFlightRecorder) -> None:
    code = RANK + "    print(record.path, flush=True)\n    os.execvp('sleep', ['sleep', '1000'])\n"
    with process(code) as one:
        wait_until(lambda: Path(f"/proc/{one.pid}/comm").read_text() == "sleep\n")
        for _ in range(20):
            assert ask(asking, one) == HookFlightRecords()
        assert one.poll() is None


def test_who_does_not_catch_the_signal_is_not_sent_it(asking: HookFlightRecorder) -> None:
    """An older hook that has no Flight Recorder, or a program that has taken the signal back."""
    code = RANK + (
        "    import faulthandler, signal\n    faulthandler.unregister(record.signal - 2)\n"
        "    signal.pthread_sigmask(signal.SIG_UNBLOCK, (record.signal - 2,))\n    slow_data_loader()\n"
    )
    with process(code) as one:
        wait_until(lambda: state(one.pid) == "S")
        assert ask(asking, one) == HookFlightRecords()
        assert one.poll() is None


def test_a_pid_that_belongs_to_somebody_else_by_now_is_not_asked(
    asking: HookFlightRecorder,
) -> None:
    with process(SLEEPS) as one:
        other = RankIdentity(
            rank=0, world_size=2, pid=one.pid, start_ticks=identity(one.pid).start_ticks - 1
        )
        assert asking.ask([other], 5) == HookFlightRecords()


def test_who_is_gone_or_has_no_record_is_in_no_answer(asking: HookFlightRecorder) -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    gone = RankIdentity(rank=1, world_size=2, pid=done.pid)
    assert asking.ask([identity(os.getpid()), gone], 5) == HookFlightRecords()


# --- answers that are none -----------------------------------------------------------------------

AFTER = (
    RANK
    + TORCH
    + """
    from mldebug_training.hook import flight_recorder as flight
    path = record.path + ".flight"
    def write(self, data):
        WRITE
    flight.FlightFile._write = write
    slow_data_loader()
"""
)
WRITES = {
    "it is not what it should be": "open(path, 'wb').write(b'{'); os.chmod(path, 0o600)",
    "others may write it": "open(path, 'wb').write(data); os.chmod(path, 0o666)",
    "a symbolic link": "os.symlink('/etc/passwd', path)",
    "more than 1048576": "open(path, 'wb').write(b' ' * 2_000_000); os.chmod(path, 0o600)",
    "no such file": "raise OSError(28, 'full')",
}


@pytest.mark.parametrize("why", WRITES)
def test_an_answer_is_not_believed_because(asking: HookFlightRecorder, why: str) -> None:
    with process(AFTER.replace("WRITE", WRITES[why])) as one:
        found = ask(asking, one)
        assert found.flights == {}
        assert [why in gap.reason for gap in found.gaps] == [True], found
        assert one.poll() is None


def test_a_killed_rank_leaves_an_answer_that_the_next_one_sweeps_away(
    asking: HookFlightRecorder,
) -> None:
    with process(SLEEPS) as one:
        assert ask(asking, one).flights
        (left,) = SHM.glob(f"mldebug-{one.pid}-*.flight")
        with process(SLEEPS):
            assert left.exists()  # it lives: the lock on its file says so
        one.kill()
        one.wait(20)
        with process(SLEEPS):
            assert not left.exists()


# --- what the groups tell without a question -----------------------------------------------------

GLOO = """
import datetime, sys
import torch, torch.distributed as dist
from mldebug_training.hook.flight_recorder import collective_timeout
from mldebug_training.hook.process import OwnProcess

before = collective_timeout()
dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1, timeout=datetime.timedelta(seconds=77))
own = OwnProcess(sys.argv[2])
own.beat(1)
print(before, collective_timeout(), own.record.path, flush=True)
sys.stdin.read()
"""


def test_the_timeout_of_collectives_is_told_with_the_first_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    argv = [sys.executable, "-c", GLOO, f"file://{tmp_path}/rendezvous", str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, text=True, **pipes) as job:
        assert job.stdout is not None
        before, parts, path = job.stdout.readline().split()
        assert (float(before), float(parts)) == (0.0, 77.0)
        start = identity(job.pid).start_ticks
        beat = parse_record(Path(path).read_bytes(), job.pid, start, time.monotonic())
        assert (beat.step, beat.collective_timeout) == (1, 77.0)
        job.kill()
