"""Every rule of a GPU's health, with a value just under and just over its limit, and with no value at all."""

from typing import Any

import msgspec
import pytest

from mldebug.core.errors import ConfigError
from mldebug.core.yaml_reader import parse
from mldebug.hardware.gpu.readings import EccCount, GpuReading, NvLink, RemappedRows
from mldebug.hardware.health.gpu_rules import RULES, gpu_health
from mldebug.hardware.health.model import (
    ComponentHealth,
    HealthState,
    SuggestedAction,
    bad,
    combine,
    instructions,
    unread,
    worst_of,
)
from mldebug.hardware.health.thresholds import FILE, Thresholds

LIMITS = Thresholds()
MINUTE = 60.0

HEALTHY: dict[str, Any] = {
    "ecc_mode": True,
    "ecc": (
        EccCount(type="uncorrected", location="total", scope="volatile", count=0),
        EccCount(type="uncorrected", location="sram", scope="aggregate", count=4),
        EccCount(type="corrected", location="dram", scope="volatile", count=20_000_000),
        EccCount(type="corrected", location="sram", scope="volatile", count=10_000),
    ),
    "remapped_rows": RemappedRows(corrected=3, uncorrected=511, pending=False, failed=False, banks={"max": 2559, "none": 0}),
    "retired_pages": {"corrected": 47, "uncorrected": 15},
    "retired_pages_pending": False,
    "temperature_celsius": 60.0,
    "temperature_margin_celsius": 3.1,
    "memory_temperature_celsius": 94.0,
    "temperature_limits_celsius": {"slowdown": 89.0, "memory_max": 95.0},
    "power_limit_watts": 560.0,
    "power_limit_default_watts": 700.0,
    "clock_events": ("sw_power_cap",),
    "clock_event_seconds": {"hw_thermal_slowdown": 10.0, "hw_power_brake_slowdown": 1.0},
    "utilization_ratio": 0.9,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_replays": 1000,
    "nvlinks": tuple(NvLink(link=n, up=True, errors={"recovery": 7, "replay": 9, "crc_flit": 100, "crc_data": 5}, grown_seconds=MINUTE) for n in range(18)),
    "recovery_action": "none",
    "persistence_mode": True,
}  # fmt: skip

TWICE = (
    *("ecc", "remapped_rows", "retired_pages"),
    *("temperature_celsius", "memory_temperature_celsius"),
)  # what two reads must agree about


def reading(**values: Any) -> GpuReading:
    """The margin was answered twice alike, unless a test says otherwise."""
    facts = {**HEALTHY, **values}
    facts.setdefault("temperature_margin_before_celsius", facts["temperature_margin_celsius"])
    return GpuReading(uuid="GPU-1", index=3, **facts)


def judged(component: str, now: GpuReading, before: GpuReading | None = None, seconds: float = MINUTE, limits: Thresholds = LIMITS) -> ComponentHealth:  # fmt: skip
    """One component. Without `before` the reading before is a healthy one, but that it says the same of memory and heat."""
    same = {name: getattr(now, name) for name in TWICE}
    every = gpu_health(now, before or reading(**same), seconds, limits)
    return next(one for one in every if one.component == component)


def ecc(kind: str, location: str, scope: str, count: int) -> dict[str, Any]:
    def change(one: EccCount) -> EccCount:
        same = (one.type, one.location, one.scope) == (kind, location, scope)
        return msgspec.structs.replace(one, count=count) if same else one

    return {"ecc": tuple(map(change, HEALTHY["ecc"]))}


def rows(**values: Any) -> dict[str, Any]:
    return {"remapped_rows": msgspec.structs.replace(HEALTHY["remapped_rows"], **values)}


def links(kind: str = "", more: int = 0, down: tuple[int, ...] = (), seconds: float = MINUTE) -> dict[str, Any]:  # fmt: skip
    """So many more errors on link 5 since it was asked last, or links that are down."""

    def change(one: NvLink) -> NvLink:
        grown = {kind: more} if kind and one.link == 5 else {}
        return msgspec.structs.replace(
            one, grown=grown, grown_seconds=seconds, up=one.link not in down
        )

    return {"nvlinks": tuple(map(change, HEALTHY["nvlinks"]))}


