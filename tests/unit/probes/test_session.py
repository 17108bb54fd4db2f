"""The frame of every probe: children that are heard and ended, who may start, and what they inherit."""

import ast
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.model import Job, RankIdentity
from mldebug.hardware.gpu.readings import GpuProcess, GpuReading, LostGpu, NodeGpus
from mldebug_agents.hardware.gpu.errors import GpuCrashedError, GpuDriverError, NoGpuLibraryError
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.jobs.ranks.registry import PROBES
from mldebug_agents.probes import child
from mldebug_agents.probes.child import ChildExit, Event, ProbeChild, inside
from mldebug_agents.probes.environment import INSIDE, child_environment, find_python
from mldebug_agents.probes.guard import LONGEST, BusyError, Guard, only_probe
from mldebug_agents.probes.options import seconds
from mldebug_agents.system.spawn import Spawner
from shared.system.patience import PATIENCE

RANKS = """
import os, signal, sys, time
sys.path.insert(0, {above!r})
from inside.ranks import emit, launch, rank
def work(order):
    emit("started", rank=rank(), pid=os.getpid())
    {body}
launch({{"ranks": [0, 1], "world": 2, "address": "127.0.0.1", "port": 1, "seconds": {seconds}}}, work)
"""


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner() as one:
        yield one


class Launched:
    """Two ranks that do `body`, heard to their end."""

    def __init__(
        self, spawner: Spawner, body: str, *,
        seconds: float = 60.0, cancel: bool = False, lose: bool = False, before: str = "",
    ) -> None:  # fmt: skip
        program = before + RANKS.format(above=str(INSIDE.parent), body=body, seconds=seconds)
        self.messages: list[Event] = []

        def look(_: object) -> str:
            if len(self.pids) < 2:
                return ""  # both shall be there, on a busy machine, too
            if lose:
                raise GpuDriverError("the GPU driver is gone")
            return "somebody came" if cancel else ""

        child = ProbeChild(spawner, look)
        argv = [sys.executable, "-c", program]
        self.ended: ChildExit = child.run(argv, dict(os.environ), 90.0, self.messages.append)

    @property
    def pids(self) -> list[int]:
        return [one["pid"] for one in self.messages if one["event"] == "started"]

    def leaves_nothing(self) -> bool:
        deadline = time.monotonic() + 20 * PATIENCE
        while any(lives(pid) for pid in self.pids) and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(self.pids) and not any(lives(pid) for pid in self.pids)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ranks_are_heard_while_they_run(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a library prints is kept, in a Python that nobody has told to write at once."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    done = Launched(
        spawner, "emit('half', rank=rank()); print('noise'); emit('whole', rank=rank())"
    )
    assert done.ended.outcome == "done"
    assert done.ended.reason == ""
    events = [one["event"] for one in done.messages]
    assert events.count("half") == events.count("whole") == 2
    assert events[-1] == "done"
    assert "noise" in done.ended.stderr


