"""tests/gpu/validate.py itself, as far as the fake library and recordings go: the parts, the comparison, the page."""

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from fakenvml.library import RECORDINGS, FakeNvml, build
from gpu import claims, hanging, machine, smi, timing, validate, wild, wrecks
from gpu.compare import Row, _judge, table
from gpu.page import page
from gpu.parts import desync, exits, fingerprint, metrics, ways, xid13
from gpu.tables import number
from mldebug import __version__
from mldebug.hardware.gpu.readings import GpuEvent
from mldebug.hardware.kernel_log.attribution import Evidence, RankEvent
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind
from mldebug_agents.hardware.gpu.nvml.library import Library
from mldebug_agents.hardware.gpu.nvml.watch_read import KEPT, Energy
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia

XML = (RECORDINGS / "nvidia-smi-q-idle.xml").read_text()
FIRST = "GPU-00000001-0000-4000-8000-000000000001"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two idle GPUs, for this process and for the parts; nvidia-smi tells of the same two."""
    folder = tmp_path / "fake"
    folder.mkdir()
    one = FakeNvml(folder, "idle")
    tool = folder / "nvidia-smi"
    file = RECORDINGS / "nvidia-smi-q-idle.xml"
    tool.write_text(f'#!/bin/sh\ncase "$1" in -q) cat {file};; nvlink) exit 6;; *) echo none;; esac\n')  # fmt: skip
    tool.chmod(0o755)
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(one.library).parent))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("MLDEBUG_GPU_SPAN", "0.2")
    monkeypatch.setattr(machine, "of_torch", dict)  # half the time of a small machine
    monkeypatch.setattr(validate, "GRACE", 1.0)
    return one


@pytest.fixture
def reader(fake: FakeNvml) -> Iterator[Nvidia]:
    one = Nvidia(Library(fake.library))
    yield one
    one.close()


def one_of(rows: list[Row], metric: str, labels: str = "") -> Row:
    (found,) = [one for one in rows if (one.gpu, one.metric, one.labels) == (0, metric, labels)]
    return found


# --- what nvidia-smi says --------------------------------------------------------------------------


def test_quantities_are_in_base_units() -> None:
    cases = ["143771 MiB", "79.72 W", "P2", "16x", "-2 C", "1980 MHz", "37 %", "Enabled", "3072 bank(s)"]  # fmt: skip
    values = [smi.quantity(one) for one in cases]
    assert values == [143771 * 2**20, 79.72, 2, 16, -2, 1.98e9, pytest.approx(0.37), 1, 3072]
    assert [smi.quantity(one) for one in ("N/A", "", None, "12 furlongs")] == [None] * 4


def test_every_value_of_the_recorded_page_has_our_name() -> None:
    entry = smi.read(XML)[FIRST]
    assert entry["memory_bytes", "reserved"] == 616 * 2**20
    assert entry["power_watts", "average"] == 79.27
    assert entry["pcie_link_width_lanes",] == 16
    assert entry["ecc_errors_total", "uncorrected", "sram", "volatile"] == 0
    assert entry["clock_event_active", "gpu_idle"] == 1
    assert entry["clock_event_active", "display_clock_setting"] == 0
    assert entry["info", "vbios"] == "96.00.A5.00.1A"
    assert entry["temperature_margin_celsius",] == 52


def test_nvlink_is_read_from_its_own_commands() -> None:
    head = f"GPU 0: NVIDIA H200 (UUID: {FIRST})"
    status = f"{head}\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    errors = f"{head}\n\t Link 0: Replay Errors: 2\n\t Link 1: Replay Errors: 3\n\t Link 0: CRC Errors: 7\n"  # fmt: skip
    assert smi.nvlink(status, errors) == {
        FIRST: {
            ("nvlink_up", "0"): 1.0,
            ("nvlink_errors_total", "replay"): 5.0,
            ("nvlink_errors_total", "crc_flit"): 7.0,
        }
    }


# --- the comparison --------------------------------------------------------------------------------


def test_the_recorded_gpus_agree_with_the_recorded_nvidia_smi(reader: Nvidia) -> None:
    node = reader.full()
    rows = table(node, smi.read(XML), node)
    verdicts = [one.verdict for one in rows]
    assert [one for one in rows if one.verdict == "differs"] == []
    theirs = {one.metric for one in rows if one.verdict == "only theirs"}
    # one read does not prove the unit of the seconds; the margin was not recorded
    assert theirs == {"clock_event_seconds_total", "temperature_margin_celsius"}
    assert verdicts.count("same") > 2 * 60
    assert one_of(rows, "memory_bytes", "free").verdict == "same"
    assert one_of(rows, "energy_joules_total").verdict == "only ours"


@pytest.mark.parametrize(
    ("tag", "value", "metric", "labels", "verdict"),
    [
        ("max_link_width", "8x", "pcie_link_width_max_lanes", "", "differs"),
        ("remapped_row_unc", "4", "remapped_rows_total", "uncorrected", "differs"),
        ("current_ecc", "Disabled", "ecc_mode", "", "differs"),
        ("vbios_version", "other", "info", "vbios", "differs"),
        ("instant_power_draw", "99.00 W", "power_watts", "instant", "moved"),
        ("total", "1 MiB", "memory_size_bytes", "", "differs"),
    ],
)
def test_a_value_that_is_not_the_same_is_found(
    reader: Nvidia, tag: str, value: str, metric: str, labels: str, verdict: str
) -> None:
    begin = XML.index(f"<{tag}>") + len(tag) + 2
    wrong = XML[:begin] + value + XML[XML.index(f"</{tag}>") :]
    node = reader.full()
    row = one_of(table(node, smi.read(wrong), node), metric, labels)
    assert row.verdict == verdict
    assert verdict == "differs" or row.why


def test_what_lies_between_our_two_reads_is_said_to(fake: FakeNvml, reader: Nvidia) -> None:
    before = reader.full()
    fake.set("nvmlDeviceGetTemperature 0 0", 45)
    after = reader.full()
    content = smi.read(XML.replace("<gpu_temp>35 C", "<gpu_temp>40 C"))
    assert one_of(table(before, content, after), "temperature_celsius", "core").verdict == "between"


@pytest.mark.parametrize(
    ("key", "before", "theirs", "after", "verdict"),
    [  # the first ones came from real GPUs
        (("power_watts", "instant"), 730.612, 662.07, 727.582, "moved"),
        (("clock_hertz", "sm"), 1.515e9, 1.575e9, 1.56e9, "moved"),
        (("temperature_celsius", "memory"), 41.0, 40.0, 41.0, "moved"),
        (("temperature_margin_celsius",), 28.0, 27.0, 28.0, "moved"),
        (("clock_event_seconds_total", "sw_power_cap"), 3.349, 3.449, 3.349, "moved"),
        (("memory_bytes", "used"), 1e9, 8e10, 1e9, "differs"),
        (("process_memory_bytes",), 1e6, 1e6 * 2**20, 1e6, "differs"),
        (("power_watts", "instant"), 70.0, 700.0, 70.0, "differs"),
        (("clock_hertz", "sm"), 1980.0, 1.98e9, 1980.0, "differs"),
        (("utilization_ratio",), 97.0, 0.97, 97.0, "differs"),
        (("temperature_celsius", "core"), 35.0, 95.0, 35.0, "differs"),
        (("clock_event_seconds_total", "sw_power_cap"), 3349.0, 3.349, 3349.0, "differs"),
        (("performance_state",), 12.0, 0.0, 12.0, "differs"),
    ],
)
def test_what_moves_may_move_only_so_far(
    key: smi.Key, before: float, theirs: float, after: float, verdict: str
) -> None:
    assert _judge(key, before, theirs, after)[0] == verdict


def test_the_power_by_energy_has_a_window_of_its_own(fake: FakeNvml, reader: Nvidia) -> None:
    """Between the moments at which the energy was told, not between the ends of reads."""
    result = metrics.one_table(reader, 0.2)
    assert all(one["seconds"] >= 0.2 for one in result["energy"])
    assert metrics.SPAN >= 10 or os.environ.get("MLDEBUG_GPU_SPAN")
    node = reader.full()
    begin = {0: Energy(1000.0, 50.0, 0.004, by_watch=False)}
    average = node.gpus[0].power_average_watts
    assert average is not None
    for factor, near in ((1.09, True), (1.26, False), (0.85, False)):
        end = {0: Energy(1000.0 + 10 * factor * average, 60.0, 0.02, by_watch=False)}
        found = metrics.by_energy((node, begin), (node, end), 0)
        assert (found["seconds"], found["near"]) == (10.0, near)
        assert found["watts"] == pytest.approx(factor * average, abs=0.01)
    assert metrics.by_energy((node, {}), (node, begin), 0)["near"] is None


def test_what_differs_fails_the_part() -> None:
    row = {"gpu": 1, "metric": "power_watts", "labels": "instant", "verdict": "differs"}
    moved = row | {"verdict": "moved"}
    near, far = {"near": True}, {"near": False}
    assert metrics.disagreements({"rows": [moved], "energy": [near, {"near": None}]}) == []
    result = metrics.disagreements({"rows": [row, moved], "energy": [near, far]})
    assert result == ["GPU 1 power_watts instant", "GPU 1 power by energy"]


def test_the_part_tells_all_before_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"gpu": 0, "metric": "memory_bytes", "labels": "used", "verdict": "differs"}
    monkeypatch.setattr(metrics, "one_table", lambda _: {"rows": [row], "energy": []})
    monkeypatch.setattr(metrics.world, "reader", lambda: nullcontext((None, None)))
    monkeypatch.setattr(metrics.world, "job", lambda *_: nullcontext(Mock()))
    found = metrics.run(tmp_path)
    assert [next(found)[0], next(found)[0]] == ["idle", "training"]
    with pytest.raises(AssertionError, match="GPU 0 memory_bytes used"):
        next(found)


# --- costs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ([17.02, 11.03], (14.025, 17.02, 17.02)),
        ([5.0], (5.0, 5.0, 5.0)),
        (list(range(1, 11)), (5.5, 9, 10)),
        (list(range(1, 12)), (6, 10, 11)),
        (list(range(1, 51)), (25.5, 45, 50)),
    ],
)
def test_nine_of_ten_do_not_exceed_the_ninth_decile(values: list[float], value: object) -> None:
    assert timing.spread(values) == pytest.approx(value)


def test_costs_are_those_of_eight_gpus_too(reader: Nvidia) -> None:
    watch, full = timing.read_costs(reader, rounds=3, pause=0.0)
    assert (watch.what, full.what, watch.gpus) == ("watch", "full", 2)
    assert watch.wall[0] <= watch.wall[1] <= watch.wall[2]
    assert watch.requests == 3
    assert watch.energy is not None
    assert 0 < watch.energy[1] < watch.wall[2]  # of one GPU, however many there are
    assert 0 < watch.bare[0] < watch.wall[2]
    assert watch.of_eight[0] == pytest.approx(4 * watch.bare[0] + watch.energy[1])
    assert watch.first > watch.wall[0]  # it loads the library
    assert (full.requests, full.energy) == (0, None)
    assert full.of_eight[0] == pytest.approx(4 * full.wall[0])


def test_a_look_that_asks_no_energy_is_not_made_cheaper_by_an_earlier_one(reader: Nvidia) -> None:
    """A GPU that was slow once is left to the full read."""
    reader.watch()
    for one in reader._library.devices():
        one.kept[KEPT] = Energy(None, 0.0, 1.0, by_watch=True)
    watch, _ = timing.read_costs(reader, rounds=3, pause=0.0)
    assert (watch.requests, watch.energy) == (0, None)
    assert watch.of_eight[0] == pytest.approx(4 * watch.wall[0])


def test_a_few_slow_answers_on_energy_are_not_lost_in_the_median() -> None:
    """One look in five asks, and takes long: eight GPUs are judged by such a look."""
    facts = {"what": "watch", "gpus": 2, "rounds": 50, "wall": (0.3, 14.0, 14.4), "cpu": (0.3, 14.0, 14.4), "bare": (0.25, 0.25)}  # fmt: skip
    slow = timing.Cost(**facts, requests=10, energy=(11.0, 14.0, 14.2), first=30.0)
    assert slow.of_eight[0] == pytest.approx(15.0)
    shown = {**COST, "wall_ms_of_8": slow.of_eight[0], "cpu_ms_of_8": 9.0, "asked_energy": 10, "energy_ms": slow.energy, "first_ms": 30.0}  # fmt: skip
    text = page({"parts": {"reads": {"status": "done", "data": {"idle": {"reads": [shown]}}}}})
    assert "| 10 of 50: 11.00 (14.00, 14.20) | 30.0 | 15.0 / 9.0 | missed: 10 ms wall |" in text
    shown |= {"wall_ms_of_8": 9.0}
    assert "| 9.0 / 9.0 | met |" in page({"parts": {"reads": {"status": "done", "data": {"idle": {"reads": [shown]}}}}})  # fmt: skip
    del shown["asked_energy"]
    assert "| not noted | 30.0 | 9.0 / 9.0 | not judged" in page({"parts": {"reads": {"status": "done", "data": {"idle": {"reads": [shown]}}}}})  # fmt: skip


def test_the_dearest_calls_are_counted(fake: FakeNvml, reader: Nvidia) -> None:
    reader.full()
    library = reader._library
    plain = library.nvml
    by_name = {name: count for name, count, _ in timing.dearest(reader, library)}
    assert by_name["nvmlDeviceGetFieldValues"] == 4  # a batch of each GPU, and its energy
    assert library.nvml is plain


def test_a_way_that_a_library_does_not_have_is_said(fake: FakeNvml) -> None:
    library = Library(fake.library)
    ways = {one["way"]: one for one in timing.candidates(library, rounds=2, pause=0.0)}
    library.stop()
    assert ways["utilization"]["wall"][0] > 0
    assert "error" in ways["samples of power"]


# --- phases of a job -------------------------------------------------------------------------------


def watch_read(at: float, *states: str) -> hanging.WatchRead:
    watts = dict.fromkeys(range(len(states)), 100.0 + at)
    return hanging.WatchRead(at=at, sentence=f"at {at}", stage="watching", states=dict(enumerate(states)), watts=watts)  # fmt: skip


def test_looks_are_told_by_phase_and_gpu() -> None:
    looks = [
        watch_read(1, "unknown", "idle"),
        watch_read(2, "training", "idle"),
        watch_read(3, "training", "idle"),
    ]
    looks += [
        watch_read(11, "training", "idle"),
        watch_read(12, "collective_wait", "never_arrived"),
    ]
    first, _, third, _ = hanging.phases(looks, [("train", 0.0), ("sleep", 10.0)])
    assert first["states"] == {"training": 2, "unknown": 1}
    assert (first["last"], first["settled_after"], first["watts"]) == ("training", 2.0, 102.0)
    assert (third["phase"], third["last"], third["settled_after"]) == ("sleep", "collective_wait", 2.0)  # fmt: skip
    result = hanging.sentences(looks, [("train", 0.0), ("sleep", 10.0)])
    assert [one["said"] for one in result] == ["at 3", "at 12"]


def test_the_last_load_of_a_phase_and_what_it_may_be_are_told() -> None:
    spins = {0: ("collective_wait", "compute_spin")}
    looks = [
        msgspec.structs.replace(watch_read(1, "training"), loads={0: "working"}, maybe={0: ()}),
        msgspec.structs.replace(watch_read(2, "unknown"), loads={0: "spinning"}, maybe=spins),
    ]
    (result,) = hanging.phases(looks, [("broadcast", 0.0)])
    assert (result["load"], result["maybe"]) == ("spinning", spins[0])


def test_a_fingerprint_that_tells_nothing_does_not_pass_for_one_that_spins() -> None:
    """Both end in `unknown`."""
    blind = {"phase": "broadcast", "gpu": 0, "last": "unknown", "load": "unknown", "maybe": ()}
    spins = {**blind, "gpu": 1, "load": "spinning", "maybe": ["collective_wait", "compute_spin"]}
    result = claims.load_claims({"phases": [blind, spins]}, desync.LOADS)
    assert [one["held"] for one in result] == [False, True]


def test_ranks_in_different_collectives_are_claimed_to_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = {"phase": "broadcast", "gpu": 0, "last": "unknown", "load": "unknown", "maybe": ()}
    monkeypatch.setattr(desync, "story", lambda *_: STORY | {"phases": [blind]})
    found = {one["claim"]: one["held"] for one in dict(desync.run(tmp_path))["claims"]}
    assert found["GPU 0 at the end of broadcast: unknown"] is True
    assert (
        found["GPU 0 at the end of broadcast: spinning, maybe collective_wait or compute_spin"]
        is False
    )


def test_a_checkpoint_is_claimed_of_the_agents_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    facts = {"phase": "checkpoint", "said": "GPU 0 runs nothing (0 % busy)"}
    monkeypatch.setattr(fingerprint, "story", lambda *_: STORY | {"sentences": [facts]})
    found = dict(fingerprint.run(tmp_path))["claims"]
    (held,) = [one["held"] for one in found if one["claim"].startswith("the agent at the end of checkpoint")]  # fmt: skip
    assert held is False


# --- an Xid on purpose -----------------------------------------------------------------------------

CUDA = """
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &device; return device; }
int cuCtxSetCurrent(void *context) { return context == 0; }
int cuModuleLoadData(void **module, const char *text) { *module = (void *)text; return text[1] != '.'; }
int cuModuleGetFunction(void **kernel, void *module, const char *name) { *kernel = module; return name[0] != 'w'; }
static unsigned long long to;
int cuLaunchKernel(void *kernel, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                   unsigned shared, void *stream, void **given, void **more)
{ to = *(unsigned long long *)given[0]; return !(kernel && a * b * c * d * e * f == 1) + shared + (stream || more); }
int cuCtxSynchronize(void) { return to == 0x10 ? 700 : 0; }
"""


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that has nothing at that address."""
    build()  # skips where there is no compiler
    (tmp_path / "cuda.c").write_text(CUDA)
    argv = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / wild.LIBRARY), str(tmp_path / "cuda.c")]
    subprocess.run(argv, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def test_parts_on_request_run_only_where_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    results: list[list[str]] = []
    monkeypatch.setattr(validate, "together", lambda _, names: results.append(names) or 0)
    validate.main([str(tmp_path)])
    validate.main([str(tmp_path), "xid13"])
    assert "xid13" not in results[0]
    assert set(results[0]) | set(validate.ON_REQUEST) == set(validate.LIMITS)
    assert results[1] == ["xid13"]


def test_the_child_strikes_when_told_and_says_what_came_of_it(cuda: None, tmp_path: Path) -> None:
    with xid13.child(tmp_path) as one:
        assert xid13.struck(one) == {"launch": 0, "wait": 700}
        assert one.poll() is None  # its pid is still its own
    assert one.poll() is not None


def event(xid: int, *pids: int, by: Evidence = "process", rank: int | None = 0) -> RankEvent:
    root = KernelEvent(kind=KernelEventKind.XID, at=1.0, xid=xid, pid=pids[0] if pids else None)
    burst = Burst(root=root, first_at=1.0, last_at=1.0, count=1, xids={xid: 1}, last_kind=KernelEventKind.XID, pids=pids)  # fmt: skip
    return RankEvent(burst=burst, run="r", rank=rank, by=by)


@pytest.mark.parametrize(
    ("wait", "xids", "joined", "held"),
    [
        (700, [31], [event(31, 7)], [True, True, True, True]),
        (0, [], [], [False, False, False, False]),
        (700, [79], [event(79, 7)], [True, False, False, False]),
        (719, [13], [event(13, 8)], [True, True, False, False]),  # somebody else's
        (700, [31], [event(31, 7, by="gpu")], [True, True, True, False]),
    ],
)
def test_an_xid_is_held_against_the_event_set_the_log_and_the_pid(
    wait: int, xids: list[int], joined: list[RankEvent], held: list[bool]
) -> None:
    events = [GpuEvent(at=1.0, uuid=FIRST, index=0, xid=one) for one in xids]
    result = xid13.claims({"launch": 0, "wait": wait}, events, joined, 7)
    assert [one["held"] for one in result] == held
    part = {"status": "done", "data": {"child": {"pid": 7, "wait": wait}, "claims": result, "kernel_log": True}}  # fmt: skip
    assert "| the event set told Xid 13 or 31 |" in page({"parts": {"xid13": part}})


def test_an_xid_of_the_driver_is_heard_and_joined(reader: Nvidia, fake: FakeNvml) -> None:
    reader.watch()
    fake.raise_event(0, 31)
    agent = Mock(snapshot=lambda: Mock(kernel_events=(event(31, 7),)))
    events, joined = xid13.events_of(agent, reader, 7, 1.5)
    assert [one.xid for one in events] == [31]
    assert [one.rank for one in joined] == [0]


# --- the script ------------------------------------------------------------------------------------


def test_the_machine_tells_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.project().startswith(__version__)
    monkeypatch.setenv("PATH", "")
    assert machine.project() == __version__  # no git
    monkeypatch.undo()
    monkeypatch.setattr(machine, "of_torch", lambda: {"CUDA": "12.8", "NCCL": "2.27.5"})
    result = machine.machine()
    assert result["packages"]["mldebug"] == machine.project()
    text = page({"machine": result})
    assert "CUDA 12.8, NCCL 2.27.5." in text
    assert f"Packages: mldebug {machine.project()}, " in text


def test_torch_is_asked_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.of_torch('print(\'{"CUDA": "12.8"}\')') == {"CUDA": "12.8"}
    assert machine.of_torch("import nothing_of_this_name") == {}
    assert machine.of_torch("print('no JSON')") == {}


def test_parts_run_by_themselves_and_the_page_is_made(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    fake.hold(device)
    monkeypatch.setenv("MLDEBUG_GPU_DEVICES", str(device))
    monkeypatch.setenv(
        "MLDEBUG_TEST_USER", pwd.getpwuid(os.getuid()).pw_name
    )  # nobody may not run this Python
    out = tmp_path / "out"
    assert validate.together(out, ["xid", "release", "user"]) == 0, (out / "validation.log").read_text()  # fmt: skip
    found = json.loads((out / "validation.json").read_text())
    parts = found["parts"]
    assert [one["registered"] for one in parts["xid"]["data"]["registered"]] == [True, True]
    (held,) = parts["release"]["data"]["held"].values()
    assert held == [str(device)]
    assert parts["release"]["data"]["left"] == {}
    assert parts["release"]["data"]["refused"] is True
    assert parts["user"]["data"]["full"]["fields"][0] > 2 * 100
    text = (out / "validation.md").read_text()
    assert "## Releasing the GPUs" in text
    assert "double_bit_ecc" in text


def test_a_part_that_hangs_costs_itself_alone(fake: FakeNvml, tmp_path: Path) -> None:
    fake.block("nvmlDeviceGetUUID")
    part = validate.run("xid", tmp_path, 4.0)
    fake.release()
    assert (part["status"], part["data"]) == ("timed out", {})
    assert validate.run("xid", tmp_path, 30.0)["status"] == "done"


def test_a_part_that_fails_keeps_what_it_has_found(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(_without_jobs(tmp_path)))
    part = validate.run("metrics", tmp_path, 60.0)
    assert part["status"] == "failed"
    assert "the job has ended" in part["error"], part
    assert len(part["data"]["idle"]["rows"]) > 2 * 100
    assert "Metrics against nvidia-smi" in page({"parts": {"metrics": part}})


def _without_jobs(folder: Path) -> Path:
    """A Python that starts no torchrun: that takes half a minute of a small machine."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\n[ "$2" = torch.distributed.run ] && exit 9\nexec {sys.executable} "$@"\n')  # fmt: skip
    script.chmod(0o755)
    return script


def test_there_is_no_time_for_a_part_that_would_not_end(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "ALL", 10.0)
    assert validate.together(tmp_path, ["xid"]) == 1
    found = json.loads((tmp_path / "validation.json").read_text())
    assert found["parts"]["xid"]["status"] == "left out"


def test_a_second_call_adds_to_the_first(fake: FakeNvml, tmp_path: Path) -> None:
    (tmp_path / "validation.json").write_text(json.dumps({"parts": {"tests": {"status": "done"}}}))
    validate.together(tmp_path, ["xid"])
    found = json.loads((tmp_path / "validation.json").read_text())
    assert set(found["parts"]) == {"tests", "xid"}


def test_what_is_claimed_of_a_story_is_held_against_it() -> None:
    result = claims.claims(STORY, {("sleep", 0): "collective_wait", ("sleep", 1): "never_arrived"}, [0])  # fmt: skip
    assert [(one["held"], one["saw"]) for one in result] == [
        (True, "collective_wait"),
        (False, "not seen"),
        (True, 1),
        (False, [1]),
    ]


@pytest.mark.scenario
def test_a_hang_is_told_second_by_second_and_with_its_report(
    fake: FakeNvml, tmp_path: Path
) -> None:
    """On CPUs, beside GPUs that do nothing: what is tried is the part, not the fingerprint."""
    result = hanging.story(tmp_path, "train:4,evaluate:2,checkpoint:1,train:1,sleep", "--cpu")
    assert [one["verdict"] for one in result["reports"]] == ["rank_waiting"]
    assert [one["rank"] for one in result["reports"][0]["culprits"]] == [1]
    assert result["seconds_after_timeout"] < 10
    assert {one["phase"] for one in result["phases"]} >= {"train", "sleep"}
    assert set(result["suspected_before"]) <= {"watching", "quiet"}
    held = {one["claim"]: one["held"] for one in claims.claims(result, {("sleep", 0): "idle"}, [1])}
    assert held["the report names [1]"] is True
    assert "GPU 0 at the end of sleep: idle" in held
    assert "**rank_waiting**" in page({"parts": {"fingerprint": {"status": "done", "data": {"story": result}}}})  # fmt: skip


# --- the page --------------------------------------------------------------------------------------

COST = {"what": "watch", "gpus": 2, "rounds": 50, "wall_ms": [3.0, 4.0, 9.0], "cpu_ms": [1.0, 1.0, 2.0]}  # fmt: skip
STORY = {
    "plan": "train:5,sleep",
    "struck_at": 1.0,
    "phases": [
        {"phase": "sleep", "gpu": 0, "states": {"collective_wait": 9}, "last": "collective_wait", "settled_after": 2.0, "watts": 125.0}
    ],
    "sentences": [{"phase": "sleep", "said": "GPU 0 waits in a collective"}],
    "reports": [
        {"verdict": "rank_waiting", "confidence": "medium", "summary": "rank 1 sleeps", "culprits": [{"rank": 1}], "evidence": ["a | b"]}
    ],
    "seconds_after_timeout": 1.5,
    "suspected_before": ["watching"],
    "joined": {"0": 0},
    "log": "",
}  # fmt: skip
MADE = {
    "machine": {"at": "2030-01-01", "gpus": ["NVIDIA H200, 580, 700 W"], "cores": 32, "packages": {"torch": "2.11.0"}},
    "parts": {
        "reads": {"status": "done", "seconds": 60, "data": {
            "idle": {"reads": [{**COST, "wall_ms_of_8": 12.0, "cpu_ms_of_8": 4.0}], "dearest": {"full": [["nvmlDeviceGetUUID", 2, 0.5]]}},
            "ways": [{"way": "power", "wall": [1, 2, 3], "cpu": [1, 2, 3], "again": 0.5}, {"way": "energy", "error": "not there"}]}},
        "effect": {"status": "done", "seconds": 60, "data": {
            "effect": {"percent": 0.0123, "low": -0.1, "high": 0.2, "quadruples": 16, "block_seconds": 1.0}, "look": "500ms", "step_ms": 20.5, "budget_percent": 0.5, "awake_cpu_percent": 1.25}},
        "fingerprint": {"status": "done", "seconds": 60, "data": {"story": STORY, "claims": claims.claims(STORY, {}, [1])}},
        "desync": {"status": "timed out", "error": "it took longer than 85 s", "data": {}},
    },
}  # fmt: skip


def test_the_page_shows_what_was_found() -> None:
    text = page(MADE)
    for words in (
        "NVIDIA H200, 580, 700 W",
        "torch 2.11.0",
        "| idle | watch | 2 | 50 | 3.00 (4.00, 9.00) | 1.00 (1.00, 2.00) | not noted | not noted | 12.0 / 4.0 | missed: 10 ms wall |",
        "+0.012 % (-0.100 … +0.200)",
        "| less than 0.5 %, all of the interval | met |",
        "Report 1.5 s after the timeout: **rank_waiting** (medium), named: 1. rank 1 sleeps",
        "- a \\| b",
        "| the report names [1] | yes | [1] |",
        "| sleep | 0 | collective_wait 9 | collective_wait | 2.0 s | 125.0 W |",
    ):
        assert words in text, text
    assert "## What the agent costs" not in text  # it was not run


@pytest.mark.parametrize(
    ("fault", "verdict", "named", "result"),
    [
        ("assert", "rank_exited", [1], "right"),
        ("assert", "rank_exited", [0], "WRONG"),
        ("assert", "rank_exited", [0, 1], "WRONG"),
        ("assert", "rank_busy", [1], "WRONG"),
        ("oom", "unknown", [], "unknown"),
        ("skew", "unknown", [], "right, unnamed"),
        ("kernel", "collective_mismatch", [], "WRONG"),
    ],
)
def test_a_wrecked_job_is_right_unknown_or_wrong(fault: str, verdict: str, named: list[int], result: str) -> None:  # fmt: skip
    assert wrecks.result(wrecks.WRECKS[fault], verdict, named) == result


def test_each_way_of_wrecking_is_tried_and_stands_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    row = {"result": "right", "verdict": "rank_exited", "confidence": "high", "named": [1], "seconds": 2.0, "summary": "Rank 1 …"}  # fmt: skip
    monkeypatch.setattr(exits, "tried", lambda case, *_, **__: row | {"case": case})
    found = dict(exits.run(tmp_path))
    assert {name.removeprefix("hook-") for name in found} == set(wrecks.WRECKS)
    text = page({"parts": {"exits": {"status": "done", "seconds": 9, "data": found}}})
    assert "| assert | **right** | rank_exited | 1 | high | 2 |" in text


def test_no_case_begins_that_could_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "SPAN", exits.LONGEST - 1)
    assert {one["result"] for one in dict(exits.run(tmp_path)).values()} == {"left out"}


def test_a_walk_without_a_hang_is_told_with_its_sentences() -> None:
    difference = {name: value for name, value in STORY.items() if name != "struck_at"} | {
        "reports": []
    }
    found = [
        *claims.state_claims(difference, {("sleep", 0): "idle"}),
        *claims.sentence_claims(difference, (("sleep", "GPU 0 waits"), ("rest", "idle"))),
    ]
    assert [one["held"] for one in found] == [False, True, False]
    part = {"status": "done", "seconds": 9, "data": {"story": difference, "claims": found}}
    text = page({"parts": {"phases": part}})
    assert "| the agent at the end of sleep: GPU 0 waits | yes | GPU 0 waits in a collective |" in text  # fmt: skip
    assert "| GPU 0 at the end of sleep: idle | no | collective_wait |" in text
    assert "Nothing hangs here." in text
    assert "No report came" not in text


def test_a_part_without_figures_is_told_with_its_reason() -> None:
    text = page(MADE)
    assert "**This part did not end in time**: it took longer than 85 s" in text
    assert "cannot be shown in full" in text
    half = page({"parts": {"agent": {"status": "failed", "error": "x", "data": {"agent": {"seconds": 9}}}}})  # fmt: skip
    assert "settings as shipped, 9 s." in half


@pytest.mark.parametrize(
    ("cpu", "rss", "pss", "verdict"),
    [
        (0.667, 46.9, 88.9, "CPU met, RSS met, PSS missed: 88.9 MiB"),
        (1.0, 64.0, 80.0, "CPU met, RSS met, PSS met"),
        (1.2, 65.0, 80.0, "CPU missed: 1.2 %, RSS missed: 65 MiB, PSS met"),
    ],
)
def test_what_the_agent_costs_is_held_against_its_budget(
    cpu: float, rss: float, pss: float, verdict: str
) -> None:
    few = {"count": 2, "wall_ms": [14.02, 11.03, 17.02], "cpu_ms": [14.02, 11.03, 17.02]}
    facts = {"seconds": 60, "cpu_percent": cpu, "agent_rss_mib": rss, "pss_mib": pss, "watch_read": few, "full_read": few, "processes": []}  # fmt: skip
    text = page({"parts": {"agent": {"status": "done", "data": {"agent": facts}}}})
    assert f"| {verdict} |" in text
    assert "| 2: 14.02 (17.02, 17.02); 14.02 (17.02, 17.02) |" in text  # whoever counted the decile


def test_labels_that_nvidia_smi_lacks_are_named() -> None:
    row = {"gpu": 0, "metric": "clock_event_seconds_total", "labels": "sync_boost", "before": 1.0, "after": 1.0, "theirs": 1.0, "verdict": "same", "why": ""}  # fmt: skip
    alone = row | {"labels": "low_utilization", "verdict": "only ours", "why": "not there"}
    whole = alone | {"metric": "up", "labels": "x"}
    energy = [{"watts": 77.0, "average": 76.0, "seconds": 10.3, "near": True}, {"watts": 96.0, "average": 76.0}]  # fmt: skip
    facts = {"rows": [row, alone, whole], "energy": energy, "seconds": 0.2, "unreadable": {}}
    text = page({"parts": {"metrics": {"status": "done", "data": {"idle": facts}}}})
    assert "Only ours: `clock_event_seconds_total` low_utilization (not there); `up` (not there)." in text  # fmt: skip
    assert "GPU 0 77 W and 76 W over 10.3 s (within 10 %); GPU 1 96 W and 76 W (over 0.2 s" in text


def test_numbers_are_short() -> None:
    results = [number(one) for one in (1.98e9, 0.123456, 3.0, 150754820096, True)]
    assert results == ["1.98e9", "0.1235", "3", "1.50755e11", "yes"]


# --- ways to a Flight Recorder -----------------------------------------------------------------------


RUNNING = {"State": "R", "SigPnd": "0" * 16, "ShdPnd": "0" * 16, "TracerPid": "0"}


def test_each_way_is_opened_alone(tmp_path: Path) -> None:
    names = {way: set(ways.opened(way, tmp_path)[1]) for way in ("fifo", "dump", "ended", "server")}  # fmt: skip
    assert [way for way, some in names.items() if "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in some] == ["fifo"]  # fmt: skip
    assert ways.opened("server", tmp_path) == (("--served", str(tmp_path)), {})
    assert ways.opened("dump", tmp_path)[0] == ways.opened("ended", tmp_path)[0] != ()


@pytest.mark.parametrize(
    ("after", "harmless"),
    [
        (RUNNING, True),
        (RUNNING | {"State": "S"}, True),
        (RUNNING | {"State": "T"}, False),
        (RUNNING | {"TracerPid": "77"}, False),
        (RUNNING | {"SigPnd": "0000000000040000"}, False),
        ({}, False),
    ],
)
def test_a_rank_that_is_stopped_traced_or_gone_was_harmed(
    after: dict[str, str], harmless: bool
) -> None:
    assert ways.harmless(RUNNING, after) is harmless


def test_a_stopped_rank_that_still_is_was_not_harmed() -> None:
    stopped = RUNNING | {"State": "T"}
    assert ways.harmless(stopped, stopped)
    assert not ways.harmless(stopped, RUNNING)


def test_the_kernel_says_how_a_process_stands() -> None:
    assert ways.standing(os.getpid()).keys() == RUNNING.keys()
    assert ways.standing(os.getpid())["State"] in ("R", "S")
    assert ways.standing(1 << 30) == {}


def test_the_page_says_what_became_of_the_job() -> None:
    row = {
        "result": "right", "verdict": "rank_waiting", "named": [1], "confidence": "high", "summary": "Rank 1 sleeps",
        "seconds_after_timeout": 3.3, "had_by": ["Flight Recorder of rank 0: by the debug FIFO"],
        "answers": {"trace_0": "26084 bytes after 17.2 s"}, "unharmed": True, "steps_on_s": 1.2,
    }  # fmt: skip
    rows = {"fifo: sleep": row, "dump: sleep": row | {"steps_on_s": "no: waited 30 s in vain"}}
    parts = {"ways": {"status": "done", "seconds": 9.0, "data": rows}}
    text = page({"parts": parts})
    assert "| fifo: sleep | **right** | rank_waiting | 1 | high | 3.3 s | rank 0: by the debug FIFO | `trace_0` 26084 bytes after 17.2 s | yes | 1.2 |" in text  # fmt: skip
    assert "| yes | no |" in text