def test_a_healthy_gpu_is_healthy_in_every_component() -> None:
    every = gpu_health(reading(), reading(), MINUTE, LIMITS)

    assert {one.component: one.state for one in every} == dict.fromkeys(RULES, HealthState.HEALTHY)
    assert instructions(every) == ()


def test_a_gpu_that_tells_nothing_is_unknown_in_every_component() -> None:
    bare = GpuReading(uuid="GPU-1", index=3)
    every = gpu_health(bare, bare, MINUTE, LIMITS)

    assert {one.state for one in every} == {HealthState.UNKNOWN}
    assert {one.reason_code for one in every} == {"not_readable"}
    assert all(one.reason.startswith("not readable: ") for one in every)


BAD, POOR = HealthState.UNHEALTHY, HealthState.DEGRADED
OVER: list[tuple[str, dict[str, Any], HealthState, str, SuggestedAction]] = [
    # component, the value just over its limit (HEALTHY holds those just under), state, code, action
    ("gpu_ecc", ecc("uncorrected", "total", "volatile", 1), BAD, "ecc_uncorrected_total_volatile", SuggestedAction.RESET),
    ("gpu_ecc", ecc("uncorrected", "sram", "aggregate", 5), BAD, "ecc_uncorrected_sram_aggregate", SuggestedAction.REPLACE),
    ("gpu_ecc", ecc("corrected", "dram", "volatile", 20_000_001), POOR, "ecc_corrected_dram_volatile", SuggestedAction.WATCH),
    ("gpu_ecc", ecc("corrected", "sram", "volatile", 10_001), POOR, "ecc_corrected_sram_volatile", SuggestedAction.WATCH),
    ("gpu_ecc", {"ecc_mode": False}, POOR, "ecc_off", SuggestedAction.CHECK_SETTINGS),
    ("gpu_remapped_rows", rows(failed=True), BAD, "row_remap_failed", SuggestedAction.REPLACE),
    ("gpu_remapped_rows", rows(pending=True), POOR, "row_remap_pending", SuggestedAction.RESET_WHEN_IDLE),
    ("gpu_remapped_rows", rows(uncorrected=512), BAD, "row_remaps_uncorrected", SuggestedAction.REPLACE),
    ("gpu_remapped_rows", rows(banks={"none": 1}), POOR, "row_remap_no_spare", SuggestedAction.WATCH),
    ("gpu_retired_pages", {"retired_pages": {"corrected": 48, "uncorrected": 15}}, BAD, "retired_pages", SuggestedAction.REPLACE),
    ("gpu_retired_pages", {"retired_pages": {"corrected": 0, "uncorrected": 16}}, POOR, "retired_pages_uncorrected", SuggestedAction.CHECK_HARDWARE),
    ("gpu_retired_pages", {"retired_pages_pending": True}, POOR, "page_retirement_pending", SuggestedAction.RESET_WHEN_IDLE),
    ("gpu_temperature", {"temperature_margin_celsius": 3.0}, POOR, "hot", SuggestedAction.CHECK_COOLING),
    ("gpu_temperature", {"temperature_margin_celsius": 0.1}, POOR, "hot", SuggestedAction.CHECK_COOLING),
    ("gpu_temperature", {"temperature_margin_celsius": 0.0}, BAD, "too_hot", SuggestedAction.CHECK_COOLING),
    ("gpu_temperature", {"memory_temperature_celsius": 95.0}, BAD, "memory_too_hot", SuggestedAction.CHECK_COOLING),
    ("gpu_temperature", {"temperature_margin_celsius": None, "temperature_celsius": 89.0}, BAD, "gpu_too_hot", SuggestedAction.CHECK_COOLING),
    ("gpu_power", {"power_limit_watts": 559.0}, POOR, "power_limit_low", SuggestedAction.CHECK_SETTINGS),
    ("gpu_power", {"clock_events": ("hw_power_brake_slowdown",)}, POOR, "power_brake", SuggestedAction.CHECK_HARDWARE),
    ("gpu_clocks", {"clock_event_seconds": {"hw_thermal_slowdown": 13.1}}, POOR, "hw_thermal_slowdown", SuggestedAction.CHECK_COOLING),
    ("gpu_clocks", {"clock_event_seconds": {"hw_thermal_slowdown": 40.1}}, BAD, "hw_thermal_slowdown", SuggestedAction.CHECK_COOLING),
    ("gpu_clocks", {"clock_event_seconds": {"hw_power_brake_slowdown": 5.0}}, POOR, "hw_power_brake_slowdown", SuggestedAction.CHECK_HARDWARE),
    ("gpu_pcie", {"pcie_width": 8}, POOR, "pcie_width", SuggestedAction.CHECK_HARDWARE),
    ("gpu_pcie", {"pcie_generation": 4}, POOR, "pcie_generation", SuggestedAction.CHECK_HARDWARE),
    ("gpu_pcie", {"pcie_replays": 1032}, POOR, "pcie_replays", SuggestedAction.CHECK_HARDWARE),
    ("gpu_nvlink", links(down=(4,)), BAD, "nvlink_down", SuggestedAction.CHECK_HARDWARE),
    ("gpu_nvlink", links("recovery", 1), BAD, "nvlink_recovery", SuggestedAction.RESET),
    ("gpu_nvlink", links("replay", 1), POOR, "nvlink_replay", SuggestedAction.WATCH),
    ("gpu_nvlink", links("crc_flit", 60), POOR, "nvlink_crc", SuggestedAction.WATCH),
    ("gpu_nvlink", links("crc_flit", 6000), BAD, "nvlink_crc", SuggestedAction.CHECK_HARDWARE),
    ("gpu_recovery", {"recovery_action": "reset"}, BAD, "recovery_reset", SuggestedAction.RESET),
    ("gpu_recovery", {"recovery_action": "drain_and_reset"}, BAD, "recovery_drain_and_reset", SuggestedAction.RESET),
    ("gpu_recovery", {"recovery_action": "bus_reset"}, BAD, "recovery_bus_reset", SuggestedAction.RESET),
    ("gpu_recovery", {"recovery_action": "reboot"}, BAD, "recovery_reboot", SuggestedAction.REBOOT),
    ("gpu_recovery", {"recovery_action": "system_reboot"}, BAD, "recovery_system_reboot", SuggestedAction.REBOOT),
    ("gpu_recovery", {"recovery_action": "drain_p2p"}, POOR, "recovery_drain_p2p", SuggestedAction.RESET_WHEN_IDLE),
    ("gpu_recovery", {"recovery_action": "recover_imex"}, POOR, "recovery_recover_imex", SuggestedAction.CHECK_SETTINGS),
    ("gpu_driver", {"persistence_mode": False}, POOR, "persistence_off", SuggestedAction.CHECK_SETTINGS),
]  # fmt: skip


