"""GPUs that the kernel's log forbids to touch: which, for how long, and that nobody asks them, whatever child reads."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakenvml.library import FakeNvml
from mldebug.config.schema import Config
from mldebug.hardware.gpu.excluded import CODE, PAUSE, ExcludedGpu, gaps, placed
from mldebug.hardware.gpu.expected import ExpectedGpus
from mldebug.hardware.gpu.readings import LostGpu
from mldebug.hardware.kernel_log.excluded_gpus import excluded_gpus
from mldebug.hardware.kernel_log.model import KernelEvent
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.hardware import one_shot
from mldebug_agents.hardware.gpu.child import server
from mldebug_agents.hardware.gpu.child.messages import NAME
from mldebug_agents.hardware.gpu.nvml.library import Library
from mldebug_agents.hardware.gpu.reader import VendorReader
from mldebug_agents.hardware.gpu.vendors import nvidia
from mldebug_agents.hardware.kernel_log import KernelNews
from mldebug_agents.hardware.one_shot import OneShotReader
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Spawner
from shared.hardware.kernellines import fold, parse_line
from shared.system.clocks import Clock
from shared.system.hung import wait_until

SOON = 20.0  # seconds in which a read that asks nobody who hangs has come back
NUMBERS = itertools.count(1)
NOW = 1_795_240_000.0
FIRST, SECOND = "0000:40:00.0", "0000:41:00.0"
SLOTS = (SECOND, FIRST)  # a folder has no order
EVERYTHING = ("DeviceGetHandleByIndex_v2", "DeviceGetUUID", "DeviceGetPciInfo_v3", "DeviceGetUtilizationRates", "DeviceGetPowerUsage", "DeviceGetFieldValues")  # fmt: skip


def kernel_event(text: str, ago: float = 1.0, priority: int = 3) -> KernelEvent:
    event = parse_line(f"{priority},{next(NUMBERS)},{int((NOW - ago) * 1e6)},-;{text}")
    assert event is not None, text
    return event


def hands_off_for(*texts: str, ago: float = 1.0) -> tuple[ExcludedGpu, ...]:
    return excluded_gpus(fold(kernel_event(text, ago) for text in texts), NOW)


def forbid(address: str = SECOND, seconds: float = PAUSE, xid: int = 119) -> ExcludedGpu:
    return ExcludedGpu(bus_id=address, xid=xid, seconds=seconds)


# --- what the kernel says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "xid"),
    [
        ("NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79),
        ("NVRM: Xid (0000:41:00): 119, pid=7, name=python, Timeout waiting for RPC from GSP!", 119),
        ("NVRM: Xid (PCI:00000000:41:00.0): 120, pid=7, name=python, GSP task timeout", 120),
        ("NVRM: Xid (PCI:0000:41:00 GPU-I:05): 119, pid=7, name=python, Timeout waiting for RPC", 119),
        ("NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.", 79),
        ("NVRM: The NVIDIA GPU 0000:41:00.0\\x0aNVRM: (PCI ID: 10de:2335) installed in this system has\\x0aNVRM: fallen off the bus and is not responding to commands.", 79),
    ],
)  # fmt: skip
def test_an_address_in_any_spelling_of_the_kernel(text: str, xid: int) -> None:
    assert hands_off_for(text) == (ExcludedGpu(bus_id=SECOND, xid=xid, seconds=PAUSE - 1.0),)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:41:00): 31, pid=7, name=python, Ch 1",
        "NVRM: Xid (PCI:0000:41:00): 1190, pid=7, name=python",
        "NVRM: Xid: 79, Ch 00000001",
        "nvidia-nvswitch0: SXid (PCI:0000:41:00.0): 119, Non-fatal, Link 29 egress",
    ],
)
def test_nothing_else_forbids_a_gpu(text: str) -> None:
    assert hands_off_for(text) == ()


def test_what_a_program_wrote_into_the_kernels_log_forbids_nothing() -> None:
    line = "NVRM: Xid (PCI:0000:41:00): 79, pid=7, name=python, GPU has fallen off the bus."
    assert excluded_gpus(fold([kernel_event(line)]), NOW)
    assert not excluded_gpus(fold([kernel_event(line, priority=11)]), NOW)


@pytest.mark.parametrize(
    ("ago", "left"),
    [(0.0, PAUSE), (59.0, 1.0), (60.0, None), (7200.0, None), (-3.0, PAUSE), (-3600.0, None)],
)
def test_it_lasts_a_minute_and_a_clock_that_was_set_back_makes_it_no_longer(
    ago: float, left: float | None
) -> None:
    found = hands_off_for("NVRM: Xid (PCI:0000:41:00): 119, pid=7, name=python", ago=ago)
    assert [one.seconds for one in found] == ([] if left is None else [left])


def test_each_gpu_once_and_from_its_last_line_on() -> None:
    line = "NVRM: Xid (PCI:0000:{}:00): 119, pid=7, name=python"
    events = [kernel_event(line.format(bus), ago) for bus, ago in (("41", 50.0), ("40", 40.0), ("41", 10.0))]  # fmt: skip
    found = excluded_gpus(fold(events), NOW)
    assert [(one.bus_id, one.seconds) for one in found] == [(FIRST, 20.0), (SECOND, 50.0)]


def test_a_place_is_that_among_all_gpus_of_the_driver() -> None:
    at = placed((forbid(SECOND), forbid("0000:99:00.0")), SLOTS)
    assert [(one.place, one.of) for one in at] == [(1, 2), (None, 2)]


def test_the_gap_names_the_gpu_and_until_when() -> None:
    left = LostGpu(index=1, bus_id="00000000:41:00.0", reason="Xid 119", code=f"{CODE}119")
    (gap,) = gaps((left, LostGpu(index=0, reason="GPU is lost", code="gpu_is_lost")))
    assert (gap.what, gap.reason) == ("GPU 1 (00000000:41:00.0)", "Xid 119")


# --- the reader ----------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(tmp_path)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.table"))
    made.grow(2)
    made.set("nvmlDeviceGetPciInfo_v3 0", "00000000:40:00.0", 0, 0x40, 0)
    made.set("nvmlDeviceGetPciInfo_v3 1", "00000000:41:00.0", 0, 0x41, 0)
    return made


@pytest.fixture
def reader(fake: FakeNvml, clock: Clock) -> Iterator[nvidia.Nvidia]:
    it = nvidia.Nvidia(Library(fake.library), clock)
    yield it
    fake.release()
    it.close()


def hang(fake: FakeNvml, device: int) -> None:
    """Whoever asks this GPU anything does not come back."""
    for name in EVERYTHING:
        fake.block(f"nvml{name}", device)


def within(seconds: float, read: Callable[[], object]) -> bool:
    """Does it come back in time? What hangs is left behind."""
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def obeys(reader: nvidia.Nvidia, *these: ExcludedGpu) -> tuple[list[int], list[LostGpu]]:
    """Which GPUs it reads, and what it says of the others."""
    reader.leave_alone(these)
    look = reader.watch()
    return [one.index for one in look.gpus], list(look.lost)


@pytest.mark.parametrize("read", ["watch", "full"])
def test_a_gpu_that_was_read_before_is_left_alone_until_its_time_is_over(
    fake: FakeNvml, reader: nvidia.Nvidia, clock: Clock, read: str
) -> None:
    reader.watch()
    hang(fake, 1)
    reader.leave_alone((forbid(seconds=20.0),))
    assert within(SOON, getattr(reader, read)), "it asked a GPU that hangs"
    (lost,) = reader.watch().lost
    assert (lost.index, lost.uuid, lost.bus_id) == (1, "GPU-1", "00000000:41:00.0")
    assert lost.code == "xid_119"
    assert "left alone until" in lost.reason
    fake.release()
    clock.now += 19.0
    assert obeys(reader)[0] == [0], "that nobody forbids it any more does not shorten it"
    clock.now += 1.0
    assert obeys(reader) == ([0, 1], [])


def test_one_that_was_never_asked_is_found_by_its_place(
    fake: FakeNvml, reader: nvidia.Nvidia
) -> None:
    """A child that was just started knows no address, and asking for one is asking the GPU."""
    hang(fake, 1)
    reader.leave_alone(placed((forbid(xid=79),), SLOTS))
    assert within(SOON, reader.watch), "it asked a GPU that hangs"
    (lost,) = reader.watch().lost
    assert (lost.index, lost.uuid, lost.bus_id, lost.code) == (1, "", "00000000:41:00.0", "xid_79")


def test_one_that_failed_before_it_told_its_address_is_found_by_its_place(
    fake: FakeNvml, reader: nvidia.Nvidia, clock: Clock
) -> None:
    fake.fail(999, device=1)
    assert [one.code for one in obeys(reader)[1]] == ["unknown"]
    assert [one.code for one in obeys(reader, *placed((forbid(),), SLOTS))[1]] == ["xid_119"]
    fake.release()
    clock.now += 59.0
    assert obeys(reader)[0] == [0]


def test_a_place_among_others_than_the_driver_lists_forbids_nobody(reader: nvidia.Nvidia) -> None:
    """In a container that was given two of four GPUs, the second of four may be none of them."""
    four = (*SLOTS, "0000:20:00.0", "0000:60:00.0")
    assert obeys(reader, *placed((forbid("0000:20:00.0"), forbid()), four))[0] == [0, 1]


def test_a_place_that_was_wrong_is_given_up_when_the_gpu_answers_elsewhere(
    fake: FakeNvml, reader: nvidia.Nvidia
) -> None:
    fake.set("nvmlDeviceGetPciInfo_v3 0", "00000000:41:00.0", 0, 0x41, 0)  # the row is reversed
    fake.set("nvmlDeviceGetPciInfo_v3 1", "00000000:40:00.0", 0, 0x40, 0)
    obeys(reader, *placed((forbid(),), SLOTS))
    result, lost = obeys(reader, *placed((forbid(),), SLOTS))
    assert result == [1]
    assert [(one.index, one.bus_id) for one in lost] == [(0, "00000000:41:00.0")]


def test_a_gpu_that_is_not_here_changes_nothing(reader: nvidia.Nvidia) -> None:
    stranger = placed((forbid("0000:99:00.0"),), SLOTS)
    assert obeys(reader, *stranger) == ([0, 1], [])
    assert obeys(reader, *stranger) == ([0, 1], [])


def test_an_xid_that_both_tell_is_not_told_anew_at_each_look(
    fake: FakeNvml, reader: nvidia.Nvidia, clock: Clock
) -> None:
    reader.watch()
    fake.raise_event(1, 119)
    first = obeys(reader, forbid(seconds=55.0))[1]
    clock.now += 5.0
    assert obeys(reader, forbid(seconds=50.0))[1] == first
    clock.now += 30.0
    obeys(reader, forbid(seconds=60.0))  # the driver complains on
    clock.now += 59.0
    assert obeys(reader)[0] == [0]


def test_numbers_that_moved_when_a_gpu_was_taken_out_forbid_nobody_else(
    fake: FakeNvml, reader: nvidia.Nvidia
) -> None:
    fake.grow(3)
    fake.set("nvmlDeviceGetPciInfo_v3 2", "00000000:42:00.0", 0, 0x42, 0)
    reader.watch()
    assert obeys(reader, forbid(FIRST))[0] == [1, 2]
    for key in [key for key in fake.table if key.startswith(("nvmlDevice", "field", "gpm"))]:
        words = key.split()
        if len(words) > 1 and words[1] in ("0", "1"):  # what was number 1 is number 0 now
            moved = " ".join((words[0], str(int(words[1]) + 1), *words[2:]))
            fake.table[key] = fake.table.get(moved, fake.table[key])
    fake.set("nvmlDeviceGetCount_v2 -1", 2)
    fake.reload_driver()
    result, lost = obeys(reader, *placed((forbid(FIRST),), ("0000:41:00.0", "0000:42:00.0")))
    assert result == [0, 1]
    assert [(one.bus_id, one.code) for one in lost] == [("00000000:40:00.0", "missing")]


def test_one_that_is_left_alone_is_not_missing(reader: nvidia.Nvidia) -> None:
    expected = ExpectedGpus()
    expected.look(reader.full())
    for _ in range(3):
        reader.leave_alone((forbid(),))
        count = expected.look(reader.full())
        assert (count.missing, len(count.silent)) == ((), 1)


# --- the child, and whoever orders ------------------------------------------------------------------


@pytest.fixture
def child(fake: FakeNvml) -> Iterator[VendorReader]:
    with Spawner({NAME: server.serve}) as spawner:
        options = nvidia.Options(library=fake.library)
        it = VendorReader(spawner, Host(), options=options, deadline=SOON, first_deadline=SOON)
        yield it
        fake.release()
        it.close()


def test_the_real_child_leaves_it_alone_from_its_first_read_on(
    fake: FakeNvml, child: VendorReader
) -> None:
    hang(fake, 1)
    these = placed((forbid(),), SLOTS)
    assert [one.index for one in child.watch(these).gpus] == [0]
    assert [one.index for one in child.full(these).gpus] == [0]
    assert [one.code for one in child.watch().lost] == ["xid_119"]
    assert (child.restarts, child.blocked_seconds) == (0, 0.0)


def test_a_child_that_replaces_another_leaves_it_alone_as_well(
    fake: FakeNvml, child: VendorReader
) -> None:
    assert [one.index for one in child.watch().gpus] == [0, 1]
    before = child.pid
    child.release(0)
    hang(fake, 1)
    assert [one.index for one in child.watch(placed((forbid(),), SLOTS)).gpus] == [0]
    assert child.pid != before


def test_two_agents_on_one_node_read_the_same_and_let_go_each_for_itself(
    fake: FakeNvml, child: VendorReader
) -> None:
    with Spawner({NAME: server.serve}) as spawner:
        options = nvidia.Options(library=fake.library)
        other = VendorReader(spawner, Host(), options=options, deadline=SOON, first_deadline=SOON)
        found = [one.full().gpus for one in (child, other)]
        assert [[gpu.uuid for gpu in gpus] for gpus in found] == [["GPU-0", "GPU-1"]] * 2
        assert [one.index for one in other.watch((forbid(),)).gpus] == [0]
        assert [one.index for one in child.watch().gpus] == [0, 1], "only the other was told"
        other.release(600)
        wait_until(other.let_go)
        assert [one.index for one in child.watch().gpus] == [0, 1]


def test_a_command_without_an_agent_reads_the_kernel_s_log_first(
    tmp_path: Path, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"3,1,{int(time.time() * 1e6)},-;NVRM: Xid (PCI:0000:41:00): 119, pid=7, name=python"
    event = parse_line(line)
    assert event is not None
    monkeypatch.setattr(one_shot, "read_kernel", lambda *_: KernelNews(bursts=fold([event])))
    with open_tools(Config()) as tools:
        tools.gpus.close()
        options = nvidia.Options(library=fake.library)
        gpus = VendorReader(tools.context.spawner, tools.context.host, options=options)
        gpus.watch()  # it has no driver's folder to count in
        hang(fake, 1)
        try:
            taken = OneShotReader(tools.context, gpus, Discovery(), SOON).take()
        finally:
            fake.release()
            gpus.close()
    assert taken.gpu_gap is None
    assert taken.gpus is not None
    assert [one.code for one in taken.gpus.lost] == ["xid_119"]
