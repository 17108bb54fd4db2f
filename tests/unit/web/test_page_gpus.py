"""The page about GPUs: the words of `gpus list`, what is not well first, and why there is nothing to show."""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakenvml.library import FakeNvml
from mldebug.hardware.gpu.expected import GpuCount, KnownGpu, MissingGpu
from mldebug.hardware.gpu.readings import GpuProcess, LostGpu, NodeGpus, NodeWatch
from mldebug.hardware.health.model import ComponentHealth, HealthState
from mldebug.hardware.health.sentences import complaints
from mldebug.hardware.kernel_log.xids import xid_row
from mldebug.status.gpu_table import rows
from mldebug.status.gpu_view import of_agent
from mldebug.status.snapshot import Snapshot, SourceState
from mldebug.web import frame
from mldebug.web.page import PageRequest
from mldebug.web.pages.gpus import MOST, NO_GPU, NOT_YET, GpusPage, GpusPageData
from mldebug_agents.hardware.gpu.nvml.library import Library
from mldebug_agents.hardware.gpu.vendors import nvidia
from mldebug_agents.web.peer_credentials import PeerCredentials, view
from shared.web.pagedata import SOURCES, gpu, gpus, quiet
from shared.web.snapshots import AT
from shared.web.webtext import HOSTILE, text_of


def built(snapshot: Snapshot) -> GpusPageData:
    return GpusPage().build(PageRequest(snapshot=snapshot))


def page(snapshot: Snapshot) -> str:
    html = frame.render("gpus", PageRequest(snapshot=snapshot))
    assert html is not None
    return html


def test_every_cell_and_complaint_of_the_terminal_stands_in_the_page() -> None:
    result, text = of_agent(gpus()), text_of(page(gpus()))
    for row in rows(result):
        assert all(cell in text for cell in row if cell != "-"), row
    for line in complaints(result.health, result.names(), result.at):
        reason, _, todo = line.text.partition(": ")[2].partition(" → ")
        assert reason in text
        assert todo in text


def test_what_is_not_well_comes_first_and_says_what_to_do() -> None:
    shown = built(gpus())
    assert [one.index for one in shown.boards] == ["5", "1", "4", "0", "2", "3", "6", "7"]
    assert [one.css_class for one in shown.boards[:4]] == ["bad", "bad", "quiet", "good"]
    assert shown.lead == "7 GPUs: 1 unhealthy, 1 degraded, 5 healthy; 1 missing"
    assert shown.boards[0].complaints == ("GPU is lost, for 12 min 34 s",)
    assert shown.boards[1].complaints[0].endswith("→ drain the node and reset the GPU")
    facts = [(one.text, one.bad) for one in shown.boards[2].facts]
    assert ("clocks kept low: hw thermal slowdown", True) in facts
    assert ("clocks kept low: sw power cap", False) in facts


def test_who_computes_and_what_the_gpu_does_for_him() -> None:
    shown = built(gpus())
    assert shown.who == ("llama-7b (5c01): ranks 0-7 on GPUs 0-7",)
    assert (shown.boards[1].user, shown.boards[1].doing) == ("rank 1", "waits in a collective")
    assert shown.boards[0].doing == ""  # a GPU that is lost does nothing that anybody knows
    old = replace(gpus(), gpu_watch=NodeWatch(at=AT - 60))
    assert {one.doing for one in built(old).boards} == {""}


def test_what_could_not_be_read_is_a_dash_and_never_zero() -> None:
    bare = next(one for one in built(gpus()).boards if one.index == "7")
    assert [(one.words, one.ratio) for one in bare.meters if one.name != "memory"] == [("-", None)] * 3  # fmt: skip
    assert bare.unread == "not readable: temperature"
    assert "what keeps its clocks low cannot be read" in [one.text for one in bare.facts]
    assert not any("ECC" in one.text for one in bare.facts)


def test_xids_have_their_meaning_and_what_to_do_the_newest_first() -> None:
    first, second = built(gpus()).events
    assert first.sentence == "Xid 79 (GPU has fallen off the bus) on GPU 0000:6b:00.0, rank 5"
    assert (first.ago, first.css_class, first.advice) == ("12 min 34 s", "bad", xid_row(79).advice)
    assert (second.css_class, second.advice) == ("quiet", xid_row(31).advice)