def test_what_was_printed_before_the_ranks_began_is_not_theirs(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank is a fork, with a copy of what its launcher has not written yet."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    done = Launched(spawner, "print('noise')", before="print('loaded')")
    assert done.ended.outcome == "done"
    assert done.ended.stderr.split() == ["noise", "noise"]


def test_long_lines_of_several_ranks_stay_whole(spawner: Spawner) -> None:
    body = "[emit('long', rank=rank(), text=str(rank()) * 300_000) for _ in range(20)]"
    done = Launched(spawner, body)
    assert done.ended.outcome == "done"
    texts = [one["text"] for one in done.messages if one["event"] == "long"]
    assert sorted(texts) == sorted(str(number) * 300_000 for number in (0, 1) for _ in range(20))


def test_a_rank_that_raises_is_named_and_the_others_are_ended(spawner: Spawner) -> None:
    failed = Launched(spawner, "1 / 0 if rank() == 1 else time.sleep(3600)")
    assert failed.ended.outcome == "failed"
    assert failed.ended.reason == "rank 1: ZeroDivisionError: division by zero"
    assert failed.leaves_nothing()


def test_a_rank_that_is_killed_is_named_and_the_others_are_ended(spawner: Spawner) -> None:
    body = "os.kill(os.getpid(), signal.SIGKILL) if rank() == 0 else time.sleep(3600)"
    died = Launched(spawner, body)
    assert died.ended.outcome == "failed"
    assert died.ended.reason == "rank 0 was killed by signal 9 before the others were done"
    assert died.leaves_nothing()


def test_ranks_that_do_not_end_are_ended_at_their_deadline(spawner: Spawner) -> None:
    late = Launched(spawner, "time.sleep(3600)", seconds=1.0)
    assert late.ended.outcome == "late"
    assert late.leaves_nothing()


def test_a_job_that_appears_ends_the_probe_at_once(spawner: Spawner) -> None:
    cancelled = Launched(spawner, "time.sleep(3600)", cancel=True)
    assert cancelled.ended.outcome == "cancelled"
    assert cancelled.ended.reason == "somebody came"
    assert cancelled.leaves_nothing()


def test_gpus_that_are_lost_meanwhile_are_a_fault_and_no_job(spawner: Spawner) -> None:
    lost = Launched(spawner, "time.sleep(3600)", lose=True)
    assert (lost.ended.outcome, lost.ended.reason) == ("failed", "the GPU driver is gone")
    assert lost.leaves_nothing()


def test_an_interrupt_leaves_nothing() -> None:
    pids: list[int] = []

    def interrupt(event: Event) -> None:
        pids.extend([event["pid"]] if event["event"] == "started" else [])
        if len(pids) == 2:
            signal.raise_signal(signal.SIGINT)

    program = RANKS.format(above=str(INSIDE.parent), body="time.sleep(3600)", seconds=60)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background ignores it
    try:
        with pytest.raises(KeyboardInterrupt), Spawner() as spawner:
            ProbeChild(spawner).run(
                [sys.executable, "-c", program], dict(os.environ), 60.0, interrupt
            )
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 20 * PATIENCE
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(pids) == 2
    assert not any(map(lives, pids))


SLOW_TORCH = "import ctypes\nctypes.PyDLL(None).sleep(6)  # holds the interpreter, as loading a library does\nraise OSError('at last')\n"


@pytest.mark.parametrize("script", ["facts", "node", "isolate"])
def test_pytorch_may_come_from_a_slow_disk(
    script: str, spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "SILENCE", 4.0)
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    order = {"stages": [], "gpus": 0, "seconds": 60, "node": 0, "nodes": 1, "address": "127.0.0.1"}
    order["device"] = "cpu"
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = ProbeChild(spawner).run(
        inside(sys.executable, script, order), env, 60.0, lambda _: None
    )
    assert "nothing was heard" not in ended.reason
    assert "at last" in ended.reason + ended.stderr


def test_a_program_that_cannot_be_started_is_told(spawner: Spawner) -> None:
    ended = ProbeChild(spawner).run(["/no/such/python"], {}, 5.0, print)
    assert (ended.outcome, ended.reason) == (
        "failed",
        "it cannot be run: No such file or directory",
    )


def test_lines_of_libraries_are_no_events(spawner: Spawner) -> None:
    words = "print('NCCL INFO'); print('[1]'); print('{\"event\": 3}'); print('{\"event\": \"x\"}')"
    events: list[Event] = []
    ended = ProbeChild(spawner).run(
        [sys.executable, "-c", words], dict(os.environ), 30.0, events.append
    )
    assert ended.outcome == "done"
    assert events == [{"event": "x"}]


def test_what_runs_in_the_training_environment_is_python_3_9() -> None:
    scripts = sorted(INSIDE.glob("*.py"))
    assert {"__main__.py", "ranks.py", "facts.py"} <= {one.name for one in scripts}
    for script in scripts:
        text = script.read_text()
        ast.parse(text, feature_version=(3, 9))
        assert "from __future__ import annotations" in text or script.name.startswith("__")


def test_the_environment_is_of_no_other_job_and_says_what_matters() -> None:
    own = {
        "RANK": "3",
        "MASTER_ADDR": "x",
        "PYTHONPATH": "/x",
        "NCCL_ALGO": "Ring",
        "HOME": "/root",
    }
    found = child_environment(
        {**own, "NCCL_VERSION": "2.28.3-1"}
    )  # NVIDIA's images have it: no setting
    assert found.variables.pop("NCCL_VERSION") == "2.28.3-1"
    assert found.variables == {"NCCL_ALGO": "Ring", "HOME": "/root", "OMP_NUM_THREADS": "1"}
    assert found.kept == {"NCCL_ALGO": "Ring"}
    assert found.dropped == ("MASTER_ADDR", "PYTHONPATH", "RANK")


def test_a_python_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match="there is no such program"):
        find_python("/no/such/python")


