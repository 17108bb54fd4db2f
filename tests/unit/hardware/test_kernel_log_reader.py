"""Reading the kernel's log: from files and FIFOs that hold records, within bounds, and with a named gap where it may not be."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from mldebug.diagnosis.exits.kernel_lines import kernel_deaths
from mldebug.hardware.health.model import BAD
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from mldebug.hardware.kernel_log.xids import Tier
from mldebug_agents.hardware import kernel_log as kernellog
from mldebug_agents.hardware.kernel_log import (
    KernelLogSource,
    ReadLimits,
    gpu_names,
    sees_kernel_pids,
)
from mldebug_agents.system.host import Host
from shared.hardware.kernellines import OF_FABRIC_MANAGER
from shared.system.hung import wait_until

FIXTURES = Path(__file__).parents[2] / "fixtures/kernellog"
UNIX, MONOTONIC = 1_795_240_000.0, 90_000.0
AGO = 1_000.0  # the lines below are so many seconds old


class Now:
    """Clocks that stand until they are moved."""

    def __init__(self) -> None:
        self.passed = 0.0

    def unix(self) -> float:
        return UNIX + self.passed

    def monotonic(self) -> float:
        return MONOTONIC + self.passed


class SetClock(Now):
    """The unix clock is set, while the kernel's goes on."""

    set_by = 0.0

    def unix(self) -> float:
        return UNIX + self.passed + self.set_by


def xid(sequence: int, number: int = 31, ago: float = AGO, priority: int = 4) -> str:
    micros = int((MONOTONIC - ago) * 1e6)
    return f"{priority},{sequence},{micros},-;NVRM: Xid (PCI:0000:3b:00): {number}, pid=7, name=python, Ch 1\n"


def source(path: Path, now: Now | None = None, **more: object) -> KernelLogSource:
    now = now or Now()
    return KernelLogSource(str(path), unix=now.unix, monotonic=now.monotonic, **more)  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


# --- what is read --------------------------------------------------------------------------------


def test_what_stands_in_the_log_and_what_comes(log: Path) -> None:
    now = Now()
    append(log, xid(1, ago=3.0))
    one = source(log, now)
    first = one.read()
    now.passed = 2.0
    append(log, xid(2, ago=-1.0))
    second = one.read()

    assert [burst.root.at for burst in first.bursts] == [UNIX - 3.0]
    assert [burst.count for burst in (*first.bursts, *second.bursts)] == [1, 2]
    assert second.bursts[0].last_at == UNIX + 1.0
    assert (first.records, second.records, second.counts.records) == (1, 1, 2)
    assert one.read().records == 0


def test_what_is_older_than_the_look_back_is_passed_over(log: Path) -> None:
    append(log, xid(1, ago=7200.0) + xid(2, 13, ago=3599.0))
    news = source(log, look_back=3600.0).read()

    assert [burst.root.xid for burst in news.bursts] == [13]
    assert news.counts.records == 2


MOUNTED = "EXT4-fs (sdb1): mounted filesystem 7f0c1a22-2f4b-4a57-9a6e-0f6f3f1f2b11 r/w with ordered data mode. Quota mode: none."
READ_ONLY = "EXT4-fs (sdb1): Remounting filesystem read-only"
REBOOT = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
NONE_ASKED = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"


@pytest.mark.parametrize(
    ("lines", "component"),
    [
        ([REBOOT], "gpu_xid"),
        ([REBOOT, NONE_ASKED], ""),
        ([READ_ONLY], "storage"),
        ([READ_ONLY, MOUNTED], ""),
        ([MOUNTED], ""),
        (["md/raid1:md0: Disk failure on sdb1, disabling device."], "storage"),
        (["md/raid1:md0: Disk failure on sdb1, disabling device.", "md: md0: recovery done."], ""),
        (["Oops: 0002 [#1] PREEMPT SMP NOPTI"], "kernel"),
        (["mlx5_core 0000:41:00.0: health_recover_work:387:(pid 7): health recovery failed"], "network"),
        (["NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover."], "gpu_errors"),
        (["watchdog: BUG: soft lockup - CPU#17 stuck for 52s! [python3:8811]"], ""),  # no fault that lasts
    ],
)  # fmt: skip
def test_what_lasts_is_known_to_an_agent_that_is_started_anew_days_later(
    log: Path, lines: list[str], component: str
) -> None:
    for number, line in enumerate(lines):
        micros = int((MONOTONIC - 20 * 3600.0 + number) * 1e6)
        append(log, f"3,{number},{micros},-;{line}\n")
    before, after = source(log), source(log)  # what one read is nothing to the other
    for one in (before, after):
        events = [RankEvent(burst=burst) for burst in one.read().bursts]
        found = node_health(events, UNIX, Thresholds(), kernel_readable=True)
        assert [one.component for one in found if one.state in BAD] == [component] * bool(component)


