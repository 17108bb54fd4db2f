"""Bursts and counters: the first is the root, nothing counts twice, and memory is bounded whatever the kernel says."""

import gc
import itertools
import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from mldebug.hardware.gpu.readings import GpuEvent
from mldebug.hardware.kernel_log.bursts import (
    KEPT,
    LONGEST,
    MAX_DISTINCT,
    OPEN,
    Burst,
    Folding,
)
from mldebug.hardware.kernel_log.bursts import OTHER as OTHER_XIDS
from mldebug.hardware.kernel_log.counts import (
    MAX_KEYS,
    OTHER,
    GpuLabel,
    KernelCounts,
    KernelEventCounter,
    named,
)
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from mldebug.hardware.kernel_log.parse import parse_event
from mldebug.hardware.kernel_log.records import parse_record
from mldebug.hardware.kernel_log.xids import Tier, xid_of_nvml
from shared.hardware.kernellines import fold

GPU, SECOND_GPU = "0000:3b:00.0", "0000:86:00.0"


def xid(number: int, at: float, device: str = GPU, **more: object) -> KernelEvent:
    made = {
        "kind": KernelEventKind.XID,
        "at": at,
        "xid": number,
        "device": device,
        "text": f"Xid {number}",
    }
    return KernelEvent(**(made | more))  # type: ignore[arg-type]


def nvml(number: int, at: float, device: str = GPU) -> KernelEvent:
    gpu_event = GpuEvent(at=at, uuid="GPU-1", index=0, bus_id=f"0000{device.upper()}", xid=number)
    event = xid_of_nvml(gpu_event)
    assert event is not None
    return event


def lost(at: float, device: str = GPU) -> KernelEvent:
    return KernelEvent(
        kind=KernelEventKind.GPU_LOST, at=at, device=device, xid=79, text="fallen off the bus"
    )


def roots(bursts: tuple[Burst, ...]) -> list[tuple[int | None, int]]:
    return [(one.root.xid, one.count) for one in bursts]


# --- the worst -----------------------------------------------------------------------------------


def worst(*events: KernelEvent) -> tuple[int, float, bool]:
    (burst,) = fold(events)
    assert burst.worst is not None
    assert burst.worst.tier is burst.tier
    return burst.worst.xid, burst.worst.at, burst.worst.trusted


def test_the_worst_line_of_a_burst_keeps_its_own_date() -> None:
    assert worst(xid(31, 10.0), xid(31, 14.0), xid(79, 18.0), xid(45, 18.1)) == (79, 18.0, True)
    assert worst(xid(79, 10.0), xid(31, 12.0), xid(79, 14.0)) == (79, 10.0, True)


def test_of_two_tellers_the_one_that_tells_earlier_dates_the_worst() -> None:
    assert worst(nvml(79, 14.0), xid(79, 10.0)) == (79, 10.0, True)
    assert worst(xid(79, 10.0), nvml(79, 14.0)) == (79, 10.0, True)


def test_the_kernels_word_goes_before_that_of_a_program() -> None:
    forged = xid(79, 10.0, origin=Origin.USER_SPACE)
    assert worst(xid(31, 9.0), forged) == (79, 10.0, False)
    assert worst(forged, xid(79, 12.0)) == (79, 12.0, True)


# --- folding -------------------------------------------------------------------------------------


def test_a_burst_of_one_gpu_is_one_event_and_the_first_is_its_root() -> None:
    (burst,) = fold([xid(31, 10.0, pid=7), xid(43, 10.5), xid(43, 11.0), xid(45, 12.0, pid=8)])

    assert (burst.root.xid, burst.root.at, burst.count) == (31, 10.0, 4)
    assert burst.xids == {31: 1, 43: 2, 45: 1}
    assert (burst.first_at, burst.last_at, burst.distinct) == (10.0, 12.0, 3)
    assert burst.pids == (7, 8)


def test_other_gpus_and_later_errors_are_other_events() -> None:
    bursts = fold([xid(31, 10.0), xid(31, 11.0, SECOND_GPU), xid(31, 10.0 + 5.1)])

    assert [(one.root.device, one.first_at) for one in bursts] == [(GPU, 10.0), (SECOND_GPU, 11.0), (GPU, 15.1)]  # fmt: skip


@pytest.mark.parametrize("consequence", [43, 45, 137, 39, 154])
def test_a_consequence_that_was_printed_first_is_no_root(consequence: int) -> None:
    (burst,) = fold([xid(consequence, 10.0), xid(95, 10.2), xid(31, 10.4)])

    assert burst.root.xid == 95
    assert (burst.first_at, list(burst.xids)) == (10.0, [consequence, 95, 31])