def test_a_gpu_that_took_the_number_of_a_lost_one_is_not_taken_for_it() -> None:
    """Drivers count anew: what was GPU 1 is GPU 0 now."""
    here = gpu(0, uuid="GPU-b", bus_id="00000000:2B:00.0")
    away = KnownGpu(uuid="GPU-a", bus_id="00000000:1B:00.0", index=0)
    state = quiet(
        gpus=NodeGpus(at=AT, gpus=(here,)),
        gpu_count=GpuCount(present=1, expected=2, missing=(MissingGpu(gpu=away, since=AT, reason="gone"),)),
        health=(ComponentHealth(component="gpu_power", state=HealthState.HEALTHY, uuid="GPU-b", gpu=0),),
    )  # fmt: skip
    first, second = built(state).boards
    assert (first.bus, first.state, first.meters[0].words) == ("0000:1b:00.0", "missing", "-")
    assert (second.bus, second.state, second.meters[0].words) == ("0000:2b:00.0", "healthy", "100 %")  # fmt: skip


def test_the_recorded_h200s_are_shown_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    reader = nvidia.Nvidia(Library(fake.library))
    try:
        state = quiet(gpus=reader.full(), gpu_watch=reader.watch())
    finally:
        reader.close()
    shown = built(state)
    assert [one.state for one in shown.boards] == ["unknown", "unknown"]  # nobody has judged them
    meters = {one.name: one.words for one in shown.boards[0].meters}
    assert meters == {"busy": "86 %", "memory": "3/140 GiB", "power": "533/700 W", "heat": "49 °C"}
    assert "18 of 18 NVLinks up" in [one.text for one in shown.boards[0].facts]
    assert shown.boards[0].user == "pid 620"


# --- nothing to show -----------------------------------------------------------------------------


def sources(**changes: object) -> tuple[SourceState, ...]:
    return tuple(replace(one, **changes) if one.name == "gpus" else one for one in SOURCES)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, NO_GPU),
        ({"sources": sources(last_success=None)}, NOT_YET),
        ({"sources": ()}, NOT_YET),
        ({"sources": sources(stuck=True)}, "the driver does not answer"),
        ({"sources": sources(success=False, error="GpuError: version mismatch")}, "version mismatch"),
        ({"gpus_released_until": AT + 60}, "The agent has let go of the GPUs"),
    ],
)  # fmt: skip
def test_why_there_is_no_gpu_is_one_sentence(changes: dict[str, object], why: str) -> None:
    state = quiet(**changes)
    assert why in built(state).nothing
    assert why in text_of(page(state))
    assert built(state).lead == "No GPU to show"


def test_let_go_of_says_until_when_and_each_line_once() -> None:
    changed = replace(gpus(), gpus=None, gpu_watch=None, gpus_released_until=AT + 60, gpus_released_why="a reset")  # fmt: skip
    lines = [one.text for one in built(changed).notes]
    assert lines[0] == "it has let go of the GPUs for another 1 min: a reset"
    assert len(lines) == len(set(lines))


def test_a_stranger_sees_the_gpus_and_nothing_of_the_jobs_of_others() -> None:
    text = text_of(page(view(gpus(), PeerCredentials(pid=1, uid=54321), None)))
    for secret in ("llama-7b", "rank 1", "waits in a collective", "Xid"):
        assert secret not in text.replace("Xids and the like", ""), secret
    assert "2 uncorrected ECC errors" in text


# --- bad input -----------------------------------------------------------------------------------


def test_hostile_names_are_text() -> None:
    one = gpu(0, name=HOSTILE, bus_id=HOSTILE, clock_events=(HOSTILE,), processes=(GpuProcess(pid=1),))  # fmt: skip
    lost = LostGpu(index=1, uuid=HOSTILE, bus_id=HOSTILE, reason=HOSTILE)
    health = (ComponentHealth(component=HOSTILE, state=HealthState.UNHEALTHY, reason=HOSTILE, uuid="GPU-0", gpu=0),)  # fmt: skip
    state = quiet(gpus=NodeGpus(at=AT, driver_version=HOSTILE, gpus=(one,), lost=(lost,)), health=health)  # fmt: skip
    html = page(state)
    assert "<img" not in html
    assert "\u202e" not in html


def test_figures_that_cannot_be_break_nothing() -> None:
    nan = float("nan")
    odd = gpu(0, utilization_ratio=nan, power_instant_watts=float("inf"), temperature_celsius=-5.0, memory_total_bytes=0, nvlinks=())  # fmt: skip
    assert {each.ratio for each in built(quiet(gpus=NodeGpus(at=AT, gpus=(odd,)))).boards[0].meters} == {None}  # fmt: skip
    page(quiet(gpus=NodeGpus(at=AT, gpus=(odd,))))


def test_many_gpus_are_bounded_and_counted() -> None:
    many = tuple(gpu(one, bus_id=f"{one:08x}:1B:00.0") for one in range(MOST + 3))
    state = quiet(gpus=NodeGpus(at=AT, gpus=many))
    page(state)
    began = time.process_time()
    html = page(state)
    assert time.process_time() - began < 1.0
    assert html.count("<article") == MOST
    assert "3 more GPUs" in html