@pytest.mark.parametrize(("component", "values", "state", "code", "action"), OVER, ids=str)
def test_just_over_the_limit(
    component: str, values: dict[str, Any], state: HealthState, code: str, action: SuggestedAction
) -> None:
    found = judged(component, reading(**values))

    assert (found.state, found.reason_code, found.action) == (state, code, action)
    assert (found.uuid, found.gpu) == ("GPU-1", 3)
    assert found.reason
    others = gpu_health(reading(**values), reading(), MINUTE, LIMITS)
    wrong = {one.component for one in others if one.state in (BAD, POOR)}
    assert wrong - {component} <= ({"gpu_clocks"} if component == "gpu_power" else set())


UNDER: list[tuple[str, dict[str, Any]]] = [
    # what HEALTHY does not hold itself: the counters, one error less
    ("gpu_clocks", {"clock_event_seconds": {"hw_thermal_slowdown": 13.0}}),
    ("gpu_clocks", {"clock_events": ("gpu_idle", "sw_power_cap"), "clock_event_seconds": {}}),
    ("gpu_pcie", {"pcie_replays": 1031}),  # 16 lanes of generation 5: 31 a minute
    ("gpu_pcie", {"pcie_generation": 1, "utilization_ratio": 0.49}),  # it saves power
    ("gpu_nvlink", links("crc_flit", 59)),
    ("gpu_nvlink", links("crc_data", 100_000)),  # grows on healthy links
    ("gpu_temperature", {"temperature_margin_celsius": None, "temperature_celsius": 88.9}),
]


