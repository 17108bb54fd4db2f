"""Health in the exposition and in the configuration."""

from pathlib import Path

import pytest

from mldebug.config.schema import Config, effective_yaml, load_config
from mldebug.core.errors import ConfigError
from mldebug.core.plugins import NoOptions
from mldebug.core.yaml_reader import parse
from mldebug.hardware.health.model import ComponentHealth, HealthState, SuggestedAction
from mldebug_exporters.metrics.hardware.health import create
from shared.web.snapshots import snapshot

HEALTH = (
    ComponentHealth(component="gpu_ecc", state=HealthState.HEALTHY, uuid="GPU-0", gpu=0),
    ComponentHealth(component="gpu_ecc", state=HealthState.UNHEALTHY, reason="5 errors", reason_code="ecc_sram", action=SuggestedAction.REPLACE, uuid="GPU-1", gpu=1),
    ComponentHealth(component="gpu_pcie", state=HealthState.DEGRADED, reason_code="pcie_width", action=SuggestedAction.CHECK_HARDWARE, uuid="GPU-0", gpu=0),
    ComponentHealth(component="kernel", state=HealthState.UNKNOWN, reason_code="not_readable"),
    ComponentHealth(component="memory", state=HealthState.HEALTHY),
)  # fmt: skip


def samples() -> dict[tuple[str, ...], float]:
    made = create(NoOptions()).samples(snapshot(health=HEALTH))
    return {(one.family.name, *one.labels): one.value for one in made}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("component", "state"),
    [
        ("gpu_ecc", "unhealthy"),
        ("gpu_pcie", "degraded"),
        ("kernel", "unknown"),
        ("memory", "healthy"),
    ],
)
def test_a_state_set_has_one_1_for_the_worst_gpu(component: str, state: str) -> None:
    by_name = {key[2]: value for key, value in samples().items() if key[:2] == ("mldebug_component_health", component)}  # fmt: skip

    assert by_name == {one.value: int(one.value == state) for one in HealthState}


def test_actions_are_there_where_something_is_to_be_done() -> None:
    values = {key[1:] for key in samples() if key[0] == "mldebug_suggested_action"}

    assert values == {
        ("gpu_ecc", "GPU-1", "replace", "ecc_sram"),
        ("gpu_pcie", "GPU-0", "check_hardware", "pcie_width"),
    }


def test_without_a_look_there_is_nothing() -> None:
    assert list(create(NoOptions()).samples(snapshot())) == []


def test_a_limit_in_the_configuration_leaves_the_others_alone() -> None:
    text = "health:\n  gpus: 8\n  thresholds: {remapped_rows_uncorrected: 256, ecc_uncorrected_volatile: null, event_window: 30m}\n"  # fmt: skip
    health = parse(text, "x.yaml", Config).health

    assert (health.gpus, health.thresholds.remapped_rows_uncorrected) == (8, 256)
    assert health.thresholds.ecc_uncorrected_volatile is None
    assert health.thresholds.event_window == 1800.0
    assert health.thresholds.retired_pages == 63


def test_the_effective_configuration_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "mldebug.yaml"
    file.write_text(
        "health: {thresholds: {pcie_replays_per_lane_minute: [1.0, 2.5], nvlink_replays: 3}}\n"
    )
    config = load_config(file)
    file.write_text(effective_yaml(config))

    assert load_config(file) == config
    assert config.health.thresholds.pcie_replays_per_lane_minute == (1.0, 2.5)


WRONG = [
    ("health: {thresholds: {remapped_rows: 1}}", "did you mean"),
    ("health: {thresholds: {retired_pages: -1}}", "too small"),
    ("health: {thresholds: {throttled_ratio_degraded: 5}}", "too large"),
    ("health: {thresholds: {event_window: 7200}}", "has no unit"),
    ("health: {gpus: many}", "health.gpus"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_a_wrong_limit_refuses_to_start(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(text, "x.yaml", Config)
