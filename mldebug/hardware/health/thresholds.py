"""The limits of the health rules: `thresholds.yaml` beside this file, overridden by the configuration."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from mldebug.core.units import Duration, parse_duration
from mldebug.core.yaml_reader import Section

FILE = Path(__file__).with_name("thresholds.yaml")

Count = Annotated[int, msgspec.Meta(ge=0)] | None
"""More than so many; None turns the rule off."""
AtLeast = Annotated[int, msgspec.Meta(ge=1)] | None
"""So many or more: 0 would condemn everything."""
Rate = Annotated[float, msgspec.Meta(gt=0)] | None
"""So many a second or more."""
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)] | None
Degrees = Annotated[float, msgspec.Meta(ge=-100, le=100)] | None

_SHIPPED: dict[str, Any] = yaml.safe_load(FILE.read_bytes())


def _shipped(name: str) -> Any:
    value = _SHIPPED[name]
    if isinstance(value, str):
        return parse_duration(value)
    return tuple(value) if isinstance(value, list) else value


class Thresholds(Section, frozen=True, kw_only=True):
    """Every limit of the health rules; the file `thresholds.yaml` says what each does and where it comes from."""

    ecc_uncorrected_volatile: Count = _shipped("ecc_uncorrected_volatile")
    ecc_sram_uncorrected_aggregate: Count = _shipped("ecc_sram_uncorrected_aggregate")
    ecc_dram_corrected_volatile: Count = _shipped("ecc_dram_corrected_volatile")
    ecc_sram_corrected_volatile: Count = _shipped("ecc_sram_corrected_volatile")
    remapped_rows_uncorrected: AtLeast = _shipped("remapped_rows_uncorrected")
    remap_banks_without_spare: Count = _shipped("remap_banks_without_spare")
    retired_pages: AtLeast = _shipped("retired_pages")
    retired_pages_uncorrected: Count = _shipped("retired_pages_uncorrected")
    temperature_margin_degraded: Degrees = _shipped("temperature_margin_degraded")
    temperature_margin_unhealthy: Degrees = _shipped("temperature_margin_unhealthy")
    power_limit_ratio: Ratio = _shipped("power_limit_ratio")
    throttled_ratio_degraded: Ratio = _shipped("throttled_ratio_degraded")
    throttled_ratio_unhealthy: Ratio = _shipped("throttled_ratio_unhealthy")
    pcie_replays_per_lane_minute: tuple[Annotated[float, msgspec.Meta(ge=0)], ...] = _shipped(
        "pcie_replays_per_lane_minute"
    )
    pcie_busy_ratio: Ratio = _shipped("pcie_busy_ratio")
    nvlink_down: Count = _shipped("nvlink_down")
    nvlink_recoveries: Count = _shipped("nvlink_recoveries")
    nvlink_replays: Count = _shipped("nvlink_replays")
    nvlink_crc_flit_per_second_degraded: Rate = _shipped("nvlink_crc_flit_per_second_degraded")
    nvlink_crc_flit_per_second_unhealthy: Rate = _shipped("nvlink_crc_flit_per_second_unhealthy")
    event_window: Annotated[Duration, msgspec.Meta(gt=0)] = _shipped("event_window")
    memory_corrected: Count = _shipped("memory_corrected")
    pcie_corrected: Count = _shipped("pcie_corrected")
    iommu_faults: Count = _shipped("iommu_faults")
    cpu_throttled: Count = _shipped("cpu_throttled")
    link_flaps: Count = _shipped("link_flaps")
    disk_errors: Count = _shipped("disk_errors")
    gpu_ras_corrected: Count = _shipped("gpu_ras_corrected")
    port_symbol_errors_per_second: Rate = _shipped("port_symbol_errors_per_second")
    port_receive_errors_per_second: Rate = _shipped("port_receive_errors_per_second")
    port_recoveries_per_second: Rate = _shipped("port_recoveries_per_second")
    port_drops_per_second: Rate = _shipped("port_drops_per_second")
    port_retransmits_per_second: Rate = _shipped("port_retransmits_per_second")
    port_timeouts_per_second: Rate = _shipped("port_timeouts_per_second")
    port_slow_restarts_per_second: Rate = _shipped("port_slow_restarts_per_second")
