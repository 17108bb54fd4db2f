"""tests/gpu/validate.py itself, as far as the fake library and recordings go: the parts, the comparison, the page."""

import json
import os
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakenvml.library import RECORDINGS, FakeNvml
from gpu import hanging, smi, timing, validate
from gpu.compare import Row, table
from gpu.page import page
from gpu.tables import number
from mldebug_agents.gpus.nvidia import Nvidia
from mldebug_agents.nvml.library import Library

XML = (RECORDINGS / "nvidia-smi-q-idle.xml").read_text()
FIRST = "GPU-00000001-0000-4000-8000-000000000001"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two idle GPUs, for this process and for the parts; nvidia-smi tells of the same two."""
    folder = tmp_path / "fake"
    folder.mkdir()
    one = FakeNvml(folder, "idle")
    tool = folder / "nvidia-smi"
    told = RECORDINGS / "nvidia-smi-q-idle.xml"
    tool.write_text(f'#!/bin/sh\ncase "$1" in -q) cat {told};; nvlink) exit 6;; *) echo none;; esac\n')  # fmt: skip
    tool.chmod(0o755)
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(one.library).parent))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
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
    told = ["143771 MiB", "79.72 W", "P2", "16x", "-2 C", "1980 MHz", "37 %", "Enabled", "3072 bank(s)"]  # fmt: skip
    values = [smi.quantity(one) for one in told]
    assert values == [143771 * 2**20, 79.72, 2, 16, -2, 1.98e9, pytest.approx(0.37), 1, 3072]
    assert [smi.quantity(one) for one in ("N/A", "", None, "12 furlongs")] == [None] * 4


def test_every_value_of_the_recorded_page_has_our_name() -> None:
    told = smi.read(XML)[FIRST]
    assert told["memory_bytes", "reserved"] == 616 * 2**20
    assert told["power_watts", "average"] == 79.27
    assert told["pcie_link_width_lanes",] == 16
    assert told["ecc_errors_total", "uncorrected", "sram", "volatile"] == 0
    assert told["clock_event_active", "gpu_idle"] == 1
    assert told["clock_event_active", "display_clock_setting"] == 0
    assert told["info", "vbios"] == "96.00.A5.00.1A"
    assert told["temperature_margin_celsius",] == 52


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
    told = smi.read(XML.replace("<gpu_temp>35 C", "<gpu_temp>40 C"))
    assert one_of(table(before, told, after), "temperature_celsius", "core").verdict == "between"


# --- costs -----------------------------------------------------------------------------------------


def test_costs_are_those_of_eight_gpus_too(reader: Nvidia) -> None:
    watch, full = timing.read_costs(reader, rounds=3, pause=0.0)
    assert (watch.what, full.what, watch.gpus) == ("watch", "full", 2)
    assert watch.wall[0] <= watch.wall[1] <= watch.wall[2]
    assert 0 < watch.once < watch.wall[0]  # the energy of one GPU, however many there are
    assert watch.of_eight[0] == pytest.approx(4 * watch.wall[0] - 3 * watch.once)
    assert full.of_eight[0] == pytest.approx(4 * full.wall[0])


def test_the_dearest_calls_are_counted(fake: FakeNvml, reader: Nvidia) -> None:
    reader.full()
    library = reader._library
    plain = library.nvml
    told = {name: count for name, count, _ in timing.dearest(reader, library)}
    assert (
        told["nvmlDeviceGetFieldValues"] == 4
    )  # one batch a GPU, by far the most work, and its energy
    assert library.nvml is plain


def test_a_way_that_a_library_does_not_have_is_said(fake: FakeNvml) -> None:
    library = Library(fake.library)
    ways = {one["way"]: one for one in timing.candidates(library, rounds=2, pause=0.0)}
    library.stop()
    assert ways["utilization"]["wall"][0] > 0
    assert "error" in ways["samples of power"]


# --- phases of a job -------------------------------------------------------------------------------


def seen(at: float, *states: str) -> hanging.Seen:
    watts = dict.fromkeys(range(len(states)), 100.0 + at)
    return hanging.Seen(at=at, sentence=f"at {at}", stage="watching", states=dict(enumerate(states)), watts=watts)  # fmt: skip


def test_looks_are_told_by_phase_and_gpu() -> None:
    looks = [seen(1, "unknown", "idle"), seen(2, "training", "idle"), seen(3, "training", "idle")]
    looks += [seen(11, "training", "idle"), seen(12, "collective_wait", "never_arrived")]
    first, _, third, _ = hanging.phases(looks, [("train", 0.0), ("sleep", 10.0)])
    assert first["states"] == {"training": 2, "unknown": 1}
    assert (first["last"], first["settled_after"], first["watts"]) == ("training", 2.0, 102.0)
    assert (third["phase"], third["last"], third["settled_after"]) == ("sleep", "collective_wait", 2.0)  # fmt: skip
    said = hanging.sentences(looks, [("train", 0.0), ("sleep", 10.0)])
    assert [one["said"] for one in said] == ["at 3", "at 12"]


# --- the script ------------------------------------------------------------------------------------


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
    told = hanging.claims(STORY, {("sleep", 0): "collective_wait", ("sleep", 1): "never_arrived"}, [0])  # fmt: skip
    assert [(one["held"], one["saw"]) for one in told] == [
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
    told = hanging.story(tmp_path, "train:4,evaluate:2,checkpoint:1,train:1,sleep", "--cpu")
    assert [one["verdict"] for one in told["reports"]] == ["rank_waiting"]
    assert [one["rank"] for one in told["reports"][0]["culprits"]] == [1]
    assert told["seconds_after_timeout"] < 10
    assert {one["phase"] for one in told["phases"]} >= {"train", "sleep"}
    assert set(told["suspected_before"]) <= {"watching", "quiet"}
    held = {one["claim"]: one["held"] for one in hanging.claims(told, {("sleep", 0): "idle"}, [1])}
    assert held["the report names [1]"] is True
    assert "GPU 0 at the end of sleep: idle" in held
    assert "**rank_waiting**" in page({"parts": {"fingerprint": {"status": "done", "data": {"story": told}}}})  # fmt: skip


# --- the page --------------------------------------------------------------------------------------

COST = {"what": "watch", "gpus": 2, "rounds": 50, "wall_ms": [3.0, 4.0, 9.0], "cpu_ms": [1.0, 1.0, 2.0]}  # fmt: skip
STORY = {
    "plan": "train:5,sleep",
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
        "fingerprint": {"status": "done", "seconds": 60, "data": {"story": STORY, "claims": hanging.claims(STORY, {}, [1])}},
        "desync": {"status": "timed out", "error": "it took longer than 85 s", "data": {}},
    },
}  # fmt: skip


def test_the_page_shows_what_was_found() -> None:
    text = page(MADE)
    for words in (
        "NVIDIA H200, 580, 700 W",
        "torch 2.11.0",
        "| idle | watch | 2 | 50 | 3.00 (4.00, 9.00) | 1.00 (1.00, 2.00) | 12.0 / 4.0 | missed: 10 ms wall |",
        "+0.012 % (-0.100 … +0.200)",
        "| less than 0.5 %, all of the interval | met |",
        "Report 1.5 s after the timeout: **rank_waiting** (medium), named: 1. rank 1 sleeps",
        "- a \\| b",
        "| the report names [1] | yes | [1] |",
        "| sleep | 0 | collective_wait 9 | collective_wait | 2.0 s | 125.0 W |",
    ):
        assert words in text, text
    assert "## What the agent costs" not in text  # it was not run


def test_a_part_without_figures_is_told_with_its_reason() -> None:
    text = page(MADE)
    assert "**This part did not end in time**: it took longer than 85 s" in text
    assert "cannot be shown in full" in text
    half = page({"parts": {"agent": {"status": "failed", "error": "x", "data": {"agent": {"seconds": 9}}}}})  # fmt: skip
    assert "settings as shipped, 9 s." in half


def test_numbers_are_short() -> None:
    told = [number(one) for one in (1.98e9, 0.123456, 3.0, 150754820096, True)]
    assert told == ["1.98e9", "0.1235", "3", "1.50755e11", "yes"]