@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0, -100_000.0])
@pytest.mark.parametrize(
    ("fault", "end"),
    [
        (READ_ONLY, MOUNTED),
        (REBOOT, NONE_ASKED),
        ("nfs: server a not responding, still trying", "nfs: server a OK"),
        ("md/raid1:md0: Disk failure on sdb1, disabling device.", "md: md0: recovery done."),
        ("mlx5_core 0000:41:00.0: poll_health:825:(pid 0): Fatal error 1 detected", "mlx5_core 0000:41:00.0 ens1: Link up"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ended", [True, False])
def test_what_came_later_ends_it_however_the_clock_was_set_between(
    log: Path, fault: str, end: str, step: float, *, ended: bool
) -> None:
    now = SetClock()
    one = source(log, now)
    for number, line in enumerate([fault, end] if ended else [end, fault]):
        append(log, f"3,{number},{int((MONOTONIC + now.passed + 5.0) * 1e6)},-;{line}\n")
        now.passed += 10.0
        one.read()
        now.set_by = step
    one.close()
    for reader in (one, source(log, now)):  # read once more, and by an agent started anew
        bursts = reader.read().bursts
        found = node_health([RankEvent(burst=burst) for burst in bursts], now.unix(), Thresholds(), kernel_readable=True)  # fmt: skip
        assert bool([one for one in found if one.state in BAD]) is not ended


def test_a_whole_log(log: Path) -> None:
    news = KernelLogSource(
        str(FIXTURES / "events.kmsg"), unix=lambda: UNIX, monotonic=lambda: 13.0
    ).read()

    assert {one.kind for one in news.counts.kinds} == set(KernelEventKind) - {
        KernelEventKind.XID
    } - OF_FABRIC_MANAGER
    assert {(one.device, one.xid) for one in news.counts.xids} == {
        (device, 79) for device in ("0000:3b:00.0", "0000:86:00.0", "0000:04:00.0")
    }
    assert [(one.pid, one.kind) for one in news.deaths] == [
        *((pid, "out_of_memory") for pid in (16601, 16602, 16603, 4711, 16604)),
        *((pid, "crash") for pid in (10346, 12, 4242)),
    ]
    assert gpu_names(news)["0000:3b:00.0"].uuid == "GPU-0f3d2a11-5c7e-4a6b-9d21-1b2c3d4e5f60"


def test_what_programs_write_into_the_log_counts_in_a_drill_only(log: Path) -> None:
    append(log, xid(1, priority=12))

    assert source(log).read().bursts == ()
    (burst,) = source(log, user_space=True).read().bursts
    assert burst.root.origin is Origin.USER_SPACE


def test_no_program_can_make_us_believe_that_a_process_was_killed(log: Path) -> None:
    """Neither in a drill: a verdict would rest on it."""
    text = "Out of memory: Killed process 7 (python) total-vm:1kB"
    append(
        log,
        f"11,1,{int(MONOTONIC * 1e6)},-;{text}\n3,2,{int(MONOTONIC * 1e6)},-;{text.replace('7', '8')}\n",
    )

    assert [one.pid for one in source(log, user_space=True).read().deaths] == [8]
    assert [one.pid for one in kernel_deaths(log.read_text().splitlines())] == [8]


def test_the_driver_names_the_gpu_before_it_complains(log: Path) -> None:
    named = f"4,1,{int((MONOTONIC - AGO) * 1e6)},-;NVRM: GPU at PCI:0000:3b:00: GPU-0f3d2a11-5c7e-4a6b-9d21-1b2c3d4e5f60\n"
    append(log, named + xid(2))

    assert source(log).read().bursts[0].root.uuid == "GPU-0f3d2a11-5c7e-4a6b-9d21-1b2c3d4e5f60"


@pytest.mark.parametrize(
    ("stat_of_2", "sees"),
    [
        ("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0", True),
        ("2 (kthreadd) S 1 0 0 0 -1 4194304 0 0 0", False),  # a process that calls itself so
        ("2 (a) b) S 1 0 0 0 -1 4194304 0 0 0", False),
        ("", False),
    ],
)
def test_pids_are_the_kernels_where_its_threads_are_seen(
    tmp_path: Path, stat_of_2: str, sees: bool
) -> None:
    (tmp_path / "proc/2").mkdir(parents=True)
    (tmp_path / "proc/2/stat").write_text(stat_of_2)

    assert sees_kernel_pids(Host(str(tmp_path))) is sees


def test_xids_that_nvml_told_are_taken_in_once(log: Path) -> None:
    append(log, xid(1, 79))
    event = KernelEvent(kind=KernelEventKind.XID, at=UNIX - AGO + 0.3, xid=79, device="0000:3b:00.0", origin=Origin.NVML)  # fmt: skip
    one = source(log)
    news = one.read([event])

    assert [(burst.count, burst.tier, burst.pids) for burst in news.bursts] == [(1, Tier.FATAL, (7,))]  # fmt: skip


def test_where_the_log_may_not_be_read_nvml_still_tells(tmp_path: Path) -> None:
    event = KernelEvent(
        kind=KernelEventKind.XID, at=UNIX, xid=79, device="0000:3b:00.0", origin=Origin.NVML
    )
    news = source(tmp_path / "none").read([event])

    assert news.gap is not None
    assert [one.xid for one in news.counts.xids] == [79]
    assert not news.counts.readable


def test_records_that_were_read_before_are_not_taken_again(log: Path) -> None:
    append(log, xid(1, ago=1.0) + xid(2, ago=0.5))
    one = source(log)
    one.read()
    one.close()
    append(log, xid(3, ago=0.0))
    news = one.read()

    assert (news.records, news.counts.records, news.bursts[0].count) == (3, 3, 3)


def test_lost_records_are_counted(log: Path) -> None:
    append(log, xid(10) + xid(11) + xid(15))

    assert source(log).read().counts.lost == 3


def test_lost_records_are_a_gap_with_their_number_while_it_is_recent(log: Path) -> None:
    now = Now()
    append(log, xid(10) + xid(500_000))
    one = source(log, now)
    first = one.read()
    now.passed = 500.0
    append(log, xid(500_002))
    second = one.read()
    now.passed = 1_200.0
    third = one.read()

    assert first.gap is None  # it can be read
    assert first.loss is not None
    assert first.loss.reason.startswith("499989 records were overwritten")
    assert second.loss is not None
    assert second.loss.reason.startswith("499990 records were")
    assert (third.loss, third.counts.lost) == (None, 499_990)


def test_records_that_come_live_are_placed_where_they_were_seen(log: Path) -> None:
    """The log's clock is a minute behind after a month: the stall began 2 s ago, and so did this."""
    now = Now()
    one = source(log, now)
    one.read()
    now.passed = 2.0
    append(log, xid(1, ago=60.0))

    assert one.read().bursts[0].root.at == UNIX


# --- bounds --------------------------------------------------------------------------------------


def test_a_round_reads_so_many_records_and_the_next_goes_on(log: Path) -> None:
    append(log, "".join(xid(number) for number in range(1, 1001)))
    one = source(log, limits=ReadLimits(records=300))
    rounds = [one.read() for _ in range(5)]

    assert [(news.records, news.behind) for news in rounds] == [
        (300, True), (300, True), (300, True), (100, False), (0, False),
    ]  # fmt: skip
    assert rounds[-1].bursts[0].count == 1000
    assert rounds[-1].counts.lost == 0


def test_a_round_reads_so_many_bytes(log: Path) -> None:
    append(log, "".join(xid(number) for number in range(1, 101)))
    news = source(log, limits=ReadLimits(bytes=1000)).read()

    assert news.behind
    assert 5 < news.records < 20


def test_a_round_takes_so_long(log: Path) -> None:
    append(log, "".join(xid(number) for number in range(1, 1001)))
    ticks = iter(MONOTONIC + step * 0.3 for step in range(1000))
    one = KernelLogSource(str(log), unix=lambda: UNIX, monotonic=lambda: next(ticks))
    news = one.read()

    assert news.behind
    assert news.records == kernellog.LOOK_AT_CLOCK


def test_a_line_without_an_end_is_held_in_bounds(log: Path) -> None:
    """Only the end of it is kept, so it is no record any more; the next one is."""
    append(log, xid(1, 13).rstrip() + "x" * (3 << 20))
    one = source(log)
    one.read()
    append(log, "\n" + xid(2, 31))

    assert [burst.xids for burst in one.read().bursts] == [{31: 1}]


@pytest.mark.parametrize("cut", [1, 40, 70])
def test_a_line_that_comes_in_two_pieces(log: Path, cut: int) -> None:
    line = xid(1)
    one = source(log)
    append(log, line[:cut])
    assert one.read().bursts == ()
    append(log, line[cut:])

    assert one.read().bursts[0].count == 1


def test_a_fifo_never_blocks_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    one = source(path)
    assert one.read().gap is None  # nobody writes
    writer = threading.Thread(target=path.write_text, args=(xid(1),))
    writer.start()
    writer.join(10)

    wait_until(lambda: bool(one.read().bursts), 10)
    assert one.read().gap is None
    one.close()


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.EPERM, "CAP_SYSLOG"),
        (errno.EACCES, "ProtectKernelLogs"),
        (errno.ENOENT, "--device"),
        (errno.EIO, "head -c 200"),
    ],
)
def test_a_log_that_cannot_be_opened_is_a_gap_with_a_way_out(
    log: Path, monkeypatch: pytest.MonkeyPatch, number: int, way_out: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    append(log, xid(1))
    one = source(log)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        news = one.read()

    assert news.gap is not None
    assert news.gap.what == "kernel log"
    assert str(log) in news.gap.reason
    assert way_out in news.gap.way_out
    assert not news.counts.readable
    later = one.read()  # the right was given
    assert later.gap is None
    assert later.bursts


def test_a_log_that_is_another_device_is_a_gap() -> None:
    """Some containers have a link to the console or to /dev/null there."""
    news = KernelLogSource("/dev/null").read()

    assert news.gap is not None
    assert "not the kernel's log" in news.gap.reason


def test_a_directory_is_a_gap(tmp_path: Path) -> None:
    assert source(tmp_path).read().gap is not None


class Device:
    """A /dev/kmsg of our own: what one read after the other gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: bytes | OSError) -> None:
        self._answers = list(answers)
        info = os.stat_result((stat.S_IFCHR | 0o644, *[0] * 9), {"st_rdev": kernellog.DEVICE})
        monkeypatch.setattr(os, "fstat", lambda _: info)
        monkeypatch.setattr(os, "read", self._read)

    def _read(self, _: int, size: int) -> bytes:
        assert size >= 8192
        answer = self._answers.pop(0) if self._answers else BlockingIOError()
        if isinstance(answer, OSError):
            raise answer
        return answer


def test_an_overrun_is_counted_and_reading_goes_on(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    Device(monkeypatch, xid(1).encode(), BrokenPipeError(), xid(9).encode(), OSError(errno.EINVAL, "big"), xid(11).encode())  # fmt: skip
    news = source(log).read()

    assert (news.counts.overruns, news.counts.lost, news.counts.records) == (1, 8, 3)
    assert news.bursts[0].count == 3


def test_a_log_that_breaks_is_a_gap_until_it_works_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    Device(monkeypatch, xid(1).encode(), OSError(errno.EIO, "Input/output error"), xid(1).encode(), xid(2).encode())  # fmt: skip
    one = source(log)
    first, second = one.read(), one.read()

    assert first.gap is not None
    assert "input/output error" in first.gap.reason
    assert second.gap is None
    assert (second.bursts[0].count, second.counts.records) == (2, 2)