def test_two_probes_never_run_at_once(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        only_probe(lock),
        pytest.raises(MldebugError, match="another probe runs on this node"),
        only_probe(lock),
    ):
        pass
    with only_probe(lock):
        assert lock.exists()


@contextmanager
def held_by_another(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another user's process that holds this lock."""
    lock.touch()
    script = "import fcntl, os, sys; f = open(sys.stdin.fileno(), closefd=False); fcntl.flock(f, fcntl.LOCK_SH); os.setuid(62_001); print('held', flush=True); os.read(3, 1)"  # fmt: skip
    quiet, wake = os.pipe()
    with lock.open() as file, subprocess.Popen(
        [sys.executable, "-c", script.replace("os.read(3", f"os.read({quiet}")],
        stdin=file, stdout=subprocess.PIPE, pass_fds=[quiet],
    ) as holder:  # fmt: skip
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            file.close()
            yield holder
        finally:
            os.close(wake)
    os.close(quiet)


@pytest.mark.skipif(os.geteuid() != 0, reason="root can be two users")
def test_who_holds_the_lock_is_named(tmp_path: Path) -> None:
    """Any user may hold it for ever, and then no probe runs on the node: it was not said who."""
    lock = tmp_path / "lock"
    with held_by_another(lock) as holder, pytest.raises(BusyError) as busy, only_probe(lock):
        pass
    assert f"(pid {holder.pid} of user 62001) holds {lock}" in busy.value.message


@pytest.mark.skipif(os.geteuid() != 0, reason="root can be two users")
def test_who_holds_the_lock_for_longer_than_a_probe_takes_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / "lock"
    with held_by_another(lock) as holder:
        monkeypatch.setattr("mldebug_agents.probes.guard.LONGEST", -60.0)
        with only_probe(lock):
            assert f"(pid {holder.pid} of user 62001) holds {lock}" in caplog.text
            monkeypatch.setattr("mldebug_agents.probes.guard.LONGEST", 3600.0)
            beside = lock.with_name("lock.2")  # what another probe that passes over the first finds
            with pytest.raises(BusyError, match=r"lock\.2"), only_probe(beside):
                pass


@pytest.mark.skipif(os.geteuid() != 0, reason="root can be two users")
def test_who_was_passed_over_and_leaves_makes_no_place_for_a_second_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    with ExitStack() as first:
        with held_by_another(lock) as holder:
            monkeypatch.setattr("mldebug_agents.probes.guard.LONGEST", -60.0)
            first.enter_context(only_probe(lock))
            monkeypatch.setattr("mldebug_agents.probes.guard.LONGEST", 3600.0)
            holder.kill()
            holder.wait()
        with pytest.raises(BusyError, match=r"lock\.2"), only_probe(lock):
            pass
    with only_probe(lock):
        pass


def test_no_probe_may_run_as_long_as_who_is_passed_over() -> None:
    assert seconds("24h") < LONGEST
    with pytest.raises(UsageError, match="up to a day"):
        seconds(f"{LONGEST:g}s")


def test_a_lock_can_be_asked_for_by_every_user(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    before = os.umask(0o077)
    try:
        with only_probe(lock):
            assert lock.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_lock_in_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(MldebugError) as raised, only_probe(tmp_path / "none" / "lock"):
        pass
    assert "in a folder that is there" in raised.value.way_out


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with (
        pytest.raises(MldebugError, match="symbolic links") as caught,
        only_probe(tmp_path / "lock"),
    ):
        pass
    assert "it is no lock file" in caught.value.way_out


def test_a_launcher_that_tells_of_a_stranger_is_ended_for_that_reason(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at this node, which knows of nobody, does not make that unsaid."""
    monkeypatch.setattr(child, "LOOK_EVERY", 0.0)
    program = """import time; print('{"event": "stranger", "reason": "a job"}', flush=True); time.sleep(60)"""
    ended = ProbeChild(spawner).run(
        [sys.executable, "-c", program], dict(os.environ), 60.0, lambda _: None
    )
    assert (ended.outcome, ended.reason) == ("cancelled", "a job")


class Gpus:
    """GPUs with these compute processes (None: they do not tell), or an error."""

    def __init__(
        self, *pids: int | None, error: Exception | None = None, lost: bool = False
    ) -> None:
        self.pids = pids
        self.error, self.lost = error, lost

    def full(self) -> NodeGpus:
        if self.error is not None:
            raise self.error
        items = (
            None if None in self.pids else tuple(GpuProcess(pid=pid) for pid in self.pids if pid)
        )
        gpu = GpuReading(uuid="GPU-1", index=0, processes=items)
        lost = (LostGpu(index=1, reason="gone"),) if self.lost else ()
        return NodeGpus(at=0.0, gpus=(gpu,), lost=lost)


class Jobs:
    """One job with a rank of each of these pids; none without any."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids

    def find(self) -> Discovery:
        if not self.pids:
            return Discovery()
        ranks = tuple(
            RankIdentity(rank=number, world_size=len(self.pids), pid=pid, start_ticks=1)
            for number, pid in enumerate(self.pids)
        )
        return Discovery(jobs=(Job(id="j", name="train.py", launcher="torchrun", ranks=ranks),))


OWN = os.getsid(0)
UNSEEN = 4_194_305  # above the highest pid


def test_nobody_here_is_no_reason() -> None:
    guard = Guard(Gpus(), Jobs(), uses_gpus=True)
    guard.refuse()
    assert guard.look(OWN) == ""


@pytest.mark.parametrize(
    ("gpus", "jobs", "reason"),
    [
        (Gpus(1), Jobs(), r"a process computes on GPU 0 \(pid 1\)"),
        (Gpus(os.getpid()), Jobs(), "a process computes on GPU 0"),
        (Gpus(UNSEEN), Jobs(), "a process of another container computes on GPU 0"),
        (Gpus(), Jobs(1), r"the training job train.py runs on this node \(pid 1\)"),
    ],
)
def test_a_node_that_is_not_idle_is_left_alone(gpus: Gpus, jobs: Jobs, reason: str) -> None:
    with pytest.raises(BusyError, match=reason):
        Guard(gpus, jobs, uses_gpus=True).refuse()


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (Gpus(error=NoGpuLibraryError("no library")), "who computes .* is not known"),
        (Gpus(lost=True), "a GPU does not answer"),
        (Gpus(None), "GPU 0 does not tell who computes on it"),
    ],
)
def test_gpus_that_do_not_tell_who_computes_are_left_alone_and_not_called_busy(
    gpus: Gpus, reason: str
) -> None:
    with pytest.raises(MldebugError, match=reason) as raised:
        Guard(gpus, Jobs(), uses_gpus=True).refuse()
    assert not isinstance(raised.value, BusyError)


def test_a_driver_that_cannot_be_read_refuses() -> None:
    with pytest.raises(GpuDriverError):
        Guard(Gpus(error=GpuDriverError("gone")), Jobs(), uses_gpus=True).refuse()


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_reader_that_dies_once_is_asked_again(crashes: int) -> None:
    class Crashing(Gpus):
        def full(self) -> NodeGpus:
            self.error = GpuCrashedError("died") if len(numbers) < crashes else None
            numbers.append(1)
            return super().full()

    numbers: list[int] = []
    guard = Guard(Crashing(), Jobs(), uses_gpus=True)
    with pytest.raises(GpuCrashedError) if crashes > 1 else contextlib.nullcontext():
        guard.refuse()
    assert len(numbers) == 2


def test_a_node_without_gpus_can_measure_its_cpus() -> None:
    Guard(Gpus(error=NoGpuLibraryError("no library")), Jobs(), uses_gpus=False).refuse()


def test_own_ranks_are_no_strangers_while_they_run() -> None:
    guard = Guard(Gpus(os.getpid()), Jobs(os.getpid()), uses_gpus=True)
    assert guard.look(OWN) == ""
    assert "computes on GPU 0" in guard.look(OWN + 1)


def test_in_a_container_one_unknown_process_is_our_own_rank_and_two_are_not() -> None:
    assert Guard(Gpus(UNSEEN), Jobs(), uses_gpus=True).look(OWN) == ""
    guard = Guard(Gpus(UNSEEN, UNSEEN + 1), Jobs(), uses_gpus=True)
    assert "another container" in guard.look(OWN)


def test_a_driver_that_stops_answering_ends_the_probe_after_some_looks() -> None:
    guard = Guard(Gpus(error=GpuDriverError("the GPU driver is gone")), Jobs(), uses_gpus=True)
    assert [guard.look(OWN) for _ in range(2)] == ["", ""]
    with pytest.raises(GpuDriverError, match="the GPU driver is gone"):
        guard.look(OWN)


def test_the_agent_knows_the_ranks_of_a_probe_by_this_folder() -> None:
    assert str(INSIDE).endswith(PROBES)
    assert (INSIDE / "__main__.py").is_file()
