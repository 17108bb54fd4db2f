"""Counters that wrap, start anew, glitch and lack a unit become totals that only grow."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.hardware.gpu.counters import MAX_BAD, WORD, Counters
from mldebug.hardware.gpu.readings import (
    EccCount,
    GpuActivity,
    GpuReading,
    LostGpu,
    NodeGpus,
    NvLink,
    RemappedRows,
)
from mldebug.hardware.gpu.total import (
    IDLE,
    MANY,
    MICROSECOND,
    NANOSECOND,
    OFTEN,
    PROOFS,
    STILL,
    TimeUnit,
    Total,
)

RECORDINGS = Path(__file__).parents[2] / "fixtures/h200"


def reads(counters: Counters, *gpus: GpuReading, every: float = 30.0) -> list[GpuReading]:
    """The same GPU, read again and again."""
    start = 1_795_000_000.0
    return [
        counters.take(NodeGpus(at=start + number * every, driver_version="580", gpus=(gpu,))).gpus[
            0
        ]
        for number, gpu in enumerate(gpus)
    ]


def gpu(**changes: object) -> GpuReading:
    made = GpuReading(uuid="GPU-1", index=0, pcie_generation_max=5, pcie_width_max=16)
    return msgspec.structs.replace(made, **changes)


# --- one counter ---------------------------------------------------------------------------------


def totals(*number: float, most: float = 1e18, wraps_at: int | None = None) -> list[float]:
    total = Total()
    return [total.add(one, most, wraps_at) for one in number]


def test_a_counter_that_only_grows_is_as_it_was_told() -> None:
    assert totals(5, 7, 7, 19) == [5, 7, 7, 19]


def test_a_counter_that_wraps_goes_on() -> None:
    assert totals(WORD - 10, 20, 25, wraps_at=WORD) == [WORD - 10, WORD + 20, WORD + 25]


def test_a_counter_that_starts_anew_goes_on_as_soon_as_it_moves() -> None:
    assert totals(1000, 1100, 3, 10) == [1000, 1100, 1100, 1110]


def test_one_that_fell_and_stands_still_has_started_anew_after_a_while() -> None:
    assert totals(7, *[2] * STILL)[-1] == 7
    assert totals(7, *[2] * (STILL + 1), 3)[-2:] == [9, 10]


@pytest.mark.parametrize("wrong", [(0,), (0, 0), (990,), (500, 0, 0), (0,) * STILL])
def test_wrong_reads_are_not_counted_twice(wrong: tuple[int, ...]) -> None:
    assert totals(1000, *wrong, 1010, 1020)[1:] == [1000] * len(wrong) + [1010, 1020]


def test_a_jump_that_cannot_be_is_left_out() -> None:
    total = Total()
    assert [total.add(one, 50) for one in (10, 20, 10**15, 10**15 + 5)] == [10, 20, 20, 25]
    assert total.dropped == 1


def test_a_jump_that_cannot_be_and_back_is_left_out() -> None:
    total = Total()
    assert [total.add(one, 50) for one in (10, 10**15, 12, 15, 10**15, 3, 4)] == [
        *(10, 10, 12, 15, 15, 15, 19)
    ]
    assert total.dropped == 2


def test_several_kinds_of_wrong_reads_in_a_row_count_nothing() -> None:
    assert totals(5, 0, 10**15, 0, 5, 6, most=50) == [5, 5, 5, 5, 5, 6]


@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=30), st.sampled_from([None, WORD]))
def test_a_total_never_falls(numbers: list[int], wraps_at: int | None) -> None:
    made = totals(*numbers, wraps_at=wraps_at)
    assert made == sorted(made)


# --- the unit of the clock event counters --------------------------------------------------------


HOT = "sw_thermal_slowdown"


def unit_after(*moved: int, name: str = HOT, seconds: float = 30) -> float | None:
    """One counter, over so many intervals."""
    unit = TimeUnit()
    for ticks in moved:
        unit.see([(name, ticks)], seconds)
    return unit.seconds


def test_a_counter_faster_than_microseconds_can_be_is_nanoseconds() -> None:
    assert unit_after(9_000_000_000) == NANOSECOND


def test_an_idle_gpu_proves_microseconds() -> None:
    idle = [29_000_000] * PROOFS
    assert unit_after(*idle, name=IDLE) == MICROSECOND
    assert unit_after(*idle[1:], name=IDLE) is None
    assert unit_after(*idle, name=HOT) is None


def test_many_intervals_prove_microseconds_where_some_are_long() -> None:
    often = [20_000_000] * OFTEN
    assert unit_after(*often, *[1_000] * (MANY - OFTEN)) == MICROSECOND
    assert unit_after(*often, *[1_000] * (MANY - OFTEN - 1)) is None


def test_several_counters_in_one_interval_are_one_proof() -> None:
    unit = TimeUnit()
    unit.see([(IDLE, 29_000_000)] * PROOFS + [(HOT, 20_000_000)] * MANY, 30)
    assert unit.seconds is None


def test_short_movements_prove_nothing() -> None:
    assert unit_after(*[9_000_000] * 2 * MANY) is None  # 9 s, or 9 ms


def test_what_stands_still_or_goes_back_proves_nothing() -> None:
    assert unit_after(0, -5, 2**62) is None
    assert unit_after(5, seconds=0) is None


def test_a_later_proof_of_nanoseconds_wins() -> None:
    idle = [29_000_000] * PROOFS
    assert unit_after(*idle, 20_000_000_000, *idle, name=IDLE) == NANOSECOND


def test_a_gpu_that_is_seldom_throttled_tells_no_time_before_the_unit_is_sure() -> None:
    """A job is on from the start: 1, 1, 20, 20 and 60 ms of throttling in nanoseconds, 30 s apart."""
    raw = [sum((0, 1, 1, 20, 20, 60, 1)[: n + 1]) * 10**6 for n in range(7)]
    result = reads(Counters(), *[gpu(clock_event_counters={HOT: one}) for one in raw])
    seconds = [one.clock_event_seconds.get(HOT) for one in result]
    assert seconds == [None] * 5 + [pytest.approx(0.102), pytest.approx(0.103)]


def test_a_jump_of_a_clock_event_counter_that_cannot_be_is_left_out() -> None:
    raw = [n * 10**10 for n in (0, 1, 2, 10**6)]
    result = reads(Counters(), *[gpu(clock_event_counters={HOT: one}) for one in raw])
    assert result[-1].clock_event_seconds == {HOT: 20.0}


def test_the_recorded_driver_counts_nanoseconds() -> None:
    """The GPU that idled in both hangs: the counter of low utilization moved by 24.2 s in 63.1 s."""
    raw, at = [], []
    for name in ("hang-sleep", "hang-desync"):
        gpu1 = json.loads((RECORDINGS / f"nvml-{name}.json").read_text())["gpu1"]
        raw.append(gpu1["fields"]["NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION"]["ull"])
        at.append(gpu1["Violation0"]["v"]["referenceTime"] / 1e6)
    assert unit_after(raw[1] - raw[0], name=IDLE, seconds=at[1] - at[0]) == NANOSECOND


def test_seconds_are_absent_until_the_unit_is_known_and_then_hold_all() -> None:
    results = [gpu(clock_event_counters={"sw_power_cap": n * 10**9}) for n in (5, 5, 17, 20)]
    seconds = [one.clock_event_seconds for one in reads(Counters(), *results)]
    assert seconds == [{}, {}, {"sw_power_cap": 17.0}, {"sw_power_cap": 20.0}]


def test_another_driver_proves_its_unit_anew() -> None:
    counters = Counters()
    reads(counters, *[gpu(clock_event_counters={"sync_boost": n * 10**10}) for n in (1, 2)])
    assert counters.unit == NANOSECOND
    counters.take(NodeGpus(at=1_795_001_000.0, driver_version="600", gpus=(gpu(),)))
    assert counters.unit is None


# --- a node --------------------------------------------------------------------------------------


def test_energy_goes_on_when_the_driver_is_loaded_anew() -> None:
    results = [gpu(energy_joules=joules) for joules in (90_000.0, 111_000.0, 500.0, 21_500.0)]
    assert [one.energy_joules for one in reads(Counters(), *results)] == [
        90_000.0,
        111_000.0,
        111_000.0,
        132_500.0,
    ]


def test_energy_that_no_gpu_can_use_is_left_out_and_counted() -> None:
    counters = Counters()
    results = [gpu(energy_joules=joules) for joules in (100.0, 1e12, 1e12 + 50)]
    assert [one.energy_joules for one in reads(counters, *results)] == [100.0, 100.0, 150.0]
    assert counters.dropped == 1


def test_a_value_that_is_missing_once_stays_missing_once() -> None:
    results = [gpu(pcie_replays=count) for count in (3, None, 8)]
    assert [one.pcie_replays for one in reads(Counters(), *results)] == [3, None, 8]


def test_every_kind_of_error_counter_is_made_monotone() -> None:
    def reported(count: int) -> GpuReading:
        errors = {"replay": count + 1, "crc_data": count + 2}
        ecc = EccCount(type="corrected", location="dram", scope="volatile", count=count + 3)
        rows = RemappedRows(corrected=count, uncorrected=count + 1)
        return gpu(
            nvlinks=(NvLink(link=4, errors=errors),),
            ecc=(ecc,),
            remapped_rows=rows,
            pcie_errors={"fatal": count},
        )

    last = reads(Counters(), reported(100), reported(0), reported(5))[-1]
    assert last.nvlinks[0].errors == {"replay": 107, "crc_data": 109}
    assert last.ecc[0].total == 111
    assert last.remapped_rows is not None
    assert (last.remapped_rows.corrected_total, last.remapped_rows.uncorrected_total) == (105, 107)
    assert last.pcie_errors == {"fatal": 105}


def bad_memory(*counts: int) -> list[GpuReading]:
    return reads(
        Counters(),
        *[
            gpu(ecc=(EccCount(type="uncorrected", location="total", scope="volatile", count=one),))
            for one in counts
        ],
    )


def test_memory_errors_stay_as_they_are_told_beside_their_total() -> None:
    values = [one.ecc[0] for one in bad_memory(5, 0, 1)]
    assert [one.count for one in values] == [5, 0, 1]
    assert [one.total for one in values] == [5, 5, 6]


def test_more_bad_memory_than_a_job_lives_through_is_left_out() -> None:
    found = [one.ecc[0].total for one in bad_memory(0, MAX_BAD, 2**32 - 2, 0, 1)]
    assert found == [0, MAX_BAD, MAX_BAD, MAX_BAD, MAX_BAD + 1]


def test_gpus_with_the_same_uuid_are_not_told_apart() -> None:
    twins = tuple(gpu(index=n, bus_id=f"0000:0{n}:00.0") for n in (0, 1))
    taken = Counters().take(NodeGpus(at=1.0, gpus=(*twins, gpu(uuid="GPU-2", index=2))))
    assert [one.uuid for one in taken.gpus] == ["GPU-2"]
    assert [(one.index, one.uuid, one.code) for one in taken.lost] == [(0, "", "same_uuid"), (1, "", "same_uuid")]  # fmt: skip


# --- errors of the links -------------------------------------------------------------------------


def link_reads(*numbers: tuple[int, bool], every: float = 30.0) -> list[NvLink]:
    """CRC errors of one link, and whether they were asked for."""
    links = [
        NvLink(link=4, errors={"crc_flit": count}, errors_read=read) for count, read in numbers
    ]
    result = reads(Counters(), *[gpu(nvlinks=(link,)) for link in links], every=every)
    return [one.nvlinks[0] for one in result]


def test_errors_of_a_link_grow_between_the_reads_that_asked_for_them() -> None:
    result = link_reads((0, True), (60, True), (60, False), (60, False), (300, True), (300, False))
    assert [one.grown_seconds for one in result] == [None, 30, 30, 30, 90, 90]
    assert [one.grown.get("crc_flit") for one in result] == [None, 60, 60, 60, 240, 240]
    assert [one.errors["crc_flit"] for one in result] == [0, 60, 60, 60, 300, 300]


def test_errors_of_a_link_that_were_wrong_once_did_not_grow() -> None:
    result = link_reads((500, True), (0, True), (0, False), (500, True), (2**60, True), (500, True))
    assert [one.grown for one in result] == [{}] * 6


def test_two_gpus_are_not_mixed_up_when_they_change_places() -> None:
    counters = Counters()
    one, two = gpu(energy_joules=10.0), gpu(uuid="GPU-2", energy_joules=7000.0)
    counters.take(NodeGpus(at=1.0, gpus=(one, two)))
    taken = counters.take(NodeGpus(at=31.0, gpus=(two, one)))
    assert [gpu.energy_joules for gpu in taken.gpus] == [7000.0, 10.0]


def test_a_gpu_that_is_lost_and_back_goes_on_and_one_that_is_gone_is_forgotten() -> None:
    counters = Counters()
    result = gpu(energy_joules=10.0)
    counters.take(NodeGpus(at=1.0, gpus=(result,)))
    lost = LostGpu(index=0, uuid="GPU-1", reason="lost")
    counters.take(NodeGpus(at=31.0, lost=(lost,)))
    back = msgspec.structs.replace(result, energy_joules=2.0)
    counters.take(NodeGpus(at=61.0, gpus=(back,)))
    on = msgspec.structs.replace(result, energy_joules=3.0)
    assert counters.take(NodeGpus(at=91.0, gpus=(on,))).gpus[0].energy_joules == 13.0
    counters.take(NodeGpus(at=92.0))
    assert counters.take(NodeGpus(at=121.0, gpus=(back,))).gpus[0].energy_joules == 2.0


# --- PCIe bytes ----------------------------------------------------------------------------------


def test_pcie_bytes_are_the_sum_of_the_averages() -> None:
    average = GpuActivity(
        window_seconds=30.0,
        pcie_receive_bytes_per_second=1e9,
        pcie_transmit_bytes_per_second=2e9,
    )
    cases = [gpu(pcie_receive_bytes=123), *[gpu(activity=average, pcie_receive_bytes=5)] * 2]
    pairs = [(one.pcie_receive_bytes, one.pcie_transmit_bytes) for one in reads(Counters(), *cases)]
    assert pairs == [
        (None, None),
        (30_000_000_000, 60_000_000_000),
        (60_000_000_000, 120_000_000_000),
    ]


def test_a_counter_of_32_bits_is_not_believed_over_a_long_time() -> None:
    results = [gpu(pcie_receive_bytes=count) for count in (10, 2000, 30)]
    assert [one.pcie_receive_bytes for one in reads(Counters(), *results)] == [None, None, None]


def test_a_counter_of_32_bits_is_counted_where_it_cannot_wrap_twice() -> None:
    results = [gpu(pcie_receive_bytes=count) for count in (WORD - 100, WORD - 50, 200, 300)]
    pcie_receive_bytes = [one.pcie_receive_bytes for one in reads(Counters(), *results, every=0.05)]
    assert pcie_receive_bytes == [None, 50, 300, 400]


def test_the_clock_of_the_node_may_go_back() -> None:
    counters = Counters()
    counters.take(NodeGpus(at=1000.0, gpus=(gpu(energy_joules=5.0),)))
    taken = counters.take(NodeGpus(at=900.0, gpus=(gpu(energy_joules=9.0),)))
    assert taken.gpus[0].energy_joules == 5.0
    taken = counters.take(NodeGpus(at=930.0, gpus=(gpu(energy_joules=11.0),)))
    assert taken.gpus[0].energy_joules == 7.0
