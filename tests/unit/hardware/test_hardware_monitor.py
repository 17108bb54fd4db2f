"""The main loop's side of the GPUs: when the agent lets go of them by itself, and when it takes them up again."""

import contextlib
import math
import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mldebug.config.schema import Config
from mldebug.core.model import Gap, Job, NodeCapture, RankIdentity
from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import (
    GpuProcess,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
)
from mldebug.hardware.health.model import HealthState
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.agent.monitor_wiring import hardware_monitor
from mldebug_agents.hardware import monitor as module
from mldebug_agents.hardware.gpu.controller import FOR_RESET
from mldebug_agents.hardware.gpu.errors import GpusReleasedError
from mldebug_agents.hardware.gpu.reads import GpuNews, GpuOrder
from mldebug_agents.hardware.kernel_log import KernelLogSource, KernelNews
from mldebug_agents.hardware.monitor import LISTEN
from mldebug_agents.system.fake_reader import FakeReader
from mldebug_agents.system.host import Host
from mldebug_agents.system.workers import Result
from shared.system.hung import wait_until
from shared.system.patience import PATIENCE

HERE = "here"
NEW = "new"


class Source:
    """GPUs that remember what was asked of them; they are never read here."""

    def __init__(self) -> None:
        self.requests: list[float] = []
        self.forbidden: list[tuple[ExcludedGpu, ...]] = []
        self.released_seconds = 0.0

    def watch(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeWatch:
        self.forbidden.append(excluded)
        raise GpusReleasedError("not here")

    def full(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeGpus:
        self.forbidden.append(excluded)
        raise GpusReleasedError("not here")

    def release(self, seconds: float) -> None:
        self.requests.append(seconds)
        self.released_seconds = seconds

    def let_go(self) -> bool:
        return True


class EmptyStore:
    """Remembers nothing."""

    opened = True

    def memo(self, name: str) -> bytes:
        return b""

    def memos(self, beginning: str) -> tuple[str, ...]:
        return ()

    def remember(self, name: str, data: bytes) -> None:
        """Nothing to do."""


class Run:
    """As much of a run as the board looks at."""

    class job:  # noqa: N801 - stands for an instance
        """Its job."""

        id = HERE
        ranks: tuple[RankIdentity, ...] = ()
        lost = ()


class MonitorBench:
    """A board with its source, and what it is told."""

    def __init__(self, root: Path) -> None:
        self.root, self.interval = root, 5.0
        self.source = Source()
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._config = Config()
        context: Any = SimpleNamespace(host=Host(str(root)), reader=FakeReader({}), node="n1")
        ledger: Any = EmptyStore()
        self.hardware = hardware_monitor(context, ledger, self.inbox, self.source)
        self.runs: dict[str, Any] = {HERE: Run()}

    def reported(self, full: NodeGpus) -> None:
        self.told_news(GpuNews(full=full))

    def told_news(self, news: GpuNews) -> None:
        result = Result("gpus", GpuOrder({}), news, None)
        self.hardware.on_result(result, [run.job for run in self.runs.values()], {}, self._config)

    def kernel(self, news: KernelNews) -> None:
        self.hardware.on_result(Result("kernel", None, news, None), [], {}, self._config)

    def failed(self, error: Exception, *, full: bool = False) -> None:
        result = Result("gpus", GpuOrder({} if full else None), None, error)
        self.hardware.on_result(result, [run.job for run in self.runs.values()], {}, self._config)

    def tick(self) -> None:
        self.hardware.tick(self.runs, self.interval, looked=False)

    def shown(self) -> Snapshot:
        return self.hardware.show(Snapshot(node="n1", at=1.0, started_at=0.0))

    def recovery(self) -> list[tuple[int | None, HealthState]]:
        return [
            (one.gpu, one.state) for one in self.shown().health if one.component == "gpu_recovery"
        ]


@pytest.fixture
def bench(tmp_path: Path) -> MonitorBench:
    return MonitorBench(tmp_path)


def gpus(action: str = "reset", held: tuple[Any, ...] | None = ()) -> NodeGpus:
    sick = GpuReading(uuid="GPU-1", index=1, recovery_action=action, processes=held)
    return NodeGpus(at=1.0, gpus=(GpuReading(uuid="GPU-0", index=0, recovery_action="none", processes=()), sick))  # fmt: skip


def test_lost_kernel_records_are_told_in_status_and_report(bench: MonitorBench) -> None:
    loss = Gap(what="lost kernel records", reason="7 records were overwritten")
    capture = NodeCapture(
        node="n1", job=Job(id=HERE, name="train", launcher="torchrun"), taken_at=1.0
    )
    bench.kernel(KernelNews(loss=loss))

    assert bench.shown().gaps == (loss,)
    assert bench.hardware.capture(capture).gaps == (loss,)
    bench.kernel(KernelNews())
    assert bench.shown().gaps == ()


def test_a_log_of_the_fabric_manager_that_cannot_be_read_is_told_in_status(
    bench: MonitorBench,
) -> None:
    """No report is poorer for it: what stops a rank stands in the kernel's log and in the driver."""
    gap = Gap(what="log of the Fabric Manager", reason="permission denied")
    bench.kernel(KernelNews(fabric_gap=gap))

    assert bench.shown().gaps == (gap,)


def test_looks_at_the_gpus_of_a_run_stand_in_its_captures_and_its_state(
    bench: MonitorBench,
) -> None:
    """Only of the GPUs that are read now: where a look fails nothing old is told."""
    known = RankGpu(rank=3, uuid="GPU-1", index=1, evidence=JoinEvidence.COMPUTE_PROCESS)
    news = GpuNews(full=gpus(held=(GpuProcess(pid=44),)), joined={HERE: RankGpuMap(ranks=(known,))})
    bench.told_news(news)
    for at in (1.0, 2.0):
        look = GpuWatch(uuid="GPU-1", index=1, utilization_ratio=0.0, power_watts=120.0)
        bench.told_news(GpuNews(watch=NodeWatch(at=at, gpus=(look,))))
    capture = NodeCapture(node="n1", job=Job(id=HERE, name="train", launcher="x"), taken_at=2.0)
    (gpu,) = bench.hardware.capture(capture).gpus
    assert (gpu.rank, gpu.uuid, gpu.pids, gpu.sure) == (3, "GPU-1", (44,), True)
    assert [(one.at, one.busy_ratio, one.memory_ratio) for one in gpu.samples] == [(1.0, 0.0, None), (2.0, 0.0, None)]  # fmt: skip
    run = RunState(id=HERE, name="train", launcher="x")
    (shown,) = bench.hardware.show(Snapshot(node="n1", at=2.0, started_at=0.0, runs=(run,))).runs
    assert shown.gpu_states == (gpu,)
    bench.failed(GpusReleasedError("released"))
    assert bench.hardware.capture(capture).gpus == ()


def test_it_lets_go_of_a_gpu_that_waits_for_its_reset_and_its_health_stays(
    bench: MonitorBench,
) -> None:
    bench.reported(gpus())
    assert bench.source.requests == [FOR_RESET]
    bench.failed(GpusReleasedError("released"))
    shown = bench.shown()
    assert (shown.gpus, shown.gpu_watch, shown.gpu_count) == (None, None, None)
    assert "the driver asks for a reset" in shown.gpus_released_why
    assert shown.gpus_released_until is not None
    assert bench.recovery() == [(1, HealthState.UNHEALTHY)]


@pytest.mark.parametrize("full", [gpus("none"), gpus("reboot"), gpus(held=None)])
def test_it_keeps_them_otherwise(bench: MonitorBench, full: NodeGpus) -> None:
    bench.reported(full)
    assert bench.source.requests == []


def test_a_new_run_has_them_read_again_and_they_are_kept_for_a_while(bench: MonitorBench) -> None:
    bench.reported(gpus())
    bench.tick()
    assert bench.source.requests == [FOR_RESET], "the run was there before"
    bench.runs[NEW] = Run()
    bench.tick()
    bench.tick()
    assert bench.source.requests == [FOR_RESET, 0.0]
    bench.reported(gpus())
    assert bench.source.requests == [FOR_RESET, 0.0]
    assert bench.recovery()[-1] == (1, HealthState.UNHEALTHY)
    assert bench.shown().gpus_released_until is None


def test_what_somebody_asked_for_is_not_ended_by_a_run(bench: MonitorBench) -> None:
    bench.hardware.gpu_controller.release(60.0)
    bench.runs[NEW] = Run()
    bench.tick()
    assert bench.source.requests == [60.0]
    assert bench.shown().gpus_released_why == "somebody asked for it"


def test_a_reset_that_was_done_ends_the_complaint(bench: MonitorBench) -> None:
    bench.reported(gpus())
    bench.failed(GpusReleasedError("released"))
    bench.reported(gpus("none"))
    assert bench.recovery() == [(0, HealthState.HEALTHY), (1, HealthState.HEALTHY)]


def test_the_end_of_the_agent_is_no_release(bench: MonitorBench) -> None:
    bench.source.released_seconds = math.inf
    assert bench.shown().gpus_released_until is None


# --- the kernel's log before the GPUs -------------------------------------------------------------------


XID = "NVRM: Xid (PCI:0000:41:00): {}, pid=7, name=python\n"


def xid(number: int, ago: float = 0.5) -> str:
    return f"3,{number},{int((time.monotonic() - ago) * 1e6)},-;{XID.format(number)}"


def log(bench: MonitorBench) -> Path:
    path = Path(bench.root) / "dev" / "kmsg"
    path.parent.mkdir()
    path.write_text("")
    return path


def go_on(bench: MonitorBench) -> None:
    """As the main loop does: what workers say, then a turn."""
    with contextlib.suppress(queue.Empty):
        bench.hardware.on_result(bench.inbox.get(timeout=0.2), [], {}, Config())
    bench.tick()


def forbidden(bench: MonitorBench, reads: int = 2) -> list[list[tuple[str, int]]]:
    """What the first reads were forbidden to touch."""
    wait_until(lambda: go_on(bench) or len(bench.source.forbidden) >= reads)  # type: ignore[func-returns-value]
    return [[(one.bus_id, one.xid) for one in some] for some in bench.source.forbidden]


def test_the_kernel_s_log_is_read_before_the_gpus_are_asked_in_the_same_turn(
    bench: MonitorBench,
) -> None:
    """Both reads of the very first turn know what stands in it."""
    log(bench).write_text(xid(119))
    assert forbidden(bench) == [[("0000:41:00.0", 119)]] * 2


def test_an_xid_that_came_since_the_last_turn_counts_in_the_next(bench: MonitorBench) -> None:
    path = log(bench)
    assert forbidden(bench) == [[], []]
    with path.open("a") as file:
        file.write(xid(79, ago=0.0))
    bench.hardware._due = 0.0  # the next turn has come
    assert forbidden(bench, 3)[2] == [("0000:41:00.0", 79)]


def test_a_long_log_is_read_to_its_end_before_the_gpus_are_asked(
    bench: MonitorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one round reads; the newest line is the last."""
    monkeypatch.setattr(module, "LISTEN", 30.0)
    micros = int(time.monotonic() * 1e6)
    lines = [f"6,{number},{micros},-;usb 1-1: new device\n" for number in range(1, 25_001)]
    log(bench).write_text("".join(lines) + f"3,30000,{micros},-;{XID.format(119)}")
    assert forbidden(bench) == [[("0000:41:00.0", 119)]] * 2


def test_a_kernel_log_that_cannot_be_read_changes_nothing(
    bench: MonitorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTEN", 300.0)  # longer than the wait for the answers
    assert forbidden(bench) == [[], []]
    assert [gap.what for gap in bench.shown().gaps] == ["kernel log"]


def test_a_kernel_log_that_is_not_read_in_time_does_not_keep_the_gpus_waiting(
    bench: MonitorBench,
) -> None:
    bench.hardware.workers["kernel"]._work = lambda _: threading.Event().wait(60)  # type: ignore[attr-defined]
    began = time.monotonic()
    assert forbidden(bench) == [[], []]
    assert LISTEN <= time.monotonic() - began < 10 * LISTEN * PATIENCE


def test_an_error_of_a_gpu_that_is_lost_since_has_its_name(bench: MonitorBench) -> None:
    """The one that fell off the bus is the one whose name is wanted."""
    path = log(bench)
    lost = LostGpu(index=1, uuid="GPU-1", bus_id="00000000:41:00.0", reason="lost", code="gpu_is_lost")  # fmt: skip
    path.write_text(xid(79))
    source = KernelLogSource(str(path))
    bench.reported(msgspec.structs.replace(gpus("none"), gpus=gpus("none").gpus[:1], lost=(lost,)))
    bench.kernel(source.read())
    shown = bench.shown()

    assert [(one.uuid, one.gpu) for one in shown.health if one.component == "gpu_xid"] == [("GPU-1", 1)]  # fmt: skip
    assert shown.kernel is not None
    assert [(one.uuid, one.gpu) for one in shown.kernel.xids] == [("GPU-1", 1)]


def test_a_gpu_that_is_left_alone_is_a_gap_in_status_and_report(bench: MonitorBench) -> None:
    lost = LostGpu(index=1, bus_id="00000000:41:00.0", reason="Xid 119", code="xid_119")
    news = GpuNews(watch=NodeWatch(at=2.0, lost=(lost,)))
    capture = NodeCapture(
        node="n1", job=Job(id=HERE, name="train", launcher="torchrun"), taken_at=1.0
    )
    bench.hardware.on_result(Result("gpus", GpuOrder(), news, None), [], {}, Config())
    for item in (bench.shown().gaps, bench.hardware.capture(capture).gaps):
        assert [one.what for one in item] == ["GPU 1 (00000000:41:00.0)"]


def test_the_same_evidence_is_judged_once_in_half_a_minute(
    bench: MonitorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three results come in five seconds, and judging many kernel events took more than all else that the main loop does."""
    now, counted = [1000.0], []
    judge = module.node_health
    monkeypatch.setattr(bench.hardware, "_now", lambda: now[0])
    monkeypatch.setattr(module, "node_health", lambda *given, **more: counted.append(now[0]) or judge(*given, **more))  # type: ignore[func-returns-value]  # fmt: skip
    for _ in range(5):
        bench.kernel(KernelNews())
        now[0] += 1.0
    assert counted == [1000.0]
    unread = Gap(what="kernel log", reason="denied")
    bench.kernel(KernelNews(gap=unread))  # other evidence
    assert counted == [1000.0, 1005.0]
    for ago in (29.0, 31.0):
        now[0] = 1005.0 + ago
        bench.kernel(KernelNews(gap=unread))
    assert counted == [1000.0, 1005.0, 1036.0]  # it grows old
    now[0] = 500.0  # the clock was set back
    bench.kernel(KernelNews(gap=unread))
    assert counted[-1] == 500.0
