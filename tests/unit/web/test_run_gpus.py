"""The GPUs of a run's ranks on its page: figures, what is not told, and how it looks on a desk, a phone and in the dark."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, expect

from mldebug.hardware.gpu.readings import GpuActivity, GpuProcess, GpuReading, NodeGpus
from mldebug.status.snapshot import Snapshot
from mldebug.web.run_gpus import NO_SAMPLING, UNKNOWN, run_gpus
from shared.web.browser import CHROMIUM, Tab, chromium, relayed, tab
from shared.web.snapshots import moving, snapshot
from shared.web.webpages import pages

GIB = 1 << 30
FULL = GpuReading(
    uuid="GPU-0", index=0, utilization_ratio=0.97, power_instant_watts=650.4, power_limit_watts=700.0, clock_hertz={"sm": 1.98e9, "graphics": 1.98e9},
    clock_max_hertz={"sm": 1.98e9}, clock_events=("gpu_idle",), activity=GpuActivity(window_seconds=30.0, sm_active_ratio=0.83), memory_total_bytes=141 * GIB,
    processes=(GpuProcess(pid=100, memory_bytes=90 * GIB), GpuProcess(pid=7, memory_bytes=GIB)),
)  # fmt: skip
HOT = replace(FULL, uuid="GPU-1", index=1, clock_events=("hw_thermal_slowdown", "sw_power_cap"), clock_hertz={"graphics": 9e8}, processes=())  # fmt: skip
OLD = GpuReading(uuid="GPU-2", index=2, utilization_ratio=1.0)


def observed(*gpus: GpuReading, guessed: tuple[int, ...] = ()) -> Snapshot:
    ranks = {rank: gpu.uuid for rank, gpu in enumerate(gpus)}
    run = replace(moving(), gpus=ranks, gpus_guessed=guessed)
    return snapshot(runs=(run,), gpus=NodeGpus(at=1.0, gpus=gpus))


def test_each_rank_has_the_figures_of_its_gpu() -> None:
    result = observed(FULL, HOT)
    first, second = run_gpus(result, result.runs[0]).rows
    assert (first.busy, first.at_work, first.power, first.clock) == ("97 %", "83 %", "650 of 700 W", "1,980 of 1,980 MHz")  # fmt: skip
    assert (first.kept_low, first.hot, first.memory) == ("no", False, "90 of 141 GiB")
    assert (second.kept_low, second.hot) == ("hw thermal slowdown, sw power cap", True)
    assert (second.clock, second.memory) == ("900 MHz", UNKNOWN)


def test_two_jobs_show_their_own_cards_and_on_a_shared_one_their_own_memory() -> None:
    shared = replace(FULL, processes=(GpuProcess(pid=100, memory_bytes=90 * GIB), GpuProcess(pid=200, memory_bytes=30 * GIB)))  # fmt: skip
    first = replace(moving("5c01", 2), ranks={0: 100, 1: 101}, gpus={0: "GPU-0", 1: "GPU-1"})
    second = replace(moving("7f3a", 1), ranks={0: 200}, gpus={0: "GPU-0"})
    result = snapshot(runs=(first, second), gpus=NodeGpus(at=1.0, gpus=(shared, HOT)))
    rows = {run.id: run_gpus(result, run).rows for run in result.runs}
    assert [(row.rank, row.gpu, row.memory) for row in rows["5c01"]] == [(0, "0", "90 of 141 GiB"), (1, "1", UNKNOWN)]  # fmt: skip
    assert [(row.rank, row.gpu, row.memory) for row in rows["7f3a"]] == [(0, "0", "30 of 141 GiB")]


def test_what_a_card_does_not_tell_is_said_to_be_missing() -> None:
    result = observed(OLD)
    found = run_gpus(result, result.runs[0])
    (one,) = found.rows
    assert (one.busy, one.at_work, one.power, one.clock, one.kept_low) == ("100 %", *(UNKNOWN,) * 4)
    assert found.note == NO_SAMPLING
    result = observed(FULL)
    assert run_gpus(result, result.runs[0]).note == ""


def test_a_guess_is_called_one_and_has_no_memory() -> None:
    result = observed(FULL, guessed=(0,))
    (one,) = run_gpus(result, result.runs[0]).rows
    assert (one.gpu, one.memory) == ("probably 0", UNKNOWN)


def test_a_run_without_known_gpus_has_no_table() -> None:
    snap = snapshot(runs=(moving(),))
    assert run_gpus(snap, snap.runs[0]).rows == ()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


def picture(given: Tab, name: str) -> None:
    """For whoever wants to look at it."""
    if folder := os.environ.get("MLDEBUG_TEST_IMAGES"):
        given.page.locator("#gpus").screenshot(path=f"{folder}/run-gpus-{name}.png")


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed")
@pytest.mark.parametrize(("phone", "dark"), [(False, False), (True, False), (False, True)], ids=["desk", "phone", "dark"])  # fmt: skip
def test_the_table_is_on_the_page_and_fits(browser: Browser, phone: bool, dark: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    try:
        with (
            pages(folder, observed(FULL, HOT, OLD)),
            relayed(folder) as (base, links),
            tab(browser, base, phone=phone, dark=dark) as opened,
        ):
            opened.open(links[-1])
            opened.open("/run?id=5c01")
            assert opened.fits()
            expect(opened.page.locator("#gpus")).to_contain_text("hw thermal slowdown")
            expect(opened.page.locator("#gpus")).to_contain_text("needs Hopper or newer")
            picture(opened, "phone" if phone else "dark" if dark else "desk")
    finally:
        shutil.rmtree(folder)