@pytest.mark.parametrize(("component", "values"), UNDER, ids=str)
def test_just_under_the_limit(component: str, values: dict[str, Any]) -> None:
    assert judged(component, reading(**values)).state is HealthState.HEALTHY


NOTHING: list[tuple[str, dict[str, Any]]] = [
    ("gpu_ecc", {"ecc": ()}),
    ("gpu_remapped_rows", {"remapped_rows": None}),
    ("gpu_remapped_rows", {"remapped_rows": RemappedRows()}),
    ("gpu_retired_pages", {"retired_pages": {}, "retired_pages_pending": None}),
    ("gpu_temperature", {"temperature_margin_celsius": None, "temperature_limits_celsius": {}, "memory_temperature_celsius": None}),
    ("gpu_power", {"power_limit_watts": None, "clock_events": None}),
    ("gpu_clocks", {"clock_events": None, "clock_event_seconds": {}}),
    ("gpu_pcie", {"pcie_width": None, "pcie_generation": None, "pcie_replays": None}),
    ("gpu_nvlink", {"nvlinks": ()}),
    ("gpu_nvlink", {"nvlinks": tuple(NvLink(link=n) for n in range(18))}),
    ("gpu_recovery", {"recovery_action": None}),
    ("gpu_recovery", {"recovery_action": "unknown"}),
    ("gpu_driver", {"persistence_mode": None}),
]  # fmt: skip


@pytest.mark.parametrize(("component", "values"), NOTHING, ids=str)
def test_what_cannot_be_read_is_unknown_and_never_healthy(
    component: str, values: dict[str, Any]
) -> None:
    found = judged(component, reading(**values))

    assert (found.state, found.action) == (HealthState.UNKNOWN, SuggestedAction.NONE)


def test_what_cannot_be_read_beside_what_is_fine_is_named() -> None:
    found = judged("gpu_pcie", reading(pcie_replays=None))

    assert found.state is HealthState.HEALTHY
    assert found.reason == "not readable: PCIe replays over time"


# --- rates need two readings ---------------------------------------------------------------------------


def test_a_rate_is_unknown_at_the_first_reading() -> None:
    every = {one.component: one for one in gpu_health(reading(), None, 0.0, LIMITS)}

    assert every["gpu_clocks"].state is HealthState.UNKNOWN
    assert "replays" in every["gpu_pcie"].reason
    assert every["gpu_ecc"].state is HealthState.HEALTHY


@pytest.mark.parametrize("component", ["gpu_clocks", "gpu_pcie", "gpu_nvlink"])
def test_a_counter_that_began_anew_is_no_error(component: str) -> None:
    """A driver that was loaded anew counts from 0."""
    anew = reading(
        clock_event_seconds={"hw_thermal_slowdown": 0.0},
        pcie_replays=0,
        nvlinks=tuple(
            NvLink(link=n, up=True, errors=dict.fromkeys(("recovery", "replay", "crc_flit"), 0)) for n in range(18)
        ),
    )  # fmt: skip

    assert judged(component, anew).state in (HealthState.HEALTHY, HealthState.UNKNOWN)


