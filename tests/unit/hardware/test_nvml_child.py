"""The child that reads GPUs: it hangs, crashes, sits in state D and is asked by many, and the agent lives on."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from fakenvml.library import FakeNvml
from mldebug.core.errors import MldebugError
from mldebug.hardware.gpu.readings import NodeWatch
from mldebug_agents.hardware.gpu import reader as source
from mldebug_agents.hardware.gpu.child import pause, server, stuck
from mldebug_agents.hardware.gpu.child.messages import NAME
from mldebug_agents.hardware.gpu.errors import (
    GpuBlockedError,
    GpuCrashedError,
    GpuDriverError,
    GpusReleasedError,
    NoGpuLibraryError,
)
from mldebug_agents.hardware.gpu.reader import VendorReader
from mldebug_agents.hardware.gpu.vendors import nvidia
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import ForkedWorker, Spawner
from shared.system.clocks import Clock
from shared.system.hung import state, wait_until
from shared.system.own_names import own_name
from shared.system.patience import PATIENCE

SOON = 0.3  # seconds: a deadline that a test lets pass
PATIENT = 20.0
IOCTL, NANOSLEEP = (29, 101) if os.uname().machine == "aarch64" else (16, 35)
SLOW = "nvmlDeviceGetEnforcedPowerLimit"  # only the full read calls it


class Bench:
    """A fake library, a real process starter, and a source that uses both."""

    def __init__(self, folder: Path, spawner: Spawner) -> None:
        self.fake = FakeNvml(folder)
        self.clock = Clock()
        self.spawner = spawner
        self.options = nvidia.Options(library=self.fake.library)
        self.gpus = self.source(PATIENT)

    def source(self, deadline: float, options: msgspec.Struct | None = None) -> VendorReader:
        return VendorReader(
            self.spawner,
            Host(),
            options=options or self.options,
            deadline=deadline,
            first_deadline=PATIENT,
            clock=self.clock,
        )

    def impatient(self) -> VendorReader:
        """A source that has been answered once and waits `SOON` from now on."""
        self.gpus = self.source(SOON)
        self.gpus.watch()
        return self.gpus


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.table"))
    with Spawner({NAME: server.serve}) as spawner:
        it = Bench(tmp_path, spawner)
        yield it
        it.fake.release()
        it.gpus.close()


@pytest.fixture
def device() -> Iterator[Path]:
    """A file that the helper takes for a GPU."""
    if os.geteuid() != 0:
        pytest.skip("makes a file in /dev")
    file = Path(f"/dev/nvidia-{own_name()}")
    file.touch()
    yield file
    file.unlink()


def pid_of(gpus: VendorReader) -> int:
    wait_until(lambda: gpus.pid)
    assert gpus.pid is not None
    return gpus.pid


def test_both_reads_come_from_one_child(bench: Bench) -> None:
    look = bench.gpus.watch()
    pid = pid_of(bench.gpus)
    node = bench.gpus.full()
    assert [gpu.power_watts for gpu in look.gpus] == pytest.approx([533.304, 571.597])
    assert [gpu.name for gpu in node.gpus] == ["NVIDIA H200", "NVIDIA H200"]
    assert bench.gpus.pid == pid
    assert bench.gpus.restarts == 0
    assert bench.gpus.blocked_seconds == 0.0


def test_the_agent_itself_never_loads_the_library(bench: Bench, tmp_path: Path) -> None:
    own = str(
        shutil.copy(bench.fake.library, tmp_path / "libnvidia-ml.so.1")
    )  # other tests load that one
    bench.gpus = bench.source(PATIENT, nvidia.Options(library=own))
    bench.gpus.watch()
    assert own not in Path("/proc/self/maps").read_text()
    assert own in Path(f"/proc/{pid_of(bench.gpus)}/maps").read_text()


def test_no_library_is_said_and_looked_for_again_later(bench: Bench) -> None:
    absent = nvidia.Options(library="/nowhere/libnvidia-ml.so.1")
    gpus = bench.source(PATIENT, absent)
    with pytest.raises(NoGpuLibraryError, match="/nowhere/libnvidia-ml"):
        gpus.watch()
    assert gpus.pid is None  # no child is kept for nothing
    with pytest.raises(NoGpuLibraryError):
        gpus.full()
    assert gpus.pid is None
    bench.clock.now += source.LIBRARY_AGAIN + 1
    with pytest.raises(NoGpuLibraryError):
        gpus.watch()


@pytest.mark.parametrize("function", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues"])
def test_a_call_that_blocks_is_said_and_the_child_is_used_again_when_it_comes_back(
    bench: Bench, function: str
) -> None:
    gpus = bench.impatient()
    pid = pid_of(gpus)
    bench.fake.block(function)
    with pytest.raises(GpuBlockedError, match=rf"pid {pid}, state [SR]"):
        gpus.watch()
    bench.clock.now += 5
    with pytest.raises(GpuBlockedError, match="for 5 s"):
        gpus.watch()
    assert gpus.blocked_seconds == 5
    (leftover,) = gpus.leftovers()
    assert (leftover.pid, leftover.lives()) == (pid, True)
    bench.fake.release()
    wait_until(lambda: _answers(gpus.watch))
    assert gpus.pid == pid
    assert (gpus.blocked_seconds, gpus.leftovers()) == (0.0, ())


def test_the_late_answer_to_one_question_is_not_taken_for_the_next(bench: Bench) -> None:
    gpus = bench.impatient()
    bench.fake.block(SLOW)
    with pytest.raises(GpuBlockedError):
        gpus.full()
    bench.fake.release()
    bench.fake.set("nvmlDeviceGetUtilizationRates 0", 33, 44)
    watchs: list[NodeWatch] = []
    wait_until(lambda: _answers(lambda: watchs.append(gpus.watch())))
    assert watchs[0].gpus[0].utilization_ratio == pytest.approx(0.33)


def test_an_event_in_an_answer_that_came_too_late_is_told_with_the_next(bench: Bench) -> None:
    gpus = bench.impatient()
    bench.fake.raise_event(1, 48)
    bench.fake.block("nvmlDeviceGetUtilizationRates")
    with pytest.raises(GpuBlockedError):
        gpus.watch()
    bench.fake.release()
    watchs: list[NodeWatch] = []
    wait_until(lambda: _answers(lambda: watchs.append(gpus.watch())))
    assert [(one.xid, one.index) for one in watchs[0].events] == [(48, 1)]
    assert gpus.watch().events == ()


def test_a_child_that_hangs_outside_the_kernel_is_replaced_in_the_end(bench: Bench) -> None:
    gpus = bench.impatient()
    pid = pid_of(gpus)
    bench.fake.block("nvmlDeviceGetUtilizationRates")
    with pytest.raises(GpuBlockedError):
        gpus.watch()
    bench.clock.now += stuck.HOPELESS - 1
    with pytest.raises(GpuBlockedError):
        gpus.watch()
    assert state(pid)
    os.kill(pid, signal.SIGSTOP)  # it stays where it is; the next one finds nothing in its way
    wait_until(lambda: state(pid) == "T")
    bench.fake.release()
    bench.clock.now += 2
    assert len(gpus.watch().gpus) == 2
    wait_until(lambda: not state(pid))
    assert gpus.pid != pid
    assert gpus.restarts == 1


def test_a_child_in_state_d_is_never_killed(bench: Bench) -> None:
    gpus = bench.impatient()
    pid = pid_of(gpus)
    bench.fake.sink("nvmlDeviceGetUtilizationRates")
    with pytest.raises(GpuBlockedError, match="driver does not come back"):
        gpus.watch()
    wait_until(lambda: state(pid) == "D")
    for _ in range(3):
        bench.clock.now += 10 * stuck.HOPELESS
        with pytest.raises(GpuBlockedError, match=f"pid {pid}, state D"):
            gpus.watch()
    assert state(pid) == "D"
    assert gpus.pid == pid  # and no second one went after it
    bench.fake.release()
    wait_until(lambda: _answers(gpus.watch))  # out of state D, and this late, it may be replaced


def test_a_child_in_state_d_survives_the_end_of_the_agent_and_is_told(
    bench: Bench, device: Path
) -> None:
    bench.fake.hold(device)
    gpus = bench.impatient()
    pid = pid_of(gpus)
    bench.fake.sink("nvmlDeviceGetUtilizationRates")
    with pytest.raises(GpuBlockedError):
        gpus.watch()
    wait_until(lambda: state(pid) == "D")
    gpus.close()
    left = bench.spawner.close()
    assert [one.pid for one in left] == [pid]
    assert state(pid) == "D"
    bench.fake.release()
    wait_until(lambda: not state(pid))


def test_a_crash_of_the_library_costs_one_read(bench: Bench) -> None:
    gpus = bench.gpus
    gpus.watch()
    pid = pid_of(gpus)
    bench.fake.crash(SLOW)
    with pytest.raises(GpuCrashedError, match="died"):
        gpus.full()
    assert len(gpus.watch().gpus) == 2
    assert gpus.pid != pid
    assert gpus.restarts == 1


def test_a_crash_leaves_no_core_on_the_disk(bench: Bench) -> None:
    bench.gpus.watch()
    limits = Path(f"/proc/{pid_of(bench.gpus)}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert line.split()[4:6] == ["0", "0"]


def test_a_vendor_that_is_not_there_is_said(bench: Bench) -> None:
    gpus = VendorReader(bench.spawner, Host(), vendor="abacus", clock=bench.clock)
    with pytest.raises(GpuDriverError, match=r"no gpus plugin named 'abacus'"):
        gpus.watch()


def test_a_library_that_crashes_again_and_again_is_left_alone_for_a_while(bench: Bench) -> None:
    bench.fake.crash("nvmlDeviceGetUtilizationRates")
    for _ in range(pause.CRASHES):
        with pytest.raises(GpuCrashedError) as last:
            bench.gpus.watch()
        bench.clock.now += 1
    assert "not started again" in str(last.value)
    bench.fake.release()
    with pytest.raises(GpuCrashedError, match="not started again"):
        bench.gpus.watch()
    bench.clock.now += pause.WINDOW
    assert len(bench.gpus.watch().gpus) == 2


def test_a_driver_that_is_gone_is_said_and_the_next_child_finds_it(bench: Bench) -> None:
    bench.gpus.watch()
    bench.fake.fail(18)
    with pytest.raises(GpuDriverError, match="another version"):
        bench.gpus.watch()
    bench.fake.release()
    with pytest.raises(GpuDriverError):  # it is not asked at every look
        bench.gpus.watch()
    bench.clock.now += source.DRIVER_AGAIN
    assert len(bench.gpus.watch().gpus) == 2


def test_released_gpus_are_closed_and_left_alone(bench: Bench) -> None:
    bench.gpus.watch()
    pid = pid_of(bench.gpus)
    assert (bench.gpus.released_seconds, bench.gpus.let_go()) == (0.0, False)
    bench.gpus.release(600)
    wait_until(bench.gpus.let_go)
    assert not state(pid)
    bench.clock.now += 200
    assert bench.gpus.released_seconds == 400.0
    with pytest.raises(GpusReleasedError):
        bench.gpus.watch()
    bench.clock.now += 401
    assert bench.gpus.released_seconds == 0.0
    assert len(bench.gpus.watch().gpus) == 2
    assert not bench.gpus.let_go()


def test_gpus_can_be_released_while_a_call_blocks(bench: Bench) -> None:
    bench.gpus.watch()
    bench.fake.block(SLOW)
    bench.fake.count_calls()
    with ThreadPoolExecutor(1) as pool:
        full = pool.submit(bench.gpus.full)
        wait_until(lambda: SLOW in bench.fake.calls())  # before, the question may not have come
        bench.gpus.release(600)
        with pytest.raises(GpusReleasedError):
            full.result(PATIENT)
    assert bench.gpus.restarts == 0
    assert not bench.gpus.let_go(), "the child that blocks still holds them"
    bench.fake.release()
    wait_until(bench.gpus.let_go)


def test_no_second_child_goes_after_one_in_state_d(bench: Bench) -> None:
    gpus = bench.impatient()
    pid = pid_of(gpus)
    bench.fake.sink("nvmlDeviceGetUtilizationRates")
    with pytest.raises(GpuBlockedError):
        gpus.watch()
    wait_until(lambda: state(pid) == "D")
    gpus.release(0)
    with pytest.raises(GpuBlockedError, match=f"pid {pid}"):
        gpus.watch()
    assert gpus.pid is None
    assert [one.pid for one in gpus.leftovers()] == [pid]
    bench.fake.release()
    wait_until(lambda: not state(pid))
    assert len(gpus.watch().gpus) == 2


def test_a_child_that_went_into_the_driver_before_it_was_killed_is_not_forgotten(
    bench: Bench, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fake.hold(device)
    gpus = bench.impatient()
    pid = pid_of(gpus)
    bench.fake.sink("nvmlDeviceGetUtilizationRates")
    with pytest.raises(GpuBlockedError):
        gpus.watch()
    wait_until(lambda: state(pid) == "D")
    with monkeypatch.context() as patch:  # it ran when the agent looked
        patch.setattr(stuck, "may_be_ended", lambda *_: True)
        with pytest.raises(GpuBlockedError, match=f"an earlier GPU reader .pid {pid}. still sits"):
            gpus.watch()
    assert gpus.pid is None, "a second one went into the driver beside it"
    with pytest.raises(GpuBlockedError):
        gpus.full()
    gpus.release(600)
    assert not gpus.let_go(), "it holds the GPUs"
    assert [one.pid for one in gpus.leftovers()] == [pid]
    bench.fake.release()
    wait_until(gpus.let_go)
    assert not state(pid)
    assert gpus.leftovers() == ()
    gpus.release(0)
    assert len(gpus.watch().gpus) == 2


@pytest.mark.parametrize(("number", "ended"), [(IOCTL, False), (NANOSLEEP, True)])
def test_one_that_sleeps_in_a_call_on_a_gpu_is_left_where_it_is(
    tmp_path: Path, number: int, ended: bool
) -> None:
    """Not every wait in a driver is state D."""
    for folder in ("fd", "task/7"):
        (tmp_path / "proc/7" / folder).mkdir(parents=True)
    (tmp_path / "proc/7/fd/3").symlink_to("/dev/nvidiactl")
    for name in ("7", "7/task/7"):
        (tmp_path / "proc" / name / "stat").write_text("7 (gpus) S 1 7 7 0" + " 0" * 48)
    (tmp_path / "proc/7/task/7/syscall").write_text(f"{number} 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0\n")
    worker = SimpleNamespace(pid=7)
    host = Host(str(tmp_path))
    assert stuck.may_be_ended(host, worker, stuck.HOPELESS + 1) is ended  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("while True: pass", True),
        ("f, b = open('/dev/zero', 'rb', 0), bytearray(1 << 26)\nwhile True: f.readinto(b)", False),
    ],
    ids=["in the library", "in the kernel"],
)
def test_one_that_runs_is_ended_only_where_it_does_not_run_in_the_kernel(
    program: str, ended: bool
) -> None:
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        worker = SimpleNamespace(pid=child.pid)

        def hopeless() -> bool:
            return stuck.may_be_ended(Host(), worker, stuck.HOPELESS + 1)  # type: ignore[arg-type]

        try:
            wait_until(lambda: busy(child.pid) > 0.3)
            assert not stuck.may_be_ended(Host(), worker, stuck.HOPELESS)  # type: ignore[arg-type]
            if ended:
                wait_until(hopeless)
            else:
                assert not any(hopeless() for _ in range(5))
        finally:
            child.kill()


def busy(pid: int) -> float:
    """Seconds of CPU time."""
    stat = Host().brief(pid)
    return stat.cpu_seconds if stat else 0.0


def test_a_release_waits_for_nobody_even_while_a_child_is_started(bench: Bench) -> None:
    """The main loop asks for it: it must not wait for a driver that loads its firmware."""
    starter = SlowStarter(bench.spawner)
    gpus = VendorReader(starter, Host(), options=bench.options, clock=bench.clock)
    with ThreadPoolExecutor(1) as pool:
        look = pool.submit(gpus.watch)
        starter.requests.wait(PATIENT)
        began = time.monotonic()
        gpus.release(600)
        assert gpus.released_seconds == 600
        assert not gpus.let_go()
        assert time.monotonic() - began < SOON * PATIENCE
        starter.go.set()
        with pytest.raises(GpusReleasedError):
            look.result(PATIENT)
    wait_until(gpus.let_go)
    assert gpus.released_seconds == 600
    gpus.release(0)
    assert len(gpus.watch().gpus) == 2
    gpus.close()


class SlowStarter:
    """Starts a child when it is let."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self.requests, self.go = threading.Event(), threading.Event()

    def fork_worker(self, name: str, leave: float = 0.0) -> ForkedWorker:
        self.requests.set()
        assert self.go.wait(PATIENT)
        return self._spawner.fork_worker(name)


def test_children_that_were_let_go_leave_no_descriptors(bench: Bench) -> None:
    bench.gpus.watch()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        pid = pid_of(bench.gpus)
        bench.gpus.release(0)
        wait_until(lambda pid=pid: not state(pid))  # type: ignore[misc]
        bench.gpus.watch()
    bench.gpus.release(0)
    bench.gpus.watch()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_the_errors_are_of_the_house(bench: Bench) -> None:
    for error in (GpuBlockedError, GpuCrashedError, GpuDriverError, NoGpuLibraryError):
        assert issubclass(error, MldebugError)


def _answers(read: Callable[[], object]) -> bool:
    try:
        read()
    except GpuBlockedError:
        return False
    return True
