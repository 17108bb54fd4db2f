"""GPU metrics, from the library's own answer to the line that Prometheus reads: each by a value that no other has."""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fakenvml.library import FakeNvml
from mldebug.core.plugins import NoOptions
from mldebug.hardware.gpu.counters import Counters
from mldebug.hardware.gpu.readings import (
    EccCount,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
    RemappedRows,
)
from mldebug.status.snapshot import Snapshot
from mldebug_agents.hardware.gpu.nvml.library import Library
from mldebug_agents.hardware.gpu.vendors import nvidia
from mldebug_exporters.metrics.hardware import gpus as group
from mldebug_exporters.prometheus import Prometheus
from shared.web.snapshots import snapshot

UUID = "GPU-00000001-0000-4000-8000-000000000001"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
MIB = 2**20

# what the library answers (of GPU 0) -> series, its label, its value
CALLS = [
    ("nvmlDeviceGetUtilizationRates 0", (71, 43), "utilization_ratio", "", 0.71),
    ("nvmlDeviceGetUtilizationRates 0", (71, 43), "memory_utilization_ratio", "", 0.43),
    ("nvmlDeviceGetMemoryInfo_v2 0", (900_001, 500_002, 300_003, 100_004), "memory_size_bytes", "", 900_001),
    ("nvmlDeviceGetMemoryInfo_v2 0", (900_001, 500_002, 300_003, 100_004), "memory_bytes", "free", 500_002),
    ("nvmlDeviceGetMemoryInfo_v2 0", (900_001, 500_002, 300_003, 100_004), "memory_bytes", "used", 300_003),
    ("nvmlDeviceGetMemoryInfo_v2 0", (900_001, 500_002, 300_003, 100_004), "memory_bytes", "reserved", 100_004),
    ("nvmlDeviceGetComputeRunningProcesses_v3 0", (620, 7001, 621, 8002, 622, 1), "processes", "", 3),
    ("nvmlDeviceGetComputeRunningProcesses_v3 0", (620, 7001, 621, 8002, 622, 1), "process_memory_bytes", "", 15004),
    ("nvmlDeviceGetTemperature 0 0", (51,), "temperature_celsius", "core", 51),
    ("field 0 82 0", (1, 63, 1), "temperature_celsius", "memory", 63),
    ("nvmlDeviceGetMarginTemperature 0", (-12,), "temperature_margin_celsius", "", -12),
    ("nvmlDeviceGetTemperatureThreshold 0 0", (96,), "temperature_limit_celsius", "shutdown", 96),
    ("nvmlDeviceGetTemperatureThreshold 0 1", (91,), "temperature_limit_celsius", "slowdown", 91),
    ("nvmlDeviceGetTemperatureThreshold 0 2", (97,), "temperature_limit_celsius", "memory_max", 97),
    ("nvmlDeviceGetTemperatureThreshold 0 3", (88,), "temperature_limit_celsius", "gpu_max", 88),
    ("field 0 185 0", (1, 411_500, 1), "power_watts", "average", 411.5),
    ("field 0 186 0", (1, 422_250, 1), "power_watts", "instant", 422.25),
    ("nvmlDeviceGetEnforcedPowerLimit 0", (650_000,), "power_limit_watts", "", 650),
    ("nvmlDeviceGetPowerManagementDefaultLimit 0", (701_000,), "power_limit_default_watts", "", 701),
    ("field 0 83 0", (3, 98_765_500, 1), "energy_joules_total", "", 98765.5),
    ("nvmlDeviceGetClockInfo 0 0", (1701,), "clock_hertz", "graphics", 1.701e9),
    ("nvmlDeviceGetClockInfo 0 1", (1702,), "clock_hertz", "sm", 1.702e9),
    ("nvmlDeviceGetClockInfo 0 2", (3103,), "clock_hertz", "memory", 3.103e9),
    ("nvmlDeviceGetClockInfo 0 3", (1504,), "clock_hertz", "video", 1.504e9),
    ("nvmlDeviceGetMaxClockInfo 0 0", (1981,), "clock_max_hertz", "graphics", 1.981e9),
    ("nvmlDeviceGetMaxClockInfo 0 1", (1982,), "clock_max_hertz", "sm", 1.982e9),
    ("nvmlDeviceGetMaxClockInfo 0 2", (3203,), "clock_max_hertz", "memory", 3.203e9),
    ("nvmlDeviceGetMaxClockInfo 0 3", (1604,), "clock_max_hertz", "video", 1.604e9),
    ("nvmlDeviceGetPerformanceState 0", (2,), "performance_state", "", 2),
    ("nvmlDeviceGetRemappedRows 0", (21, 22, 1, 1), "remapped_rows_total", "corrected", 21),
    ("nvmlDeviceGetRemappedRows 0", (21, 22, 1, 1), "remapped_rows_total", "uncorrected", 22),
    ("nvmlDeviceGetRowRemapperHistogram 0", (3001, 302, 303, 304, 305), "remap_banks", "max", 3001),
    ("nvmlDeviceGetRowRemapperHistogram 0", (3001, 302, 303, 304, 305), "remap_banks", "high", 302),
    ("nvmlDeviceGetRowRemapperHistogram 0", (3001, 302, 303, 304, 305), "remap_banks", "partial", 303),
    ("nvmlDeviceGetRowRemapperHistogram 0", (3001, 302, 303, 304, 305), "remap_banks", "low", 304),
    ("nvmlDeviceGetRowRemapperHistogram 0", (3001, 302, 303, 304, 305), "remap_banks", "none", 305),
    ("nvmlDeviceGetRetiredPages 0 0", (31,), "retired_pages", "corrected", 31),
    ("nvmlDeviceGetRetiredPages 0 1", (32,), "retired_pages", "uncorrected", 32),
    ("nvmlDeviceGetCurrPcieLinkGeneration 0", (4,), "pcie_link_generation", "", 4),
    ("nvmlDeviceGetMaxPcieLinkGeneration 0", (5,), "pcie_link_generation_max", "", 5),
    ("nvmlDeviceGetCurrPcieLinkWidth 0", (8,), "pcie_link_width_lanes", "", 8),
    ("nvmlDeviceGetMaxPcieLinkWidth 0", (16,), "pcie_link_width_max_lanes", "", 16),
    ("field 0 94 0", (1, 41, 1), "pcie_replays_total", "", 41),
    ("field 0 169 0", (1, 1169, 1), "pcie_errors_total", "l0_to_recovery", 1169),
    ("field 0 173 0", (1, 1173, 1), "pcie_errors_total", "correctable", 1173),
    ("field 0 174 0", (1, 1174, 1), "pcie_errors_total", "naks_received", 1174),
    ("field 0 175 0", (1, 1175, 1), "pcie_errors_total", "receiver", 1175),
    ("field 0 176 0", (1, 1176, 1), "pcie_errors_total", "bad_tlp", 1176),
    ("field 0 177 0", (1, 1177, 1), "pcie_errors_total", "naks_sent", 1177),
    ("field 0 178 0", (1, 1178, 1), "pcie_errors_total", "bad_dllp", 1178),
    ("field 0 179 0", (1, 1179, 1), "pcie_errors_total", "nonfatal", 1179),
    ("field 0 180 0", (1, 1180, 1), "pcie_errors_total", "fatal", 1180),
    ("field 0 181 0", (1, 1181, 1), "pcie_errors_total", "unsupported_request", 1181),
    ("field 0 182 0", (1, 1182, 1), "pcie_errors_total", "lcrc", 1182),
    ("field 0 183 0", (1, 1183, 1), "pcie_errors_total", "lane", 1183),
    ("gpm 0 1", ("61.5",), "graphics_active_ratio", "", 0.615),
    ("gpm 0 2", ("62.5",), "sm_active_ratio", "", 0.625),
    ("gpm 0 3", ("23.5",), "sm_occupancy_ratio", "", 0.235),
    ("gpm 0 10", ("44.5",), "dram_active_ratio", "", 0.445),
    ("gpm 0 5", ("15.5",), "tensor_active_ratio", "any", 0.155),
    ("gpm 0 6", ("16.5",), "tensor_active_ratio", "dfma", 0.165),
    ("gpm 0 7", ("17.5",), "tensor_active_ratio", "hmma", 0.175),
    ("gpm 0 9", ("19.5",), "tensor_active_ratio", "imma", 0.195),
    ("gpm 0 20", ("2",), "pcie_transmit_bytes_total", "", 2 * MIB * 30),
    ("gpm 0 21", ("3",), "pcie_receive_bytes_total", "", 3 * MIB * 30),
]  # fmt: skip
SPREAD = [  # over the 18 links: field or counter of each, kind, value of each
    ("field 0 161 {}", (3, 5, 1), "replay", 5),
    ("field 0 162 {}", (3, 6, 1), "recovery", 6),
    ("field 0 163 {}", (3, 7, 1), "crc_flit", 7),
    ("nvmlDeviceGetNvLinkErrorCounter 0 {} 3", (8,), "crc_data", 8),
    ("nvmlDeviceGetNvLinkErrorCounter 0 {} 4", (9,), "ecc_data", 9),
]
LINKS = 18