def test_the_same_growth_over_a_longer_time_is_fine() -> None:
    assert judged("gpu_pcie", reading(pcie_replays=1100)).state is POOR
    assert judged("gpu_pcie", reading(pcie_replays=1100), seconds=600).state is HealthState.HEALTHY
    assert judged("gpu_nvlink", reading(**links("crc_flit", 90))).state is POOR
    assert (
        judged("gpu_nvlink", reading(**links("crc_flit", 90, seconds=600))).state
        is HealthState.HEALTHY
    )


@pytest.mark.parametrize(("generation", "width", "a_minute"), [(1, 16, 3), (3, 8, 4), (4, 16, 16), (6, 16, 62), (7, 16, 62)])  # fmt: skip
def test_replays_by_generation_and_width(generation: int, width: int, a_minute: int) -> None:
    def after(more: int) -> HealthState:
        now = reading(pcie_replays=1000 + more, pcie_generation=generation, pcie_generation_max=generation, pcie_width=width, pcie_width_max=width)  # fmt: skip
        return judged("gpu_pcie", now).state

    assert (after(a_minute), after(a_minute + 1)) == (HealthState.HEALTHY, HealthState.DEGRADED)


def test_without_counters_two_reads_with_the_same_reason_count() -> None:
    hot = reading(clock_event_seconds={}, clock_events=("sw_thermal_slowdown",))
    calm = reading(clock_event_seconds={}, clock_events=())

    assert judged("gpu_clocks", hot, calm).state is HealthState.HEALTHY
    assert judged("gpu_clocks", hot, hot).reason_code == "sw_thermal_slowdown"


def test_a_board_without_links_is_unknown_and_one_that_lost_all_is_not() -> None:
    dark = reading(**links(down=tuple(range(18))))

    assert judged("gpu_nvlink", dark, dark).state is HealthState.UNKNOWN
    assert judged("gpu_nvlink", dark, reading()).reason_code == "nvlink_down"


def test_links_that_were_never_up_are_not_used_on_this_board() -> None:
    unused = reading(**links(down=tuple(range(12, 18))))

    assert judged("gpu_nvlink", unused, unused).state is HealthState.HEALTHY


def test_a_link_that_was_up_once_is_missed_for_as_long_as_it_is_down() -> None:
    dark = reading(**links(down=(3, *range(12, 18))))
    found = {one.component: one for one in gpu_health(dark, dark, MINUTE, LIMITS, range(12))}

    assert found["gpu_nvlink"].state is HealthState.UNHEALTHY
    assert found["gpu_nvlink"].reason == "1 of 12 NVLinks are down (3)"


@pytest.mark.parametrize(
    ("limit", "state"), [(None, HealthState.HEALTHY), (2, HealthState.HEALTHY), (1, BAD)]
)
def test_how_many_links_may_be_down_can_be_set(limit: int | None, state: HealthState) -> None:
    dark = reading(**links(down=(3, 4)))

    assert judged("gpu_nvlink", dark, limits=Thresholds(nvlink_down=limit)).state is state


def test_errors_of_a_link_count_over_the_time_between_its_own_reads() -> None:
    """Each link is asked at another moment: 0.5 and 0.6 errors a second make 1.1."""
    at = [NvLink(link=0, up=True, errors={"crc_flit": 9}, grown={"crc_flit": 300}, grown_seconds=600),
          NvLink(link=1, up=True, errors={"crc_flit": 9}, grown={"crc_flit": 36}, grown_seconds=60),
          NvLink(link=2, up=True, errors={"crc_flit": 9})]  # fmt: skip
    found = judged("gpu_nvlink", reading(nvlinks=tuple(at)))

    assert (found.state, found.reason) == (HealthState.DEGRADED, "1.1 NVLink CRC errors a second")
    once = judged("gpu_nvlink", reading(nvlinks=tuple(at[2:])))
    assert "crc_flit errors over time" in once.reason


