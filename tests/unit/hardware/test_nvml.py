"""NVML: the real pynvml against a library of ours that plays a recorded H200, loses GPUs, wraps, blocks and lies."""

import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pynvml
import pytest

from fakenvml.library import BASIC, RECOVERY, FakeNvml
from mldebug.hardware.gpu.counters import Counters
from mldebug.hardware.gpu.expected import ExpectedGpus
from mldebug.hardware.gpu.readings import GpuReading, NodeGpus, nvlink_errors
from mldebug.hardware.health.gpu_rules import gpu_health
from mldebug.hardware.health.model import HealthState
from mldebug.hardware.health.thresholds import Thresholds
from mldebug_agents.hardware.gpu.errors import DriverGoneError, MissingLibraryError
from mldebug_agents.hardware.gpu.nvml import bounds, fields
from mldebug_agents.hardware.gpu.nvml.calls import TURN
from mldebug_agents.hardware.gpu.nvml.library import Library
from mldebug_agents.hardware.gpu.vendors import nvidia
from shared.system.clocks import Clock

LIMITS = Thresholds()
Start = Callable[[FakeNvml], nvidia.Nvidia]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Start]:
    opened = []

    def begin(fake: FakeNvml) -> nvidia.Nvidia:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        opened.append(nvidia.Nvidia(Library(fake.library), clock))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


def first(node: NodeGpus) -> GpuReading:
    return node.gpus[0]


# --- what is read --------------------------------------------------------------------------------


def test_the_watch_read_says_what_was_recorded(tmp_path: Path, start: Start) -> None:
    look = start(FakeNvml(tmp_path)).watch()
    assert [gpu.uuid[-1] for gpu in look.gpus] == ["1", "2"]
    one = look.gpus[0]
    assert one.utilization_ratio == pytest.approx(0.86)
    assert one.memory_utilization_ratio == pytest.approx(0.54)
    assert one.power_watts == pytest.approx(533.304)
    assert one.bus_id == "00000000:00:06.0"
    assert look.lost == ()


UTILIZATION, FIELDS = "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues"
MODES = ("nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode")


def library_calls(fake: FakeNvml, reader: nvidia.Nvidia) -> list[str]:
    """What one look asks the library."""
    fake.count_calls()
    reader.watch()
    return fake.calls()


