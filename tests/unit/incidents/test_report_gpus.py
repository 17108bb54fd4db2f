"""The GPUs of the ranks as figures: looked at by the agent, carried by a capture, shown in a report."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from mldebug.capture.validation import wrong_numbers
from mldebug.core.model import GpuSample, NodeCapture, RankDevice
from mldebug.core.report_model import Report, Stall
from mldebug.diagnosis.diagnose import diagnose
from mldebug.hardware.gpu.fingerprint import Fingerprint, GpuFingerprint, GpuState
from mldebug.hardware.gpu.rank_gpus import KEPT, SPAN, Samples, rank_devices, with_looks
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import (
    GpuActivity,
    GpuProcess,
    GpuReading,
    GpuWatch,
    NodeGpus,
    NodeWatch,
)
from mldebug.incidents.report.build import build_report
from mldebug.incidents.report.hardware import MAX_LINES, gpu_lines, gpu_views
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import report_lines

TAKEN = msgspec.json.decode(
    (Path(__file__).parents[2] / "fixtures/h200/hangs/untouched-frozen.json").read_bytes(),
    type=NodeCapture,
)


def watch(at: float, *busy: float) -> NodeWatch:
    gpus = (
        GpuWatch(uuid=f"GPU-{index}", index=index, utilization_ratio=one, memory_utilization_ratio=0.0, power_watts=120.0 + index)
        for index, one in enumerate(busy)
    )  # fmt: skip
    return NodeWatch(at=at, gpus=tuple(gpus))


def on(rank: int, evidence: JoinEvidence = JoinEvidence.COMPUTE_PROCESS) -> RankGpu:
    return RankGpu(rank=rank, uuid=f"GPU-{rank}", index=rank, evidence=evidence)


def device(rank: int, busy: float = 1.0, **more: object) -> RankDevice:
    looks = tuple(
        GpuSample(at=TAKEN.taken_at - ago, busy_ratio=busy, memory_ratio=0.0, power_watts=125.0)
        for ago in (9.0, 6.0, 3.0, 0.0)
    )
    one = RankDevice(rank=rank, uuid=f"GPU-{rank}", index=rank, pids=(1,), usual_watts=700.0, samples=looks)  # fmt: skip
    return replace(one, **more)


def report(*devices: RankDevice) -> Report:
    taken = replace(TAKEN, gpus=devices)
    stall = Stall(timeout_seconds=15.0, why="configured")
    return build_report(
        diagnose([taken]), [taken], kind="stall", trigger="stall", detected_at=taken.taken_at,
        reported_at=taken.taken_at, stall=stall, versions={},
    )  # fmt: skip


# --- looks -----------------------------------------------------------------------------------------


def test_the_newest_looks_are_kept_and_none_that_is_old() -> None:
    known: Samples = {}
    for at in range(3 * KEPT):
        known = with_looks(known, watch(float(at), 1.0))
    assert [one.at for one in known["GPU-0"]] == [float(at) for at in range(2 * KEPT, 3 * KEPT)]
    later = with_looks(known, watch(3 * KEPT + SPAN, 0.5))
    assert [one.busy_ratio for one in later["GPU-0"]] == [0.5]


def test_one_look_counts_once_and_a_gpu_that_is_not_told_of_has_none() -> None:
    known = with_looks(with_looks({}, watch(1.0, 1.0, 0.0)), watch(1.0, 1.0))
    assert {uuid: len(looks) for uuid, looks in known.items()} == {"GPU-0": 1}
    assert with_looks(known, None) == {}


def test_what_a_driver_cannot_mean_is_not_told() -> None:
    odd = GpuWatch(uuid="GPU-0", index=0, utilization_ratio=41.0, memory_utilization_ratio=-1.0, power_watts=1e12)  # fmt: skip
    (look,) = with_looks({}, NodeWatch(at=1.0, gpus=(odd,)))["GPU-0"]
    assert look == GpuSample(at=1.0)


def test_a_rank_has_its_gpu_with_who_else_is_on_it_and_how_sure_that_is() -> None:
    samples = with_looks({}, watch(5.0, 1.0, 0.0))
    joined = RankGpuMap(ranks=(on(0), on(1, JoinEvidence.ENVIRONMENT)))
    processes = (GpuProcess(pid=71), GpuProcess(pid=72))
    read = GpuReading(uuid="GPU-0", index=0, processes=processes, activity=GpuActivity(window_seconds=1.0, sm_active_ratio=0.07))  # fmt: skip
    sliced = GpuReading(uuid="GPU-1", index=1, mig_mode=True)
    fingerprint = Fingerprint(at=5.0, gpus=(GpuFingerprint(uuid="GPU-0", index=0, rank=0, state=GpuState.COLLECTIVE_WAIT, usual_watts=700.0),))  # fmt: skip
    full = NodeGpus(at=4.0, gpus=(read, sliced))
    first, second = rank_devices(joined, samples, fingerprint, full)
    assert (first.pids, first.sure, first.sliced, first.state) == ((71, 72), True, False, "collective_wait")  # fmt: skip
    assert (first.sm_active_ratio, first.sm_read_at, first.usual_watts) == (0.07, 4.0, 700.0)
    assert first.sm_since == 3.0
    assert (second.sure, second.sliced, second.pids, second.sm_active_ratio) == (False, True, (), None)  # fmt: skip


def test_a_rank_whose_gpu_was_not_looked_at_is_left_out() -> None:
    assert rank_devices(RankGpuMap(ranks=(on(0), on(1))), with_looks({}, watch(5.0, 1.0)), None, None)[
        0
    ].rank == 0  # fmt: skip
    assert (
        rank_devices(RankGpuMap(ranks=(on(1),)), with_looks({}, watch(5.0, 1.0)), None, None) == ()
    )


# --- the report ------------------------------------------------------------------------------------


def test_each_gpu_is_a_row_and_those_alike_one_line() -> None:
    document = report(device(0), device(1, busy=0.0, state="never_arrived"))
    assert [(one.rank, one.looks, one.seconds, one.most_busy_ratio, one.memory_traffic) for one in document.gpus] == [
        (0, 4, 9.0, 1.0, False), (1, 4, 9.0, 0.0, False),
    ]  # fmt: skip
    assert gpu_lines(document.gpus) == (
        "rank 1: 0 % busy in 4 looks over 9 s, 125 W of usual 700 W",
        "rank 0: 100 % busy in 4 looks over 9 s, 125 W of usual 700 W, no memory traffic",
    )
    both = report(device(0), device(1))
    assert gpu_lines(both.gpus) == (
        "ranks 0-1: 100 % busy in 4 looks over 9 s, 125 W of usual 700 W, no memory traffic",
    )


def test_text_has_eighty_columns_and_the_page_has_the_same_lines() -> None:
    active = device(0, pids=(1, 2), sm_active_ratio=0.07)
    document = report(
        replace(active, sm_since=active.samples[-2].at), device(1, busy=0.0, sure=False)
    )
    lines = list(report_lines(document))
    assert max(map(len, lines)) <= 80
    at = lines.index("GPUs of the ranks")
    assert "".join(lines[at + 1 : at + 5]).split("- ")[1].startswith("rank 1: 0 % busy")
    page = render_html(document)
    assert all(line in page for line in gpu_lines(document.gpus))
    assert "7 % of the SMs active, 2 processes on it" in page
    assert "whether that GPU is its own is not sure" in page


def test_a_report_without_looks_has_no_such_part() -> None:
    document = report()
    assert document.gpus == ()
    assert "GPUs of the ranks" not in render_html(document)
    assert "GPUs of the ranks" not in list(report_lines(document))


def test_a_report_of_an_earlier_version_is_read_and_shown() -> None:
    old = json.loads(msgspec.json.encode(report(device(0))))
    del old["gpus"]
    assert msgspec.convert(old, Report).gpus == ()


# --- a node that lies ------------------------------------------------------------------------------


def test_many_kinds_of_gpus_do_not_fill_the_page() -> None:
    views = [replace(gpu_views([replace(TAKEN, gpus=(device(0),))])[0], rank=rank, processes=rank) for rank in range(5_000)]  # fmt: skip
    lines = gpu_lines(views)
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == f"{5_000 - MAX_LINES} more kinds in report.json"


def test_a_gpu_of_a_rank_that_is_not_there_and_a_second_one_are_left_out() -> None:
    document = report(device(0), device(0, busy=0.5), device(77), device(-3))
    assert [one.rank for one in document.gpus] == [0]


def test_words_of_another_node_are_shown_as_words() -> None:
    document = report(device(0, state="<script>\x1b[31m" + "x" * 9_000, index=10**30))
    page, lines = render_html(document), list(report_lines(document))
    assert "<script>\x1b" not in page
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("number", [1e300, -1e300])
def test_numbers_that_cannot_be_refuse_the_capture(number: float) -> None:
    taken = replace(TAKEN, gpus=(device(0, usual_watts=number),))
    assert wrong_numbers(taken) == "holds a number that cannot be"
    look = replace(device(0), samples=(GpuSample(at=number),))
    assert wrong_numbers(replace(TAKEN, gpus=(look,))) == "holds a number that cannot be"


def test_numbers_within_reach_that_make_no_sense_are_rendered() -> None:
    odd = replace(device(0), samples=(GpuSample(at=-1e15, busy_ratio=1e15, power_watts=-5.0), GpuSample(at=1e15)))  # fmt: skip
    assert len(gpu_lines(report(odd).gpus)) == 1


def test_a_share_of_sms_from_before_the_looks_is_not_told() -> None:
    old = device(0, sm_active_ratio=0.07)
    document = report(replace(old, sm_since=old.samples[0].at - 1.0))
    assert [one.sm_active_ratio for one in document.gpus] == [None]