# --- one wrong read condemns nobody ---------------------------------------------------------------------


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("gpu_ecc", ecc("uncorrected", "total", "volatile", 2**32 - 2)),
    ("gpu_ecc", ecc("uncorrected", "sram", "aggregate", 2**32 - 2)),
    ("gpu_remapped_rows", rows(uncorrected=2**32 - 2)),
    ("gpu_remapped_rows", rows(failed=True)),
    ("gpu_remapped_rows", rows(banks={"none": 9})),
    ("gpu_retired_pages", {"retired_pages": {"corrected": 999, "uncorrected": 999}}),
]


@pytest.mark.parametrize(("component", "values"), WRONG, ids=str)
def test_what_only_one_of_two_reads_says_of_the_memory_is_not_believed(
    component: str, values: dict[str, Any]
) -> None:
    wrong = reading(**values)

    assert judged(component, wrong, reading()).state is HealthState.HEALTHY
    assert judged(component, reading(), wrong).state is HealthState.HEALTHY
    assert judged(component, wrong, wrong).state in (BAD, POOR)
    alone = {one.component: one for one in gpu_health(wrong, None, 0.0, LIMITS)}
    assert alone[component].state in (BAD, POOR)


def test_one_answer_about_the_margin_condemns_nobody_however_long_it_is_remembered() -> None:
    def state(now: float, before: float | None) -> HealthState:
        told_so = reading(temperature_margin_celsius=now, temperature_margin_before_celsius=before)
        return judged("gpu_temperature", told_so, told_so).state

    assert state(0.0, 30.0) is HealthState.HEALTHY
    assert state(30.0, 0.0) is HealthState.HEALTHY
    assert state(0.0, 2.0) is POOR
    assert state(0.0, 0.0) is BAD
    assert state(0.0, None) is HealthState.HEALTHY  # by the temperature and its limit


def test_one_bad_answer_about_the_margin_where_nothing_else_is_told_is_unknown() -> None:
    told_so = reading(
        temperature_margin_celsius=0.0,
        temperature_margin_before_celsius=None,
        temperature_celsius=None,
        temperature_limits_celsius={},
        memory_temperature_celsius=None,
    )
    assert judged("gpu_temperature", told_so).state is HealthState.UNKNOWN


@pytest.mark.parametrize(
    "values",
    [{"memory_temperature_celsius": 99.0}, {"temperature_margin_celsius": None, "temperature_celsius": 99.0}],
    ids=str,
)  # fmt: skip
def test_a_temperature_that_only_one_of_two_reads_tells_is_not_believed(
    values: dict[str, Any],
) -> None:
    hot = reading(**values)

    assert judged("gpu_temperature", hot, reading()).state is HealthState.HEALTHY
    assert judged("gpu_temperature", hot, hot).state is BAD


# --- one instruction -----------------------------------------------------------------------------------


def test_one_component_has_one_action_the_greatest() -> None:
    found = judged(
        "gpu_remapped_rows", reading(**rows(failed=True, pending=True, banks={"none": 3}))
    )

    assert (found.action, found.reason_code) == (SuggestedAction.REPLACE, "row_remap_failed")
    assert "replaced at the next reset" in found.reason


def test_the_greatest_action_speaks_wherever_its_rule_stands() -> None:
    found = judged("gpu_ecc", reading(ecc_mode=False, **ecc("uncorrected", "sram", "aggregate", 5)))

    assert (found.action, found.reason_code) == (
        SuggestedAction.REPLACE,
        "ecc_uncorrected_sram_aggregate",
    )
    assert found.reason.startswith("5 uncorrected SRAM ECC errors")


def test_one_gpu_has_one_instruction() -> None:
    worn = reading(**rows(failed=True), recovery_action="reset", persistence_mode=False)
    every = gpu_health(worn, worn, MINUTE, LIMITS)

    assert [(one.uuid, one.action) for one in instructions(every)] == [
        ("GPU-1", SuggestedAction.REPLACE)
    ]
    assert worst_of(every)["gpu_recovery"] is HealthState.UNHEALTHY
    assert worst_of(every)["gpu_ecc"] is HealthState.HEALTHY


