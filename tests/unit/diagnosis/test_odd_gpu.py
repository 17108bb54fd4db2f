"""All have called the same and nothing completes: the one GPU whose figures differ is named, and nobody where that is not clear.

Made of a rank that was recorded while it waited in a collective on an H200, under other numbers; and recorded on two H200s (`tests/gpu/wrecks.py`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mldebug.core.model import FlightRecord, NodeCapture, RankDevice
from mldebug.diagnosis.diagnose import diagnose
from mldebug.hardware.gpu.rank_gpus import rank_devices
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import GpuActivity, GpuReading, NodeGpus, RemappedRows
from unit.diagnosis.test_held_stream_many import made

RECORDED = Path(__file__).parents[2] / "fixtures" / "h200" / "wrecks"
Figures = Mapping[str, Any]

KERNEL: Figures = {"watts": 520.0, "sm_active_ratio": 0.99}
SICK: Figures = {"sick": ("rows of its memory wait for a reset to be replaced",)}
MANY: dict[str, tuple[Figures, str, str]] = {  # figures, verdict, confidence
    "a kernel on all multiprocessors": (KERNEL, "rank_busy", "medium"),
    "its power alone": ({"watts": 430.0}, "rank_busy", "low"),
    "its multiprocessors alone": ({"sm_active_ratio": 0.97}, "rank_busy", "low"),
    "memory traffic": ({"memory_ratio": 0.4}, "rank_busy", "low"),
    "half of the power": ({"watts": 60.0}, "gpu_fault", "low"),
    "a slow clock": ({"clock_ratio": 0.17}, "gpu_fault", "low"),
    "slowed by the hardware": ({"clock_ratio": 0.2, "slowed": ("hw_thermal_slowdown",)}, "gpu_fault", "medium"),
    "rows to be remapped": (SICK, "gpu_fault", "low"),
}  # fmt: skip
TWO = ("a kernel on all multiprocessors", "its power alone", "its multiprocessors alone", "memory traffic", "rows to be remapped")  # fmt: skip
USUAL: Figures = {
    "watts": 125.0,
    "usual_watts": 690.0,
    "sm_active_ratio": 0.12,
    "clock_ratio": 0.99,
}


def frozen(world: int, odd: Mapping[int, Figures]) -> list[NodeCapture]:
    """All ranks wait in one collective, and those that are odd have other figures."""
    return [with_figures(one, odd) for one in made(world, set())]


def with_figures(taken: NodeCapture, odd: Mapping[int, Figures]) -> NodeCapture:
    gpus = tuple(_device(one, {**USUAL, **odd.get(one.rank, {})}, taken.taken_at) for one in taken.gpus)  # fmt: skip
    return replace(taken, gpus=gpus)


def _device(one: RankDevice, figures: dict[str, Any], at: float) -> RankDevice:
    watts, memory = figures.pop("watts"), figures.pop("memory_ratio", 0.0)
    look = one.samples[-1]
    samples = tuple(
        replace(look, at=at - ago, busy_ratio=figures.get("busy", 1.0), memory_ratio=memory, power_watts=watts)
        for ago in (9.0, 6.0, 3.0, 0.0)
    )  # fmt: skip
    figures.pop("busy", None)
    return replace(
        one, samples=samples, state="", sm_since=at - 9, sm_read_at=at, read_at=at, **figures,
    )  # fmt: skip


def outline(captures: list[NodeCapture]) -> tuple[str, list[int | None], str]:
    found = diagnose(captures).diagnosis
    return str(found.verdict), [one.rank for one in found.culprits], str(found.confidence)


@pytest.mark.parametrize("case", MANY)
@pytest.mark.parametrize(("world", "odd"), [(4, 2), (8, 0), (16, 11)])
def test_the_one_that_differs_is_named(case: str, world: int, odd: int) -> None:
    figures, verdict, confidence = MANY[case]
    assert outline(frozen(world, {odd: figures})) == (verdict, [odd], confidence)


@pytest.mark.parametrize("case", MANY)
def test_of_two_only_what_no_waiting_gpu_does(case: str) -> None:
    figures, verdict, _ = MANY[case]
    found = outline(frozen(2, {1: figures}))
    slowed = case == "slowed by the hardware"
    assert found == ((verdict, [1], "low") if case in TWO or slowed else ("unknown", [], "low"))


def test_the_sentence_has_the_figures() -> None:
    found = diagnose(frozen(8, {5: KERNEL})).diagnosis
    assert found.summary == (
        "GPU 5 of rank 5 differs from its peers (520 W, 99 % of the multiprocessors, memory traffic 0 % of the time, clock at 99 %; theirs: 125 W,"
        " 12 % of the multiprocessors, memory traffic 0 % of the time, clock at 99 %): it runs a kernel that is no collective and does not end;"
        " all 8 have launched the same number of collectives (NCCL RAS), and nothing completes"
    )
    assert found.culprits[0].kind == "rank"
    assert diagnose(frozen(8, {5: SICK})).diagnosis.culprits[0].kind == "gpu"


SPREAD = {n: {"watts": watts} for n, watts in enumerate((121.0, 129.0, 124.0, 156.0, 118.0, 131.0, 127.0, 125.0))}  # fmt: skip


@pytest.mark.parametrize(
    ("world", "odd"),
    [
        (8, {}),
        (8, SPREAD),
        (8, {n: {"clock_ratio": 0.93 + n / 100} for n in range(8)}),
        (8, {2: KERNEL, 6: KERNEL}),
        (16, {2: KERNEL, 12: {"sick": SICK["sick"]}}),
        (4, {1: KERNEL, 2: {"watts": 200.0}}),
        (8, {3: {"busy": 0.5, **KERNEL}}),
        (8, dict.fromkeys(range(8), SICK)),
        (2, {0: {"watts": 70.0}}),
        (2, {0: {"watts": 430.0, "usual_watts": None}, 1: {"usual_watts": None}}),
        (8, {3: {"sm_active_ratio": 0.31}}),
        (8, {3: {"watts": 170.0}}),
        (8, {3: {"sm_active_ratio": None}}),
    ],
)
def test_nobody_is_named(world: int, odd: Mapping[int, Figures]) -> None:
    """A healthy spread, two that are odd, one that rests between, one of two that does less."""
    assert outline(frozen(world, odd))[1:] == ([], "low")


def test_a_gpu_that_others_use_too_proves_nothing() -> None:
    (taken,) = frozen(8, {5: KERNEL})
    gpus = tuple(replace(one, pids=(*one.pids, 4711)) if one.rank == 5 else one for one in taken.gpus)  # fmt: skip
    assert outline([replace(taken, gpus=gpus)])[1] == []


def test_who_has_launched_less_is_no_matter_of_gpus() -> None:
    (taken,) = frozen(8, {5: KERNEL})
    assert taken.ras is not None
    (one,) = taken.ras.communicators
    behind = replace(one.ranks[3], counts={name: many - 1 for name, many in one.ranks[3].counts.items()})  # fmt: skip
    rows = tuple(behind if row.rank == 3 else row for row in one.ranks)
    other = replace(one, ranks=rows, launched=None)
    assert outline([replace(taken, ras=replace(taken.ras, communicators=(other,)))])[1] == []


def test_without_anybody_who_has_counted_nobody_is_named() -> None:
    (taken,) = frozen(8, {5: KERNEL})
    assert outline([replace(taken, ras=None)])[1] == []
    silent = tuple(replace(one, flight=FlightRecord()) for one in taken.ranks)
    assert outline([replace(taken, ras=None, ranks=silent)])[1] == []


def test_figures_of_before_the_stall_do_not_count() -> None:
    (taken,) = frozen(8, {5: {"sm_active_ratio": 0.97, "clock_ratio": 0.2}})
    old = tuple(replace(one, sm_since=1.0, sm_read_at=2.0, read_at=2.0) for one in taken.gpus)
    assert outline([replace(taken, gpus=old)])[1] == []


def test_a_full_read_becomes_figures() -> None:
    reading = GpuReading(
        uuid="GPU-1", index=1, clock_hertz={"sm": 345e6}, clock_max_hertz={"sm": 1980e6},
        clock_events=("gpu_idle", "hw_slowdown"), remapped_rows=RemappedRows(pending=True, failed=True),
        retired_pages_pending=True, recovery_action="reset",
        activity=GpuActivity(window_seconds=5, nvlink_receive_bytes_per_second=1e9, nvlink_transmit_bytes_per_second=2e9),
    )  # fmt: skip
    rank = RankGpu(rank=1, uuid="GPU-1", index=1, evidence=JoinEvidence.COMPUTE_PROCESS)
    look = made(2, set())[0].gpus[1].samples
    (one,) = rank_devices(RankGpuMap(ranks=(rank,)), {"GPU-1": look}, None, NodeGpus(at=7.0, gpus=(reading,)))  # fmt: skip
    assert (one.read_at, one.slowed, one.link_bytes_per_second) == (7.0, ("hw_slowdown",), 3e9)
    assert one.clock_ratio == pytest.approx(345 / 1980)
    assert len(one.sick) == 4


def recorded(name: str) -> NodeCapture:
    return msgspec.json.decode((RECORDED / f"{name}.json").read_bytes(), type=NodeCapture)


@pytest.mark.parametrize("name", ["kernel", "hook-kernel"])
def test_a_kernel_that_did_not_end_on_one_of_two_gpus(name: str) -> None:
    taken = recorded(name)
    assert outline([taken]) == ("rank_busy", [1], "low")
    assert "it runs a kernel that is no collective and does not end" in diagnose([taken]).diagnosis.summary  # fmt: skip
    for rank in (0, 1):  # without the figures of one nobody is named
        part = replace(taken, gpus=tuple(one for one in taken.gpus if one.rank == rank))
        assert outline([part])[1] == []


def test_an_exchange_whose_parts_did_not_fit_names_nobody_of_two() -> None:
    assert outline([recorded("skew")])[1:] == ([], "low")
    found = diagnose([recorded("hook-skew")]).diagnosis
    assert (found.verdict, found.culprits) == ("collective_mismatch", ())
    assert "all_to_all of 33554432 elements of Float into 16777224" in found.summary