def test_a_consequence_alone_is_its_own_root() -> None:
    assert roots(fold([xid(45, 10.0), xid(43, 10.1)])) == [(45, 2)]


def test_the_worst_of_a_burst_is_known() -> None:
    tiers = [one.tier for one in fold([xid(31, 10.0), xid(79, 11.0), xid(45, 12.0), xid(31, 99.0)])]

    assert tiers == [Tier.FATAL, Tier.APPLICATION]


def test_a_storm_without_end_is_told_anew() -> None:
    bursts = fold([xid(95, float(second)) for second in range(int(LONGEST) + 11)])

    assert roots(bursts) == [(95, int(LONGEST) + 1), (95, 10)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_one_error_told_three_times_counts_once_in_any_order(order: tuple[int, ...]) -> None:
    cases = [xid(79, 10.0, pid=7), nvml(79, 10.4), lost(10.1)]
    counts, folding = KernelEventCounter(), Folding()
    for index in order:
        counts.add(cases[index], folding.add(cases[index]))
    (burst,) = folding.bursts()

    assert (burst.count, burst.xids, burst.root.pid) == (1, {79: 1}, 7)
    assert [(one.device, one.xid, one.count) for one in counts.now().xids] == [(GPU, 79, 1)]
    assert [(one.kind, one.count) for one in counts.now().kinds] == [(KernelEventKind.GPU_LOST, 1)]


@pytest.mark.parametrize("kind", ["double_bit_ecc", "recovery_action"])
def test_what_nvml_tells_beside_xids_is_none(kind: str) -> None:
    assert xid_of_nvml(GpuEvent(at=1.0, uuid="GPU-1", index=0, kind=kind)) is None


def test_what_only_nvml_tells_counts_too() -> None:
    cases = [nvml(31, 10.0), nvml(31, 10.1), xid(31, 10.2), nvml(43, 10.3), nvml(31, 50.0)]

    assert [one.xids for one in fold(cases)] == [{31: 2, 43: 1}, {31: 1}]


@pytest.mark.parametrize("late", [0.0, 4.0, 9.0, 29.0])
@pytest.mark.parametrize("first", ["kernel", "nvml"])
def test_nvml_may_tell_late_and_before_or_after_the_kernel(late: float, first: str) -> None:
    cases = [xid(79, 100.0, pid=7), nvml(79, 100.0 + late)]
    (burst,) = fold(cases if first == "kernel" else reversed(cases))

    assert (burst.count, burst.root.pid, burst.root.uuid) == (1, 7, "GPU-1")
    assert first == "nvml" or (burst.first_at, burst.last_at) == (100.0, 100.0)


def test_what_nvml_tells_late_of_two_bursts_is_found_in_both() -> None:
    bursts = fold([xid(31, 100.0), xid(31, 108.0), nvml(31, 110.0), nvml(31, 110.0), nvml(31, 110.0)])  # fmt: skip

    assert [one.count for one in bursts] == [1, 2]


def test_what_nvml_tells_later_than_it_can_is_another_error() -> None:
    assert [one.count for one in fold([xid(31, 100.0), nvml(31, 131.0)])] == [1, 1]


def test_a_lost_gpu_without_an_xid_counts_as_xid_79() -> None:
    counts, folding = KernelEventCounter(), Folding()
    counts.add(lost(10.0), folding.add(lost(10.0)))

    assert [(one.xid, one.count) for one in counts.now().xids] == [(79, 1)]
    assert folding.bursts()[0].tier is Tier.FATAL


def test_records_that_are_read_again_count_once() -> None:
    lines = [xid(31, 10.0 + number, sequence=number) for number in range(5)]
    folding = Folding()

    assert sum(folding.add(one) for one in lines) == 5
    assert sum(folding.add(one) for one in lines) == 0
    assert folding.bursts()[0].count == 5


def test_two_lines_about_one_kill_are_one_kill_that_knows_both() -> None:
    task = KernelEvent(
        kind=KernelEventKind.OOM_KILL, at=1.0, pid=7, scope="cgroup", group="/job", text="oom-kill:"
    )
    kill = KernelEvent(
        kind=KernelEventKind.OOM_KILL, at=1.1, pid=7, scope="cgroup", rss_bytes=4096, text="Killed"
    )
    other = KernelEvent(
        kind=KernelEventKind.OOM_KILL, at=1.2, pid=8, scope="cgroup", rss_bytes=1, text="Killed"
    )
    for item in ([task, kill, other], [kill, task, other]):
        first, second = fold(item)
        assert (first.root.group, first.root.rss_bytes, first.count) == ("/job", 4096, 1)
        assert second.root.pid == 8


def test_a_link_that_flaps_is_one_event_that_knows_how_it_stands() -> None:
    down, up = (
        KernelEvent(kind=kind, at=0.0, device="ib0")
        for kind in (KernelEventKind.LINK_DOWN, KernelEventKind.LINK_UP)
    )
    (burst,) = fold(
        msgspec.structs.replace(one, at=float(at)) for at, one in enumerate([down, up] * 3)
    )

    assert (burst.root.kind, burst.last_kind, burst.count) == (
        KernelEventKind.LINK_DOWN,
        KernelEventKind.LINK_UP,
        3,  # times that it went down
    )


def test_corrected_errors_count_by_their_number() -> None:
    event = KernelEvent(kind=KernelEventKind.MEMORY_CORRECTED, at=1.0, device="DIMM0", number=12)
    counts, folding = KernelEventCounter(), Folding()
    for _ in range(2):
        counts.add(event, folding.add(event))

    assert folding.bursts()[0].count == 24
    assert [(one.kind, one.count) for one in counts.now().kinds] == [
        (KernelEventKind.MEMORY_CORRECTED, 24)
    ]


def test_what_is_shown_is_safe() -> None:
    event = xid(31, 1.0, text="Xid \x1b[31m AKIAABCDEFGHIJKLMNOP", process="py\x07thon", pid=1)
    (burst,) = fold([event])

    assert "\x1b" not in burst.root.text
    assert "AKIA" not in burst.root.text
    assert burst.root.process == "python"


def test_bursts_are_made_anew_only_where_something_came() -> None:
    folding = Folding()
    folding.add(xid(31, 1.0))
    folding.add(xid(31, 1.1, SECOND_GPU))
    before = folding.bursts()
    folding.add(xid(43, 1.05))
    after = folding.bursts()

    assert after[1] is before[1]
    assert (before[0].count, after[0].count) == (1, 2)


def test_a_burst_survives_the_wire() -> None:
    (burst,) = fold([xid(31, 10.0, pid=7), *(xid(number, 10.5) for number in range(100))])
    assert OTHER_XIDS in burst.xids

    assert msgspec.json.decode(msgspec.json.encode(burst), type=Burst) == burst


# --- counters ------------------------------------------------------------------------------------


def test_counters_by_gpu_and_xid_with_the_time_of_the_last() -> None:
    counts = KernelEventCounter()
    for event in (
        xid(31, 10.0),
        xid(31, 30.0),
        xid(31, 20.0),
        xid(13, 5.0),
        xid(31, 7.0, SECOND_GPU),
    ):
        counts.add(event, 1)

    assert [(one.device, one.xid, one.count, one.last_at) for one in counts.now().xids] == [
        (GPU, 13, 1, 5.0),
        (GPU, 31, 3, 30.0),
        (SECOND_GPU, 31, 1, 7.0),
    ]


def test_counters_know_uuid_and_index_where_they_are_told() -> None:
    counts = KernelEventCounter()
    counts.add(xid(31, 1.0), 1)
    counts.add(xid(31, 1.0, SECOND_GPU), 1)
    found = named(counts.now(), {GPU: GpuLabel("GPU-1", 3)})

    assert [(one.uuid, one.gpu) for one in found.xids] == [("GPU-1", 3), ("", None)]


def test_an_sxid_is_counted_as_a_kind_and_not_as_an_xid() -> None:
    counts = KernelEventCounter()
    event = KernelEvent(kind=KernelEventKind.SXID, at=1.0, xid=24007, severity="fatal", device=GPU)
    counts.add(event, Folding().add(event))

    assert counts.now().xids == ()
    assert [one.kind for one in counts.now().kinds] == [KernelEventKind.SXID]


def test_counters_are_bounded_and_their_sum_is_exact() -> None:
    counts = KernelEventCounter()
    for number in range(3 * MAX_KEYS):
        counts.add(xid(number, 1.0, f"{number:04x}:00:00.0"), 1)
    found = counts.now().xids

    assert len(found) <= 2 * MAX_KEYS + 1
    assert sum(one.count for one in found) == 3 * MAX_KEYS
    assert any(one.device == OTHER and one.xid == 0 for one in found)


# --- floods --------------------------------------------------------------------------------------


PIECE = 1_000  # lines
MOST_TIMES = 4.0  # what reading the lines costs alone; measured: 2.1 with few texts, 1.5 with many
LINE = b"4,%d,%d,-;NVRM: Xid (PCI:0000:db:00): 95, pid=7194, name=python3, Uncontained: LTC TAG (0x%x,0x0). RST: Yes"


Lines = Callable[[int], bytes]


def read(line: bytes) -> KernelEvent:
    record = parse_record(line)
    assert record is not None
    event = parse_event(record, record.seconds)
    assert event is not None
    return event


def flood(lines: Lines, count: int) -> tuple[Folding, KernelCounts, float]:
    """Let so many lines through; with how many times the CPU it takes that the same lines cost if they are only read.

    Both run in turns, a small piece each, so that a machine that is slow for a while is slow for both.
    """
    folding, counts = Folding(), KernelEventCounter()
    took = bare = 0.0
    for first in range(0, count, PIECE):
        piece = [lines(number) for number in range(first, min(count, first + PIECE))]
        started = time.process_time()
        for line in piece:
            event = read(line)
            counts.add(event, folding.add(event))
        between = time.process_time()
        for line in piece:
            read(line)
        bare += time.process_time() - between
        took += between - started
    assert folding.bursts()
    return folding, counts.now(), took / bare


def held_after(lines: Lines, *counts: int) -> list[int]:
    """Bytes that folding and counting hold, with all that they were asked for, after so many lines each."""
    tracemalloc.start()
    try:
        folding, counted = Folding(), KernelEventCounter()
        held: list[int] = []
        for since, count in itertools.pairwise((0, *counts)):
            for number in range(since, count):
                event = read(lines(number))
                counted.add(event, folding.add(event))
            kept = folding.bursts(), counted.now()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
            del kept
        return held
    finally:
        tracemalloc.stop()


def storm(number: int) -> bytes:
    """29 texts again and again, each line with a time of its own."""
    text = (LINE % (0, 0, number % 29)).partition(b"-;")[2]
    return b"4,%d,%d,-;%s" % (number, 10**9 + number * 500, text)


def kills(number: int) -> bytes:
    """Each line another process."""
    return b"3,%d,%d,-;Out of memory: Killed process %d (python) total-vm:1kB" % (number, number, number + 2)  # fmt: skip


def many_gpus(number: int) -> bytes:
    """Each line another text, of GPUs and Xids without end."""
    return b"4,%d,%d,-;NVRM: Xid (PCI:%04x:%02x:00): %d, pid=%d, name=python3, 0x%x" % (
        number, number * 500, number // 256 % 65536, number % 256, number % 977, number % 32768, number,
    )  # fmt: skip


@pytest.mark.timeout(170)
@pytest.mark.parametrize("lines", [storm, kills, many_gpus])
def test_what_is_held_does_not_grow_with_the_lines(lines: Lines) -> None:
    """All of it: what folding, counting and the readers keep, not the answer alone."""
    some, more = held_after(lines, 5_000, 20_000)

    assert more - some < 64 << 10  # 8 bytes for each line would be 117 KiB at least
    assert more < 8 << 20


@pytest.mark.timeout(170)
@pytest.mark.parametrize("lines", [40_000, pytest.param(800_000, marks=pytest.mark.long)])
def test_a_storm_of_29_texts_is_one_event_with_an_exact_count(lines: int) -> None:
    """800,000 lines, as an operator met them (NVSentinel, issue 1120)."""
    folding, counts, times = flood(storm, lines)
    (burst,) = folding.bursts()

    assert (burst.count, burst.distinct, burst.xids) == (lines, 29, {95: lines})
    assert [(one.xid, one.count) for one in counts.xids] == [(95, lines)]
    assert times < MOST_TIMES


def test_a_flood_of_different_processes_is_bounded() -> None:
    """Each line another pid: nothing folds, so the oldest ones are forgotten; the counter stays exact."""
    folding, counts, times = flood(kills, 20_000)

    assert len(folding.bursts()) == OPEN + KEPT
    assert sum(one.count for one in counts.kinds) == 20_000
    assert times < MOST_TIMES


def test_a_flood_of_one_kind_does_not_push_out_another() -> None:
    folding = Folding()
    folding.add(xid(79, 1.0))
    for number in range(5_000):
        folding.add(KernelEvent(kind=KernelEventKind.CRASH, at=2.0, pid=number))

    assert folding.bursts()[0].root.xid == 79


def test_a_burst_that_goes_on_is_not_cut_by_a_flood_of_others() -> None:
    folding = Folding()
    for number in range(5 * OPEN):
        folding.add(xid(31, 1.0, f"{number:04x}:00:00.0"))
        if number % 10 == 0:
            folding.add(xid(95, 1.0))

    assert [one.count for one in folding.bursts() if one.root.device == GPU] == [5 * OPEN // 10]


def test_a_flood_of_different_texts_and_numbers_within_one_burst_is_bounded() -> None:
    (burst,) = fold(
        xid(number % 500, 1.0, text=f"text {number}", pid=number) for number in range(5_000)
    )

    assert (burst.count, burst.distinct) == (5_000, MAX_DISTINCT)
    assert len(burst.xids) <= 33
    assert sum(burst.xids.values()) == 5_000
    assert burst.xids[OTHER_XIDS] > 4_000
    assert len(burst.pids) <= 32