def test_a_component_has_one_sentence_however_much_is_wrong() -> None:
    faults = [
        bad(HealthState.DEGRADED, f"c{n}", f"fault {n}", SuggestedAction.WATCH) for n in range(300)
    ]
    found = combine(
        "kernel",
        [*faults, bad(HealthState.UNHEALTHY, "worst", "the worst", SuggestedAction.REBOOT)],
    )

    assert found.reason == "the worst; fault 0; fault 1; and 298 more"
    assert found.reason_code == "worst"
    assert combine("kernel", faults[:3]).reason == "fault 0; fault 1; fault 2"
    blind = combine("kernel", [unread(f"value {n}") for n in range(40)])
    assert blind.reason == "not readable: value 0, value 1, value 2, and 37 more"


MARGINS = [(3.0, "3 °C to"), (0.4, "at"), (-0.4, "at"), (-4.0, "4 °C beyond")]


@pytest.mark.parametrize(("margin", "words"), MARGINS)
def test_the_margin_reads_well_on_either_side(margin: float, words: str) -> None:
    found = judged("gpu_temperature", reading(temperature_margin_celsius=margin))

    assert found.reason == f"{words} the point where the clocks are cut"


def test_the_state_is_the_worst_although_another_rule_gives_the_action() -> None:
    """A margin of 0 (unhealthy) beside ECC that somebody turned off is told in its own component."""
    hot = judged("gpu_temperature", reading(temperature_margin_celsius=-1.0, memory_temperature_celsius=99.0))  # fmt: skip

    assert hot.state is HealthState.UNHEALTHY
    assert hot.reason.count("°C") >= 2


# --- limits --------------------------------------------------------------------------------------------


def test_the_file_is_read_strictly_and_holds_every_limit() -> None:
    assert parse(FILE.read_text(), FILE.name, Thresholds) == Thresholds()
    names = {
        line.split(":")[0] for line in FILE.read_text().splitlines() if line and line[0] != "#"
    }
    assert names == {field.name for field in msgspec.structs.fields(Thresholds)}


def test_every_limit_says_where_it_comes_from() -> None:
    for line in FILE.read_text().splitlines():
        if line and line[0] != "#" and ":" in line:
            assert "# " in line or line.startswith("pcie_replays"), line


def test_another_limit_is_obeyed_and_null_turns_a_rule_off() -> None:
    worn = reading(**rows(uncorrected=300))
    strict = Thresholds(remapped_rows_uncorrected=256)
    none = Thresholds(ecc_uncorrected_volatile=None)

    assert judged("gpu_remapped_rows", worn).state is HealthState.HEALTHY
    assert judged("gpu_remapped_rows", worn, limits=strict).reason_code == "row_remaps_uncorrected"
    broken = reading(**ecc("uncorrected", "total", "volatile", 9))
    assert judged("gpu_ecc", broken).state is HealthState.UNHEALTHY
    assert judged("gpu_ecc", broken, limits=none).state is HealthState.HEALTHY


SO_MANY_OR_MORE = ("remapped_rows_uncorrected", "retired_pages",
                   "nvlink_crc_flit_per_second_degraded", "nvlink_crc_flit_per_second_unhealthy")  # fmt: skip


@pytest.mark.parametrize("name", SO_MANY_OR_MORE)
def test_a_limit_that_would_condemn_everything_is_not_taken(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        parse(f"{name}: 0", "c.yaml", Thresholds)
    assert getattr(parse(f"{name}: 1", "c.yaml", Thresholds), name) == 1


def test_a_component_whose_rules_are_all_off_is_unknown() -> None:
    off = Thresholds(
        ecc_uncorrected_volatile=None,
        ecc_sram_uncorrected_aggregate=None,
        ecc_dram_corrected_volatile=None,
        ecc_sram_corrected_volatile=None,
    )

    assert judged("gpu_ecc", reading(), limits=off).state is HealthState.UNKNOWN