def test_every_look_asks_every_gpu_for_what_is_cheap_and_one_for_its_energy(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    for _ in range(2):
        reader.watch()
    per_gpu, dear = [FIELDS, UTILIZATION], [FIELDS, UTILIZATION, FIELDS]  # power; and energy
    for recording, turns in (("training", per_gpu + dear), ("hang-sleep", dear + per_gpu)):
        fake.play(recording)
        wanted = ["nvmlEventSetWait_v2", "nvmlDeviceGetCount_v2", *turns]
        assert library_calls(fake, reader) == wanted


def test_the_energy_is_told_by_the_look_that_read_it_and_by_the_next_full_read(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    joules = []
    for number in range(1, 5):
        clock.now += 5
        for device in (0, 1):
            fake.field(device, fields.ENERGY, number * 1000)
        joules.append([gpu.energy_joules for gpu in reader.watch().gpus])
    assert joules == [[None, 1.0], [2.0, None], [None, 3.0], [4.0, None]]
    assert [gpu.energy_joules for gpu in reader.full().gpus] == [4.0, 3.0]  # a look old at most


def test_what_the_watch_was_told_of_the_energy_is_told_for_a_minute(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    for _ in range(2):
        reader.watch()
    before = first(reader.full()).energy_joules
    fake.field(0, fields.ENERGY, 4_000_000_000)
    clock.now += 60
    assert first(reader.full()).energy_joules == before
    clock.now += 1
    assert first(reader.full()).energy_joules == 4_000_000.0
    fake.field(0, fields.ENERGY, 4_000_001_000)
    assert first(reader.full()).energy_joules == 4_000_001.0  # what it told itself it asks again


class PassingClock(Clock):
    """Each look at it takes its time."""

    step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_gpu_that_is_slow_to_tell_its_energy_is_left_to_the_full_read(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    reader = start(FakeNvml(tmp_path))
    slow = PassingClock()
    reader._clock = slow

    def reported() -> list[bool]:
        looks = [reader.watch() for _ in range(2)]
        return [any(look.gpus[index].energy_joules for look in looks) for index in (0, 1)]

    slow.step = 0.009
    assert reported() == [True, True]
    slow.step = 0.001
    assert reported() == [False, False]  # the last time it was slow
    slow.now += 60
    assert all(gpu.energy_joules for gpu in reader.full().gpus)
    assert reported() == [True, True]  # and it is no longer


def test_without_the_energy_a_look_is_none_the_worse(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    for device in (0, 1):
        fake.set(f"field {device} {fields.ENERGY} 0", code=3)
    fake.fail(3, "nvmlDeviceGetTotalEnergyConsumption")
    reader = start(fake)
    looks = [reader.watch() for _ in range(4)]
    assert {gpu.energy_joules for look in looks for gpu in look.gpus} == {None}
    assert {gpu.power_watts is not None for look in looks for gpu in look.gpus} == {True}


@pytest.mark.parametrize("before", range(5))
def test_a_gpu_that_stops_working_is_seen_at_the_next_look(
    tmp_path: Path, start: Start, before: int
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    for _ in range(before):
        reader.watch()
    fake.set("nvmlDeviceGetUtilizationRates 1", 100, 0)  # it draws as much as before
    assert reader.watch().gpus[1].memory_utilization_ratio == 0.0
    fake.play("hang-sleep")
    waiting, absent = reader.watch().gpus
    assert (waiting.utilization_ratio, waiting.memory_utilization_ratio) == (1.0, 0.0)
    assert (absent.utilization_ratio, absent.memory_utilization_ratio) == (0.0, 0.0)


def test_a_gpu_without_utilization_is_asked_for_the_rest_at_every_look(
    tmp_path: Path, start: Start
) -> None:
    reader = start(FakeNvml(tmp_path, omit=["nvmlDeviceGetUtilizationRates"]))
    for _ in range(3):
        gpu = reader.watch().gpus[0]
        assert gpu.utilization_ratio is None
        assert gpu.power_watts == pytest.approx(533.304)


def test_the_full_read_says_who_the_gpu_is(tmp_path: Path, start: Start) -> None:
    node = start(FakeNvml(tmp_path)).full()
    gpu = first(node)
    assert (node.driver_version, node.library_version) == ("580.159.04", "13.580.159.04")
    assert (gpu.name, gpu.architecture, gpu.vbios) == ("NVIDIA H200", "hopper", "96.00.A5.00.1A")
    assert (gpu.serial, gpu.minor, gpu.bus_id) == ("1650000000003", 0, "00000000:00:06.0")
    assert gpu.persistence_mode is True
    assert gpu.mig_mode is False
    assert [process.pid for process in gpu.processes or ()] == [620]
    assert (gpu.processes or ())[0].memory_bytes == 3443523584


def test_the_full_read_says_what_the_gpu_does(tmp_path: Path, start: Start) -> None:
    gpu = first(start(FakeNvml(tmp_path)).full())
    assert gpu.memory_total_bytes == 150754820096
    assert gpu.memory_free_bytes == 146657050624
    assert gpu.memory_reserved_bytes == 616 << 20
    assert gpu.memory_used_bytes == 4097769472 - (616 << 20)
    assert (gpu.temperature_celsius, gpu.memory_temperature_celsius) == (49.0, 52.0)
    assert gpu.temperature_limits_celsius["gpu_max"] == 87.0
    assert gpu.power_average_watts == pytest.approx(524.704)
    assert gpu.power_instant_watts == pytest.approx(533.304)
    assert gpu.power_limit_watts == 700.0
    assert gpu.clock_hertz["memory"] == 3.201e9
    assert gpu.clock_events == ()
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.pcie_errors["l0_to_recovery"]) == (5, 16, 80)
    assert gpu.remapped_rows is not None
    assert gpu.remapped_rows.banks["max"] == 3072
    assert gpu.recovery_action == "none"


def test_nvlink_is_read_link_by_link(tmp_path: Path, start: Start) -> None:
    gpu = first(start(FakeNvml(tmp_path)).full())
    assert len(gpu.nvlinks) == 18
    assert gpu.nvlinks[0].up is True
    assert gpu.nvlinks[0].speed_bytes_per_second == 26562e6
    assert gpu.nvlinks[0].errors["crc_data"] == 503
    assert nvlink_errors(gpu, "ecc_data") == 761 + 17 * 669
    assert gpu.nvlink_receive_bytes == 18 * 59623921 * 1024


def test_the_dear_link_counters_are_asked_for_by_turns(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    for _ in range(2):
        assert nvlink_errors(first(reader.full()), "crc_data") == 503 + 17 * 359
    for link in range(18):
        fake.set(f"nvmlDeviceGetNvLinkErrorCounter 0 {link} 3", 10_000)
    results, calls = [], []
    for _ in range(TURN):
        fake.count_calls()
        gpu = first(reader.full())
        calls.append(fake.calls().count("nvmlDeviceGetNvLinkErrorCounter"))
        results.append([link.errors["crc_data"] for link in gpu.nvlinks])
    assert max(calls) == 4  # of 72: one link of two GPUs, two counters
    assert sum(calls) == 72
    assert results[-1] == [10_000] * 18
    assert [counts.count(10_000) for counts in results] == [
        0,
        *range(1, 19),
        18,
    ]  # from link 17 down
    assert all(len(counts) == 18 for counts in results)


TRANSMIT, RECEIVE = fields.NVLINK_TRANSMIT, fields.NVLINK_RECEIVE
RECORDED = 18 * 59623921 * 1024  # bytes


def moves(fake: FakeNvml, kibibytes: int) -> None:
    """Every link tells so much more in both directions from now on."""
    for number in (TRANSMIT, RECEIVE):
        for link in range(18):
            fake.field(0, number, kibibytes, link)


def test_the_bytes_of_all_links_are_one_field_once_it_is_known_that_it_is_told(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    assert first(reader.full()).nvlink_receive_bytes == RECORDED
    batches = recorded_batches(monkeypatch)
    moves(fake, 70_000_000)
    gpu = first(reader.full())
    assert gpu.nvlink_receive_bytes == gpu.nvlink_transmit_bytes == 18 * 70_000_000 * 1024
    moved = [key for batch in batches for key in batch if key[0] in (TRANSMIT, RECEIVE)]
    assert moved[:2] == [(TRANSMIT, fields.ALL_LINKS), (RECEIVE, fields.ALL_LINKS)]
    assert {scope for _, scope in moved} == {fields.ALL_LINKS}


@pytest.mark.parametrize(
    ("values", "code"),
    [((), 3), ((), 2), ((), 0), ((3, 0, 1), 0), ((3, 59623921, 1), 0), ((3, 2**64 - 1, 1), 0)],
    ids=["not supported", "invalid", "never filled in", "zero", "one link's", "all ones"],
)
def test_where_all_links_are_not_told_at_once_each_is_asked(
    tmp_path: Path, start: Start, values: tuple[int, ...], code: int
) -> None:
    fake = FakeNvml(tmp_path)
    for number in (TRANSMIT, RECEIVE):
        fake.set(f"field 0 {number} {fields.ALL_LINKS}", *values, code=code)
    reader = start(fake)
    assert first(reader.full()).nvlink_receive_bytes == RECORDED
    moves(fake, 70_000_000)
    for number in (TRANSMIT, RECEIVE):  # now it is told: the way stays, or the total would jump
        fake.field(0, number, 10**12, fields.ALL_LINKS)
    gpu = first(reader.full())
    assert gpu.nvlink_receive_bytes == gpu.nvlink_transmit_bytes == 18 * 70_000_000 * 1024
    fake.set(f"field 0 {RECEIVE} 5", code=999)
    assert first(reader.full()).nvlink_receive_bytes is None  # a sum without one link would fall


def test_a_total_of_all_links_that_fails_once_is_absent_once(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.full()
    results = []
    for code in (999, 0):
        fake.set(f"field 0 {RECEIVE} {fields.ALL_LINKS}", 3, 18 * 70_000_000, 1, code=code)
        results.append(first(reader.full()).nvlink_receive_bytes)
    assert results == [None, 18 * 70_000_000 * 1024]


def recorded_batches(monkeypatch: pytest.MonkeyPatch) -> list[list[fields.Key]]:
    """The fields that are asked for from now on, one list for each call."""
    real, result = pynvml.nvmlDeviceGetFieldValues, list[list[fields.Key]]()

    def asked_for(handle: object, keys: list[fields.Key]) -> object:
        result.append(list(keys))
        return real(handle, keys)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", asked_for)
    return result


def test_no_field_of_a_link_is_the_last_one(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers fill in one entry more, which would be behind the end: readers died of it."""
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    batches = recorded_batches(monkeypatch)
    fake.count_calls()
    gpu = first(reader.full())
    for _ in range(20):
        reader.full()
    assert "nvmlDeviceGetFieldValues" in fake.calls()
    assert "behind" not in fake.calls()
    assert [batch for batch in batches if batch[-1][0] in fields.OF_LINKS] == []
    of_links = [key for key in batches[1] if key[0] == fields.NVLINK_REPLAY]
    assert of_links == [(fields.NVLINK_REPLAY, link) for link in range(18)]
    assert len(gpu.nvlinks) == 18
    assert gpu.nvlink_receive_bytes == RECORDED


def test_the_fake_driver_tells_of_what_it_would_have_overwritten(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    start(fake).full()
    fake.count_calls()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceGetFieldValues(handle, [(fields.NVLINK_STATE, 3)])
    assert "behind" in fake.calls()


def test_errors_and_speed_of_the_links_are_asked_for_by_turns(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    for _ in range(2):
        assert nvlink_errors(first(reader.full()), "replay") == 0
    for link in range(18):
        fake.field(0, fields.NVLINK_REPLAY, 7, link)
        fake.field(0, fields.NVLINK_SPEED, 20_000, link, kind=1)
    batches = recorded_batches(monkeypatch)
    counts, speeds = [], []
    for _ in range(TURN):
        gpu = first(reader.full())
        counts.append([link.errors["replay"] for link in gpu.nvlinks])
        speeds.append([link.speed_bytes_per_second for link in gpu.nvlinks])
    of_links = [
        [key for key in batch if 161 <= key[0] <= 164] for batch in batches if len(batch) > 1
    ]
    assert max(map(len, of_links)) == 4  # one link, four fields
    assert sum(map(len, of_links)) == 2 * 18 * 4
    assert counts[1].count(7) == speeds[1].count(20_000e6) == 1  # link 17
    assert counts[-1] == [7] * 18
    assert speeds[-1] == [20_000e6] * 18


def asked_now(gpu: GpuReading) -> list[int]:
    """Links whose errors are those of this read."""
    return [link.link for link in gpu.nvlinks if link.errors_read]


def test_a_link_says_when_its_errors_were_asked_for(tmp_path: Path, start: Start) -> None:
    reader = start(FakeNvml(tmp_path))
    results = [asked_now(first(reader.full())) for _ in range(TURN + 2)]
    assert results[:5] == [[*range(18)], [*range(18)], [], [17], [16]]
    assert results[TURN:] == [[0], []]


def test_what_failed_at_its_turn_was_not_asked_for(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    for _ in range(3):
        reader.full()
    fake.fail(999, FIELDS)
    assert asked_now(first(reader.full())) == []
    fake.release()
    assert asked_now(first(reader.full())) == [16]


@pytest.mark.parametrize(
    ("a_second", "state"), [(12, HealthState.DEGRADED), (0.5, HealthState.HEALTHY)]
)
def test_the_rate_of_link_errors_is_that_between_its_own_reads(
    tmp_path: Path, start: Start, a_second: float, state: HealthState
) -> None:
    """Link 3 errs all the time; it is asked at one read of twenty."""
    fake = FakeNvml(tmp_path)
    reader, counters, results = start(fake), Counters(), []
    for turn in range(2 * TURN):
        fake.field(0, fields.NVLINK_CRC, int(a_second * 30 * turn), scope=3)
        now = counters.take(msgspec.structs.replace(reader.full(), at=1000.0 + 30 * turn))
        results += [one for one in gpu_health(now.gpus[0], None, 30.0, LIMITS) if one.component == "gpu_nvlink"]  # fmt: skip
    assert {one.state for one in results[1:]} == {state}
    if state is HealthState.DEGRADED:
        assert {one.reason for one in results[1:]} == {"12.0 NVLink CRC errors a second"}


def test_whether_a_link_is_up_is_asked_at_every_read(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.full()
    fake.set("nvmlDeviceGetNvLinkState 0 3", 0)
    gpu = first(reader.full())
    assert [link.link for link in gpu.nvlinks if not link.up] == [3]
    assert gpu.nvlinks[3].speed_bytes_per_second == 26562e6


def test_modes_that_change_with_a_reset_are_asked_for_every_twentieth_time(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.full()
    fake.set("nvmlDeviceGetEccMode 0", 0, 0)
    fake.set("nvmlDeviceGetMigMode 0", 1, 1)
    fake.count_calls()
    results = [first(reader.full()) for _ in range(TURN)]
    assert [fake.calls().count(name) for name in MODES] == [2, 2]  # each GPU once
    assert [gpu.ecc_mode for gpu in results] == [True] * (TURN - 1) + [False]
    assert [gpu.mig_mode for gpu in results] == [False] * (TURN - 1) + [True]


def test_a_mode_that_could_not_be_had_is_asked_for_again(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    for name in MODES:
        fake.fail(999, name)
    reader = start(fake)
    for _ in range(2):
        gpu = first(reader.full())
        assert (gpu.ecc_mode, gpu.mig_mode) == (None, None)
        assert {"ecc_mode", "mig_mode"} <= set(gpu.unreadable)
    fake.release()
    gpu = first(reader.full())
    assert (gpu.ecc_mode, gpu.mig_mode) == (True, False)


def test_pcie_errors_are_asked_for_by_turns(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    assert first(reader.full()).pcie_errors["l0_to_recovery"] == 80
    fake.field(0, 169, 95)
    l0_to_recoveries = [first(reader.full()).pcie_errors["l0_to_recovery"] for _ in range(TURN)]
    assert l0_to_recoveries[0] == 80
    assert l0_to_recoveries[-1] == 95


def test_the_margin_is_asked_for_by_turns_and_told_at_every_read(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    fake.set("nvmlDeviceGetMarginTemperature 0", 30)
    reader = start(fake)
    reader.full()
    fake.set("nvmlDeviceGetMarginTemperature 0", 7)
    results = [first(reader.full()) for _ in range(10)]
    assert [one.temperature_margin_celsius for one in results] == [30] * 3 + [7] * 7
    assert [one.temperature_margin_before_celsius for one in results] == [None] * 3 + [30] * 4 + [
        7
    ] * 3


def test_a_margin_that_is_nearly_used_up_is_asked_for_again_at_the_next_read(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    results = []
    for margin in (30, 30, 30, 30, 0, 0, 28, 28):  # asked by turns at the first and the fifth
        fake.set("nvmlDeviceGetMarginTemperature 0", margin)
        gpu = first(reader.full())
        health = {one.component: one for one in gpu_health(gpu, None, 0.0, LIMITS)}
        results.append(health["gpu_temperature"].reason_code)
    assert results == [""] * 5 + ["too_hot"] + [""] * 2


def test_averages_need_two_reads_and_no_sleep(tmp_path: Path, start: Start, clock: Clock) -> None:
    reader = start(FakeNvml(tmp_path))
    assert first(reader.full()).activity is None
    clock.now += 30
    activity = first(reader.full()).activity
    assert activity is not None
    assert activity.window_seconds == 30
    assert activity.sm_active_ratio == pytest.approx(0.6354, abs=1e-4)
    assert activity.dram_ratio == pytest.approx(0.4196, abs=1e-4)
    assert activity.tensor_ratio["hmma"] == pytest.approx(0.0905, abs=1e-4)
    assert activity.nvlink_transmit_bytes_per_second == pytest.approx(62413.063 * 2**20, rel=1e-6)


def test_averages_are_taken_on_at_every_read(tmp_path: Path, start: Start, clock: Clock) -> None:
    reader = start(FakeNvml(tmp_path))
    windows = []
    for seconds in (0, 30, 0.01, 7, 11):
        clock.now += seconds
        activity = first(reader.full()).activity
        windows.append(activity and round(activity.window_seconds, 3))
    assert windows == [None, 30, None, 7.01, 11]


def test_the_slow_calls_are_never_made(tmp_path: Path, start: Start, clock: Clock) -> None:
    fake = FakeNvml(tmp_path)
    fake.count_calls()
    reader = start(fake)
    for _ in range(3):
        clock.now += 30
        reader.full()
    assert "nvmlDeviceGetFieldValues" in fake.calls()
    assert "nvmlDeviceGetPcieThroughput" not in fake.calls()


def test_what_is_not_supported_is_asked_once(tmp_path: Path, start: Start, clock: Clock) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.full()
    clock.now += 30
    fake.count_calls()
    gpu = first(reader.full())
    assert "nvmlDeviceGetRetiredPages" not in fake.calls()
    assert gpu.retired_pages == {}
    assert "retired_pages corrected" in gpu.unsupported
    assert fake.calls().count("nvmlDeviceGetMemoryErrorCounter") == 2 * 2 * 4  # GPUs, places


@pytest.mark.parametrize("recording", ["idle", "training", "hang-sleep", "hang-desync"])
def test_every_recording_is_read_and_survives_the_wire(
    tmp_path: Path, start: Start, clock: Clock, recording: str
) -> None:
    reader = start(FakeNvml(tmp_path, recording))
    reader.full()
    clock.now += 30
    node = reader.full()
    assert len(node.gpus) == 2
    assert msgspec.json.decode(msgspec.json.encode(node), type=NodeGpus) == node
    assert all(gpu.unreadable == {} for gpu in node.gpus)


def test_a_waiting_gpu_reads_as_recorded(tmp_path: Path, start: Start) -> None:
    waiting, absent = start(FakeNvml(tmp_path, "hang-sleep")).watch().gpus
    assert (waiting.utilization_ratio, waiting.memory_utilization_ratio) == (1.0, 0.0)
    assert absent.utilization_ratio == 0.0
    assert waiting.power_watts == pytest.approx(124, abs=3)


# --- libraries that know less --------------------------------------------------------------------


def test_a_library_with_only_the_basic_getters_still_tells_the_basics(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    reader = start(FakeNvml(tmp_path, only=BASIC))
    look = reader.watch()
    assert look.gpus[0].power_watts == pytest.approx(524.094)  # of the getter, not of the field
    assert look.gpus[0].energy_joules is None
    clock.now += 30
    gpu = first(reader.full())
    assert (gpu.name, gpu.utilization_ratio) == ("NVIDIA H200", pytest.approx(0.86))
    assert gpu.memory_used_bytes == 4097769472
    assert gpu.memory_reserved_bytes is None
    assert gpu.temperature_celsius == 49.0
    assert gpu.activity is None
    assert gpu.nvlinks == ()
    assert gpu.clock_events is None


@pytest.mark.parametrize(
    ("symbol", "missing"),
    [
        ("nvmlDeviceGetFieldValues", "recovery_action"),
        ("nvmlDeviceGetUtilizationRates", "utilization_ratio"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
        ("nvmlDeviceGetRemappedRows", "remapped_rows"),
        ("nvmlGpmQueryDeviceSupport", "activity"),
        ("nvmlDeviceGetMemoryInfo_v2", "memory_reserved_bytes"),
        ("nvmlDeviceGetSerial", "serial"),
    ],
)
def test_a_missing_symbol_costs_its_own_metric_only(
    tmp_path: Path, start: Start, clock: Clock, symbol: str, missing: str
) -> None:
    reader = start(FakeNvml(tmp_path, omit=[symbol]))
    reader.full()
    clock.now += 30
    gpu = first(reader.full())
    assert getattr(gpu, missing) in (None, "")
    assert gpu.memory_free_bytes == 146657050624
    assert gpu.energy_joules is not None
    assert gpu.power_average_watts is not None
    assert gpu.pcie_replays == 0


def test_the_older_name_of_the_clock_reasons_is_known(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path, omit=["nvmlDeviceGetCurrentClocksEventReasons"])
    fake.set("nvmlDeviceGetCurrentClocksThrottleReasons 0", 0x4 | 0x40)
    assert first(start(fake).full()).clock_events == ("hw_thermal_slowdown", "sw_power_cap")


def test_no_library_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(MissingLibraryError, match="no-such-library"):
        nvidia.Nvidia(Library(str(tmp_path / "no-such-library.so"))).watch()


# --- GPUs that are lost --------------------------------------------------------------------------


def test_a_lost_gpu_does_not_cost_the_others(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    fake.lose(0)
    look, node = reader.watch(), reader.full()
    assert [gpu.index for gpu in look.gpus] == [1]
    assert [gpu.index for gpu in node.gpus] == [1]
    assert (node.lost[0].bus_id, node.lost[0].code) == ("00000000:00:06.0", "gpu_is_lost")
    assert "fallen off the bus" in node.lost[0].reason


def test_a_gpu_that_was_lost_from_the_start_is_told_by_its_number(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    fake.lose(1)
    look = start(fake).watch()
    assert [gpu.index for gpu in look.gpus] == [0]
    assert (look.lost[0].index, look.lost[0].uuid) == (1, "")


def test_a_lost_gpu_is_left_alone_ever_longer_and_comes_back(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    fake.lose(0)
    reader.watch()
    results = []
    for _ in range(60):
        clock.now += 1
        fake.count_calls()
        assert len(reader.watch().lost) == 1
        results.append("nvmlDeviceGetHandleByIndex_v2" in fake.calls())
    assert sum(results) == 3  # after 5, 10 and 20 seconds more
    fake.release()
    clock.now += 300
    assert reader.watch().lost == ()
    assert len(reader.watch().gpus) == 2


def test_a_gpu_lost_in_the_middle_of_a_read_is_lost(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    fake.fail(15, "nvmlDeviceGetTemperature", 1)
    node = start(fake).full()
    assert [gpu.index for gpu in node.gpus] == [0]
    assert node.lost[0].uuid.endswith("2")


def test_a_gpu_that_is_left_alone_is_not_gone(tmp_path: Path, start: Start, clock: Clock) -> None:
    fake, expected = FakeNvml(tmp_path), ExpectedGpus()
    reader = start(fake)
    reader.watch()
    expected.look(reader.full())
    fake.raise_event(0, 119)
    reader.watch()
    for _ in range(3):
        look = expected.look(reader.full())
        assert look.missing == ()
        assert [one.gpu.index for one in look.silent] == [0]
    clock.now += 61
    assert expected.look(reader.full()).silent == ()


def test_a_driver_that_counts_nothing_has_lost_nothing(tmp_path: Path, start: Start) -> None:
    """SUCCESS, and nothing filled in."""
    fake, expected = FakeNvml(tmp_path), ExpectedGpus()
    reader = start(fake)
    expected.look(reader.full())
    fake.set("nvmlDeviceGetCount_v2 -1", 0)
    for _ in range(3):
        look = expected.look(reader.full())
        assert (look.missing, len(look.silent)) == ((), 2)
    fake.set("nvmlDeviceGetCount_v2 -1", 2)
    assert expected.look(reader.full()).silent == ()


def test_a_gpu_that_the_driver_does_not_list_any_more_is_named(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    fake.set("nvmlDeviceGetCount_v2 -1", 1)
    for key in [key for key in fake.table if " 0" in key and key.startswith("nvmlDevice")]:
        if f"{key.split(' ')[0]} 1" in fake.table:  # what was number 1 is number 0 now
            fake.table[key] = fake.table[f"{key.split(' ')[0]} 1"]
    fake.reload_driver()
    look = reader.watch()
    assert [gpu.uuid[-1] for gpu in look.gpus] == ["2"]
    assert [(gone.uuid[-1], gone.bus_id) for gone in look.lost] == [("1", "00000000:00:06.0")]


# --- drivers that go and come --------------------------------------------------------------------


def test_a_driver_that_was_loaded_anew_is_read_on(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.full()
    fake.reload_driver()
    assert len(reader.full().gpus) == 2
    fake.reload_driver()
    assert len(reader.watch().gpus) == 2


def test_a_driver_that_is_gone_is_said_and_read_again_when_it_is_back(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    fake.fail(9)
    with pytest.raises(DriverGoneError, match="not loaded"):
        reader.watch()
    fake.release()
    assert len(reader.watch().gpus) == 2


def test_a_driver_that_answers_unknown_to_everything_is_started_anew(
    tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    for device in (0, 1):
        fake.fail(999, device=device)
    fake.count_calls()
    look = reader.watch()
    assert "nvmlInitWithFlags" in fake.calls()
    assert [gone.code for gone in look.lost] == ["unknown", "unknown"]


def test_where_no_gpu_answers_the_library_is_started_anew_once_a_minute(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    for device in (0, 1):
        fake.lose(device)
    fake.count_calls()
    for _ in range(120):
        clock.now += 1
        assert len(reader.watch().lost) == 2
    assert fake.calls().count("nvmlInitWithFlags") == 2
    fake.release()
    clock.now += 60
    assert len(reader.watch().gpus) == 2


def test_averages_start_anew_with_the_driver(tmp_path: Path, start: Start, clock: Clock) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    for _ in range(2):
        clock.now += 30
        assert reader.full()
    fake.reload_driver()
    clock.now += 30
    assert first(reader.full()).activity is None
    clock.now += 30
    assert first(reader.full()).activity is not None


# --- values that cannot be -----------------------------------------------------------------------


def test_a_field_that_was_never_filled_in_is_unknown_and_not_zero(
    tmp_path: Path, start: Start
) -> None:
    answer = json.loads(
        (Path(__file__).parents[2] / "fixtures/h200/nvml-training.json").read_text()
    )
    field = answer["gpu0"]["fields"]["NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN"]
    assert (field["ret"], field["type"], field["d"]) == (0, 0, 0.0)  # the real thing does that
    gpu = first(start(FakeNvml(tmp_path)).full())
    assert gpu.clock_event_counters == {
        "low_utilization": 31234729280,
        "sw_power_cap": 0,
        "sync_boost": 0,
        "sw_thermal_slowdown": 0,
    }


@pytest.mark.parametrize(
    ("call", "values", "attribute"),
    [
        ("nvmlDeviceGetUtilizationRates 0", (4294967295, 54), "utilization_ratio"),
        ("nvmlDeviceGetUtilizationRates 0", (86, 101), "memory_utilization_ratio"),
        ("nvmlDeviceGetTemperature 0 0", (4294967295,), "temperature_celsius"),
        ("nvmlDeviceGetTemperature 0 0", (-40000,), "temperature_celsius"),
        ("nvmlDeviceGetMemoryInfo_v2 0", (2**63, 1, 1, 1), "memory_total_bytes"),
        ("nvmlDeviceGetEnforcedPowerLimit 0", (4294967295,), "power_limit_watts"),
        ("nvmlDeviceGetCurrPcieLinkWidth 0", (4000000,), "pcie_width"),
        ("nvmlDeviceGetPersistenceMode 0", (7,), "persistence_mode"),
        ("nvmlDeviceGetPerformanceState 0", (32,), "performance_state"),
        ("field 0 83 0", (3, 2**64 - 1, 5), "energy_joules"),
        ("field 0 83 0", (4, -5, 5), "energy_joules"),
        ("field 0 186 0", (1, 4294967295, 5), "power_instant_watts"),
        ("field 0 94 0", (3, 2**63 + 5, 5), "pcie_replays"),
    ],
)
def test_an_absurd_value_is_absent_and_said(
    tmp_path: Path, start: Start, call: str, values: tuple[int, ...], attribute: str
) -> None:
    fake = FakeNvml(tmp_path)
    fake.set(call, *values)
    gpu = first(start(fake).full())
    if attribute != "pcie_replays":  # for that one there is a second way to ask
        assert getattr(gpu, attribute) is None
    assert any("cannot be" in why or "not available" in why or "P32" in why or "only 0 and 1" in why
               for why in gpu.unreadable.values())  # fmt: skip
    assert gpu.name == "NVIDIA H200"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-5", "120"])
def test_an_absurd_average_is_absent(
    tmp_path: Path, start: Start, clock: Clock, value: str
) -> None:
    fake = FakeNvml(tmp_path)
    fake.set("gpm 0 2", value)
    reader = start(fake)
    reader.full()
    clock.now += 30
    activity = first(reader.full()).activity
    assert activity is not None
    assert activity.sm_active_ratio is None
    assert activity.dram_ratio is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 100.5, 2**32 - 1, 2**64 - 1])
def test_no_percentage_lies_outside_its_range(value: float) -> None:
    with pytest.raises(bounds.AbsurdError):
        bounds.percent(value)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_library_answers_both_reads_come_back(
    tmp_path: Path, start: Start, clock: Clock, seed: int
) -> None:
    chance = random.Random(seed)
    fake = FakeNvml(tmp_path)
    numbers = (0, -1, 1, 7, 2**31, 2**32 - 1, 2**63, 2**64 - 1, "nan", "inf", "-inf", "1e400")
    for key, item in fake.table.items():
        values = item.split("\t")
        if key.startswith(("nvmlDevice", "field", "gpm")) and not key.startswith(
            "nvmlDeviceGetCount"
        ):
            code = chance.choice((0, 0, 0, 0, 2, 3, 4, 14, 17, 21, 999))
            fake.table[key] = "\t".join(
                map(str, [code, *(chance.choice(numbers) for _ in values[1:])])
            )
    fake.release()
    reader = start(fake)
    for _ in range(3):
        clock.now += 30
        look, node = reader.watch(), reader.full()
        assert len(look.gpus) + len(look.lost) == 2
        for gpu in node.gpus:
            for value in (gpu.utilization_ratio, gpu.memory_utilization_ratio):
                assert value is None or 0 <= value <= 1
            assert gpu.energy_joules is None or 0 <= gpu.energy_joules < math.inf
            assert len(gpu.unreadable) <= 64
            assert len(gpu.nvlinks) <= 36
        assert msgspec.json.decode(msgspec.json.encode(node), type=NodeGpus) == node


def test_unreadable_names_do_not_grow_without_bound(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    for key in list(fake.table):
        if key.startswith("nvmlDeviceGetNvLinkErrorCounter"):
            fake.table[key] = f"0\t{2**64 - 1}"
    fake.release()
    assert len(first(start(fake).full()).unreadable) <= 64


def test_what_this_user_may_not_read_is_a_gap_with_a_way_out(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    fake.fail(4, "nvmlGpmSampleGet")
    reader = start(fake)
    node = reader.full()
    assert [gap.what for gap in node.gaps] == ["GPU metrics: activity"]
    assert "root" in node.gaps[0].way_out


# --- MIG -----------------------------------------------------------------------------------------


def test_mig_instances_are_named_and_utilization_is_absent(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    fake.set("nvmlDeviceGetMigMode 0", 1, 1)
    fake.set("nvmlDeviceGetMaxMigDeviceCount 0", 7)
    fake.set("nvmlDeviceGetUtilizationRates 0", code=3)
    for number, handle in ((0, 20), (3, 21)):
        fake.set(f"nvmlDeviceGetMigDeviceHandleByIndex 0 {number}", handle)
        fake.set(f"nvmlDeviceGetUUID {handle}", f"MIG-{number}")
    gpu = first(start(fake).full())
    assert gpu.mig_instances == ("MIG-0", "MIG-3")
    assert gpu.utilization_ratio is None
    assert gpu.memory_free_bytes is not None


# --- events --------------------------------------------------------------------------------------


def test_xids_are_heard_once_and_named(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    assert reader.watch().events == ()
    fake.raise_event(1, 31)
    fake.raise_event(0, 2, RECOVERY)
    fake.raise_event(0, 13)
    pairs = [(event.index, event.kind, event.xid) for event in reader.watch().events]
    assert pairs == [(1, "xid", 31), (0, "recovery_action", None), (0, "xid", 13)]
    assert reader.watch().events == ()


@pytest.mark.parametrize("xid", [79, 119, 120])
def test_a_gpu_that_would_block_whoever_asks_is_left_alone(
    tmp_path: Path, start: Start, clock: Clock, xid: int
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    fake.raise_event(1, xid)
    assert reader.watch().lost[0].code == f"xid_{xid}"
    fake.fail(15, device=1)  # it would be seen
    fake.count_calls()
    clock.now += 59
    assert [gpu.index for gpu in reader.full().gpus] == [0]
    assert [gone.code for gone in reader.watch().lost] == [f"xid_{xid}"]
    assert fake.calls().count("nvmlDeviceGetUtilizationRates") == 2  # of the other, by each read
    clock.now += 1
    fake.release()
    assert len(reader.watch().gpus) == 2


def within(seconds: float, read: Callable[[], object]) -> bool:
    """Does it come back in time? What hangs is left behind."""
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


@pytest.mark.parametrize("first", ["watch", "full"])
def test_an_xid_is_heard_before_its_gpu_is_asked(tmp_path: Path, start: Start, first: str) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    reader.full()
    fake.raise_event(0, 31)
    fake.raise_event(1, 119)
    for function in (UTILIZATION, FIELDS):
        fake.block(function, 1)
    try:
        assert within(5.0, getattr(reader, first)), "it asked a GPU that hangs"
        looks = [reader.watch() for _ in range(2)] if first == "full" else []
    finally:
        fake.release()
    if first == "full":
        assert [event.xid for event in looks[0].events] == [31, 119]
        assert looks[1].events == ()
    assert reader.watch().events == ()
    assert [gone.code for gone in reader.full().lost] == ["xid_119"]


def test_an_xid_counts_anew_for_a_gpu_that_is_left_alone_already(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    fake.fail(999, device=1)
    reader.watch()  # it is left alone for 5 s
    for wait in (1, 59):
        fake.release()
        clock.now += wait
        fake.raise_event(1, 119)
        assert [gone.code for gone in reader.watch().lost] == ["xid_119"]
    clock.now += 59
    assert [gpu.index for gpu in reader.watch().gpus] == [0]
    clock.now += 1
    assert len(reader.watch().gpus) == 2


def test_a_new_start_touches_no_gpu_that_an_xid_forbids(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    fake.raise_event(1, 119)
    fake.lose(0)
    fake.count_calls()
    reader.watch()
    assert "nvmlInitWithFlags" not in fake.calls()  # no GPU answers, and that is why
    fake.release()
    fake.reload_driver()
    clock.now += 6
    assert [gone.code for gone in reader.watch().lost] == ["xid_119"]
    assert "nvmlInitWithFlags" in fake.calls()


def test_gpus_that_are_all_left_alone_are_not_touched_by_a_new_start(
    tmp_path: Path, start: Start, clock: Clock
) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    for device in (0, 1):
        fake.raise_event(device, 119)
    reader.watch()
    fake.count_calls()
    clock.now += 30
    assert len(reader.full().lost) == 2
    assert set(fake.calls()) <= {
        "nvmlEventSetWait_v2",
        "nvmlDeviceGetCount_v2",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetNVMLVersion",
    }


def test_a_driver_without_events_is_read_all_the_same(tmp_path: Path, start: Start) -> None:
    look = start(FakeNvml(tmp_path, omit=["nvmlEventSetCreate"])).watch()
    assert len(look.gpus) == 2
    assert look.events == ()


def test_a_flood_of_events_is_taken_in_pieces(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    reader = start(fake)
    reader.watch()
    for number in range(1, 601):
        fake.table[f"event {number}"] = "0\t8\t95"
    fake.release()
    assert [len(reader.watch().events) for _ in range(4)] == [256, 256, 88, 0]


# --- counters as the driver tells them -----------------------------------------------------------


def test_counters_are_read_as_they_are_told(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path)
    fake.field(0, fields.PCIE_RECEIVE, 2**32 - 10, kind=1)
    fake.field(0, fields.CLOCK_EVENTS["sw_power_cap"], 9_020_000)
    fake.set("nvmlDeviceGetMemoryErrorCounter 0 1 0 7", 3)
    fake.set("nvmlDeviceGetRemappedRows 0", 4, 5, 1, 0)
    gpu = first(start(fake).full())
    assert gpu.pcie_receive_bytes == 2**32 - 10
    assert gpu.clock_event_counters["sw_power_cap"] == 9_020_000
    assert [one.count for one in gpu.ecc if one.count] == [3]
    assert gpu.remapped_rows is not None
    assert (gpu.remapped_rows.corrected, gpu.remapped_rows.uncorrected) == (4, 5)
    assert (gpu.remapped_rows.pending, gpu.remapped_rows.failed) == (True, False)


def test_no_process_is_a_number_and_not_a_gap(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path, "idle")
    fake.count_calls()
    assert first(start(fake).full()).processes == ()
    assert fake.calls().count("nvmlDeviceGetComputeRunningProcesses_v3") == 2


RANK, NOTEBOOK, ELSEWHERE = 620, 900, 4321


@pytest.mark.parametrize(
    ("samples", "active"),
    [
        ((RANK, 93, NOTEBOOK, 0, RANK, 95), [True, False]),
        ((RANK, 93, NOTEBOOK, 0, NOTEBOOK, 40), [True, True]),
        ((NOTEBOOK, 99), [False, True]),
        ((RANK, 93), [True, False]),  # who used nothing has no sample
        ((RANK, 0, NOTEBOOK, 0), [None, None]),
        ((ELSEWHERE, 93), [None, None]),  # counted in another pid namespace
        ((RANK, 93, ELSEWHERE, 5), [None, None]),
        ((), [None, None]),
        (None, [None, None]),
    ],
)
def test_of_several_processes_is_read_who_uses_the_gpu(
    samples: tuple[int, ...] | None, active: list[bool | None], tmp_path: Path, start: Start
) -> None:
    fake = FakeNvml(tmp_path, "idle")
    fake.set("nvmlDeviceGetComputeRunningProcesses_v3 0", RANK, 5 << 30, NOTEBOOK, 1 << 30)
    if samples is not None:
        fake.set("nvmlDeviceGetProcessUtilization 0", *samples)
    gpu = first(start(fake).full())
    assert [one.active for one in gpu.processes or ()] == active
    assert "use by each process" not in gpu.unreadable


def test_of_the_only_process_nothing_more_is_read(tmp_path: Path, start: Start) -> None:
    fake = FakeNvml(tmp_path, "idle")
    fake.set("nvmlDeviceGetComputeRunningProcesses_v3 0", RANK, 5 << 30)
    fake.count_calls()
    assert [one.active for one in first(start(fake).full()).processes or ()] == [None]
    assert "nvmlDeviceGetProcessUtilization" not in fake.calls()