class Machine:
    """The fake library and the way from it to the exposition."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeNvml(folder)
        self.now = 1000.0
        self.reader = nvidia.Nvidia(Library(self.fake.library), lambda: self.now)
        self.counters = Counters()

    def read(self) -> NodeGpus:
        self.now += 30
        node = msgspec.structs.replace(self.reader.full(), at=self.now)
        return self.counters.take(node)

    def scrape(self) -> Series:
        return series(snapshot(gpus=self.read()))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.table"))
    it = Machine(tmp_path)
    yield it
    it.reader.close()


def series(given: Snapshot) -> Series:
    text = Prometheus().render(given)[0].decode()
    return {
        (one.name.removeprefix("mldebug_gpu_"), tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name.startswith("mldebug_gpu")
    }


def value(found: Series, name: str, *labels: str, uuid: str = UUID) -> float | None:
    """The value of the series of that name with these label values beside uuid and gpu."""
    for (known, item), number in found.items():
        texts = {text for key, text in item if key not in ("uuid", "gpu")}
        if known == name and ("uuid", uuid) in item and texts == set(labels):
            return number
    return None


def test_every_value_of_the_table_is_of_its_own() -> None:
    total = [expected for *_, expected in CALLS] + [LINKS * one for *_, one in SPREAD]
    assert 0 not in total
    assert [one for one, times in Counter(total).items() if times > 1] == []


def test_every_metric_tells_what_the_library_answered(machine: Machine) -> None:
    for call, values, *_ in CALLS:
        machine.fake.set(call, *values)
    for link in range(LINKS):
        for call, values, *_ in SPREAD:
            machine.fake.set(call.format(link), *values)
    machine.read()
    found = machine.scrape()
    for _, _, name, label, expected in CALLS:
        got = value(found, name, *([label] if label else []))
        assert got == pytest.approx(expected), (name, label)
    for _, _, kind, each in SPREAD:
        assert value(found, "nvlink_errors_total", kind) == LINKS * each


def test_memory_errors_go_on_in_the_metrics_when_the_driver_counts_anew() -> None:
    ecc = EccCount(type="uncorrected", location="total", scope="volatile", count=0, total=7)
    rows = RemappedRows(corrected=1, corrected_total=4, uncorrected=2)
    one = GpuReading(uuid="GPU-1", index=0, ecc=(ecc,), remapped_rows=rows)
    made = group.create(NoOptions()).samples(snapshot(gpus=NodeGpus(at=1.0, gpus=(one,))))
    found = {(item.family.name, item.labels[2:]): item.value for item in made}
    assert found["mldebug_gpu_ecc_errors", ("uncorrected", "total", "volatile")] == 7
    assert found["mldebug_gpu_remapped_rows", ("corrected",)] == 4
    assert found["mldebug_gpu_remapped_rows", ("uncorrected",)] == 2


def test_ecc_errors_are_told_by_type_place_and_scope(machine: Machine) -> None:
    places = {"dram": 2, "sram": 7}
    wanted = {}
    for number, (type_, scope) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        names = (("corrected", "uncorrected")[type_], ("volatile", "aggregate")[scope])
        machine.fake.set(f"nvmlDeviceGetTotalEccErrors 0 {type_} {scope}", 900 + number)
        wanted[names[0], "total", names[1]] = 900 + number
        for place, at in places.items():
            machine.fake.set(
                f"nvmlDeviceGetMemoryErrorCounter 0 {type_} {scope} {at}", 10 * at + number
            )
            wanted[names[0], place, names[1]] = 10 * at + number
    found = machine.scrape()
    assert {key: value(found, "ecc_errors_total", *key) for key in wanted} == wanted


def test_link_bytes_are_summed(machine: Machine) -> None:
    for link in range(LINKS):
        machine.fake.field(0, 138, 1000 + link, scope=link)
        machine.fake.field(0, 139, 2000 + link, scope=link)
    found = machine.scrape()
    assert value(found, "nvlink_transmit_bytes_total") == 1024 * sum(range(1000, 1018))
    assert value(found, "nvlink_receive_bytes_total") == 1024 * sum(range(2000, 2018))


def test_a_link_that_is_down_is_told(machine: Machine) -> None:
    machine.fake.set("nvmlDeviceGetNvLinkState 0 7", 0)
    found = machine.scrape()
    assert [value(found, "nvlink_up", str(link)) for link in (6, 7, 8)] == [1, 0, 1]


def test_clock_events_are_a_state_set_and_seconds(machine: Machine) -> None:
    machine.fake.set("nvmlDeviceGetCurrentClocksEventReasons 0", 0x4 | 0x80)
    machine.fake.field(0, 74, 5_000_000_000)
    found = machine.scrape()
    on = [item for (name, item), one in found.items() if name == "clock_event_active" and one
          and ("uuid", UUID) in item]  # fmt: skip
    assert [dict(labels)["reason"] for labels in on] == ["sw_power_cap", "hw_power_brake_slowdown"]
    assert value(found, "clock_event_active", "sync_boost") == 0
    assert value(found, "clock_event_seconds_total", "sw_power_cap") is None  # no unit yet
    machine.fake.field(0, 74, 17_000_000_000)
    found = machine.scrape()
    assert value(found, "clock_event_seconds_total", "sw_power_cap") == pytest.approx(17.0)


@pytest.mark.parametrize(
    ("number", "action"), [(0, "none"), (1, "reset"), (4, "drain_and_reset"), (99, "unknown")]
)
def test_the_recovery_action_is_a_state_set(machine: Machine, number: int, action: str) -> None:
    machine.fake.field(0, 230, number, kind=1)
    found = machine.scrape()
    by_name = {dict(labels)["action"]: one for (name, labels), one in found.items()
            if name == "recovery_action" and ("uuid", UUID) in labels}  # fmt: skip
    assert [name for name, one in by_name.items() if one] == [action]
    assert len(by_name) == 9


@pytest.mark.parametrize(
    ("call", "values", "name"),
    [
        ("nvmlDeviceGetRemappedRows 0", (0, 0, "{}", 0), "remapped_rows_pending"),
        ("nvmlDeviceGetRemappedRows 0", (0, 0, 0, "{}"), "remapped_rows_failed"),
        ("nvmlDeviceGetRetiredPagesPendingStatus 0", ("{}",), "retired_pages_pending"),
        ("nvmlDeviceGetEccMode 0", ("{}", 0), "ecc_mode"),
        ("nvmlDeviceGetPersistenceMode 0", ("{}",), "persistence_mode"),
    ],
)
@pytest.mark.parametrize("on", [0, 1])
def test_a_switch_is_told_both_ways(
    machine: Machine, call: str, values: tuple[object, ...], name: str, on: int
) -> None:
    machine.fake.set(call, *(str(one).format(on) for one in values))
    assert value(machine.scrape(), name) == on


def test_identity_stands_in_the_info_alone(machine: Machine) -> None:
    found = machine.scrape()
    (info,) = [dict(item) for name, item in found if name == "info" and ("uuid", UUID) in item]
    assert info == {
        "uuid": UUID,
        "gpu": "0",
        "name": "NVIDIA H200",
        "driver_version": "580.159.04",
        "vbios": "96.00.A5.00.1A",
        "pci_bus_id": "00000000:00:06.0",
        "serial": "1650000000003",
        "mig_mode": "disabled",
    }
    allowed = {"uuid", "gpu", "kind", "sensor", "state", "pipe", "limit", "domain", "reason", "cause",
               "availability", "link", "action", "type", "location", "scope"}  # fmt: skip
    for name, expected_value in found:
        if name not in ("info", "read_duration_seconds", "read_cpu_seconds"):
            assert {key for key, _ in expected_value} <= allowed, name


def test_every_family_has_a_sample_somewhere_or_is_named_here(machine: Machine) -> None:
    machine.fake.set("nvmlDeviceGetMarginTemperature 0", 5)
    for cause in (0, 1):
        machine.fake.set(f"nvmlDeviceGetRetiredPages 0 {cause}", 1)
    machine.fake.set("nvmlDeviceGetRetiredPagesPendingStatus 0", 0)
    machine.fake.set("nvmlDeviceGetGpuFabricInfoV 0", 3, 0, 0)
    machine.read()
    machine.fake.field(0, 78, 10**12)  # the unit is proved by a movement
    machine.fake.field(1, 78, 64 * 10**9)
    matching = {name for name, _ in machine.scrape()}
    families = group.create(NoOptions()).families
    declared = {family.series.removeprefix("mldebug_gpu_") for family in families}
    assert declared - matching == set()


def test_what_cannot_be_read_is_absent(machine: Machine) -> None:
    found = machine.scrape()
    assert value(found, "retired_pages", "corrected") is None
    assert value(found, "temperature_margin_celsius") is None
    assert value(found, "temperature_celsius", "core") == 49
    machine.fake.set("nvmlDeviceGetTemperature 0 0", code=999)
    assert value(machine.scrape(), "temperature_celsius", "core") is None


@pytest.mark.parametrize("code", [3, 999])
def test_a_card_without_gpm_has_no_samples_of_it_and_none_is_guessed(
    machine: Machine, code: int
) -> None:
    """Before Hopper: that a kernel ran says nothing of how many multiprocessors worked."""
    machine.read()
    found = machine.scrape()
    of_gpm = {
        name for name, _ in found if name.endswith("_active_ratio") or name == "sm_occupancy_ratio"
    }
    assert {
        "graphics_active_ratio",
        "sm_active_ratio",
        "sm_occupancy_ratio",
        "dram_active_ratio",
        "tensor_active_ratio",
    } <= of_gpm

    machine.fake.fail(code, "nvmlGpmQueryDeviceSupport")
    machine.reader = nvidia.Nvidia(Library(machine.fake.library), lambda: machine.now)
    machine.read()
    without = machine.scrape()
    assert [name for name in of_gpm if value(without, name) is not None] == []
    assert value(without, "utilization_ratio") == value(found, "utilization_ratio")


def test_a_lost_gpu_has_no_samples_but_that_it_is_down(machine: Machine) -> None:
    machine.read()
    machine.fake.lose(0)
    found = machine.scrape()
    of_it = {name: number for (name, item), number in found.items() if ("uuid", UUID) in item}
    assert of_it == {"up": 0.0}
    other = UUID.replace("1-0000", "2-0000").replace("0001", "0002")
    assert value(found, "up", uuid=other) == 1


def test_a_gpu_that_only_the_watch_has_lost_is_down_at_once(machine: Machine) -> None:
    node = machine.read()
    lost = LostGpu(index=0, uuid=UUID, reason="lost")
    found = series(snapshot(gpus=node, gpu_watch=NodeWatch(at=node.at + 5, lost=(lost,))))
    assert {name for name, item in found if ("uuid", UUID) in item} == {"up"}


def test_the_watch_is_newer_than_the_full_read(machine: Machine) -> None:
    node = machine.read()
    look = GpuWatch(uuid=UUID, index=0, utilization_ratio=0.31, power_watts=222.0)
    for at, ratio, watts in ((node.at + 5, 0.31, 222.0), (node.at - 5, 0.86, 533.304)):
        found = series(snapshot(gpus=node, gpu_watch=NodeWatch(at=at, gpus=(look,))))
        assert value(found, "utilization_ratio") == pytest.approx(ratio)
        assert value(found, "power_watts", "instant") == pytest.approx(watts)


def test_without_gpus_there_is_no_series_of_them() -> None:
    assert series(snapshot()) == {}


def test_eight_gpus_stay_within_their_budget(machine: Machine) -> None:
    machine.read()
    machine.fake.field(0, 78, 10**12)
    machine.scrape()
    per_gpu = [item for item in machine.scrape() if ("uuid", UUID) in item[1]]
    assert 90 < len(per_gpu) < 160


def test_promtool_and_openmetrics_have_nothing_to_say(machine: Machine) -> None:
    machine.read()
    machine.fake.field(0, 78, 10**12)
    snap = snapshot(gpus=machine.read(), gpu_watch=machine.reader.watch())
    decoded = Prometheus().render(snap, "application/openmetrics-text;version=1.0.0")[0].decode()
    assert "mldebug_gpu_sm_active_ratio" in {one.name for one in read_openmetrics(decoded)}
    promtool = shutil.which("promtool")
    assert promtool or "CI" not in os.environ, "install the package `prometheus`"
    if promtool is None:
        pytest.skip("promtool is not here")
    text = Prometheus().render(snap)[0].decode()
    done = subprocess.run([promtool, "check", "metrics"], input=text, text=True,
                          capture_output=True, check=False, timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
