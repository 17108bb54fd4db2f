"""What `nvidia-smi -q -x` says of a GPU, in our names and base units: the other witness of every metric.

Keys are those of the exposition: (metric without `mldebug_gpu_`, label values after uuid and gpu). What it prints as `N/A`,
and what it has no line for, is absent.
"""

import re
from collections.abc import Iterator
from xml.etree import ElementTree

Key = tuple[str, ...]
Value = float | str
_UNITS = {
    "": 1.0,
    "%": 0.01,
    "MiB": 2.0**20,
    "W": 1.0,
    "C": 1.0,
    "MHz": 1e6,
    "us": 1e-6,
    "x": 1.0,
    "bank(s)": 1.0,
}
_WORDS = {"Enabled": 1.0, "Disabled": 0.0, "Active": 1.0, "Not Active": 0.0, "Yes": 1.0, "No": 0.0}
_REASONS = {"display_clock_setting": "display_clocks_setting"}
_EVENTS = {
    "sw_power_cap": "sw_power_cap",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_therm_slowdown",
    "hw_thermal_slowdown": "hw_therm_slowdown",
    "hw_power_brake_slowdown": "hw_power_brake",
}
_POWER = "gpu_power_readings"
_PCIE = "pci/pci_gpu_link_info"
_ONE: dict[Key, str] = {
    ("utilization_ratio",): "utilization/gpu_util",
    ("memory_utilization_ratio",): "utilization/memory_util",
    ("memory_size_bytes",): "fb_memory_usage/total",
    ("power_watts", "average"): f"{_POWER}/average_power_draw",
    ("power_watts", "instant"): f"{_POWER}/instant_power_draw",
    ("power_limit_watts",): f"{_POWER}/current_power_limit",
    ("power_limit_default_watts",): f"{_POWER}/default_power_limit",
    ("temperature_celsius", "core"): "temperature/gpu_temp",
    ("temperature_celsius", "memory"): "temperature/memory_temp",
    ("temperature_margin_celsius",): "temperature/gpu_temp_tlimit",
    ("temperature_limit_celsius", "shutdown"): "temperature/gpu_temp_max_threshold",
    ("temperature_limit_celsius", "slowdown"): "temperature/gpu_temp_slow_threshold",
    ("temperature_limit_celsius", "gpu_max"): "temperature/gpu_temp_max_gpu_threshold",
    ("temperature_limit_celsius", "memory_max"): "temperature/gpu_temp_max_mem_threshold",
    ("ecc_mode",): "ecc_mode/current_ecc",
    ("remapped_rows_total", "corrected"): "remapped_rows/remapped_row_corr",
    ("remapped_rows_total", "uncorrected"): "remapped_rows/remapped_row_unc",
    ("remapped_rows_pending",): "remapped_rows/remapped_row_pending",
    ("remapped_rows_failed",): "remapped_rows/remapped_row_failure",
    ("retired_pages", "corrected"): "retired_pages/multiple_single_bit_retirement/retired_count",
    ("retired_pages", "uncorrected"): "retired_pages/double_bit_retirement/retired_count",
    ("retired_pages_pending",): "retired_pages/pending_retirement",
    ("pcie_link_generation",): f"{_PCIE}/pcie_gen/current_link_gen",
    ("pcie_link_generation_max",): f"{_PCIE}/pcie_gen/max_link_gen",
    ("pcie_link_width_lanes",): f"{_PCIE}/link_widths/current_link_width",
    ("pcie_link_width_max_lanes",): f"{_PCIE}/link_widths/max_link_width",
    ("pcie_replays_total",): "pci/replay_counter",
    ("persistence_mode",): "persistence_mode",
    **{("memory_bytes", one): f"fb_memory_usage/{one}" for one in ("used", "free", "reserved")},
    **{
        (f"clock{most}_hertz", domain): f"{'max_' if most else ''}clocks/{short}_clock"
        for most in ("", "_max")
        for domain, short in (("graphics",) * 2, ("sm",) * 2, ("memory", "mem"), ("video",) * 2)
    },
    **{
        ("clock_event_seconds_total", ours): f"clocks_event_reasons_counters/clocks_event_reasons_counters_{its}"
        for ours, its in _EVENTS.items()
    },
    **{
        ("remap_banks", one): f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{one}"
        for one in ("max", "high", "partial", "low", "none")
    },
}  # fmt: skip
_INFO = {
    "name": "product_name",
    "vbios": "vbios_version",
    "pci_bus_id": "pci/pci_bus_id",
    "serial": "serial",
}


def read(xml: str) -> dict[str, dict[Key, Value]]:
    """By the GPU's uuid; raises ParseError."""
    root = ElementTree.fromstring(xml)
    driver = root.findtext("driver_version", "")
    found = {}
    for gpu in root.iter("gpu"):
        table: dict[Key, Value] = {("info", "driver_version"): driver}
        table.update(_gpu(gpu))
        found[gpu.findtext("uuid", "")] = table
    return found


def quantity(text: str | None) -> float | None:
    """`143771 MiB` in bytes, `P2` as 2, `Enabled` as 1; None for what is not told."""
    text = (text or "").strip()
    if text in _WORDS:
        return _WORDS[text]
    found = re.fullmatch(r"P?(-?\d+(?:\.\d+)?)\s*(\S*)", text)
    if found is None or found[2] not in _UNITS:
        return None
    return float(found[1]) * _UNITS[found[2]]


def _gpu(gpu: ElementTree.Element) -> Iterator[tuple[Key, Value]]:
    for key, path in _ONE.items():
        value = quantity(gpu.findtext(path))
        if value is not None:
            yield key, value
    for name, path in _INFO.items():
        yield ("info", name), gpu.findtext(path, "")
    yield ("info", "mig_mode"), gpu.findtext("mig_mode/current_mig", "").lower()
    yield ("performance_state",), quantity(gpu.findtext("performance_state")) or 0.0
    yield from _reasons(gpu)
    yield from _recovery(gpu)
    yield from _ecc(gpu)
    yield from _processes(gpu)


def _reasons(gpu: ElementTree.Element) -> Iterator[tuple[Key, Value]]:
    before = "clocks_event_reason_"
    ours = {its: one for one, its in _REASONS.items()}
    for one in gpu.iterfind("clocks_event_reasons/*"):
        name, value = one.tag.removeprefix(before), quantity(one.text)
        if value is not None:
            yield ("clock_event_active", ours.get(name, name)), value


def _recovery(gpu: ElementTree.Element) -> Iterator[tuple[Key, Value]]:
    result = gpu.findtext("gpu_recovery_action")
    if result:
        yield ("recovery_action", re.sub(r"\W+", "_", result.strip().lower())), 1.0


def _ecc(gpu: ElementTree.Element) -> Iterator[tuple[Key, Value]]:
    for scope in ("volatile", "aggregate"):
        part = gpu.find(f"ecc_errors/{scope}")
        if part is None:
            continue
        for type_, word in (("corrected", "correctable"), ("uncorrected", "uncorrectable")):
            sums = {place: _sum(part, f"{place}_{word}") for place in ("sram", "dram")}
            by_name = {place: count for place, count in sums.items() if count is not None}
            for place, count in by_name.items():
                yield ("ecc_errors_total", type_, place, scope), count
            if len(by_name) == len(sums):
                yield ("ecc_errors_total", type_, "total", scope), sum(by_name.values())


def _sum(part: ElementTree.Element, start: str) -> float | None:
    """SRAM tells parity and SECDED apart."""
    tags = (start, f"{start}_parity", f"{start}_secded")
    results = [quantity(one.text) for one in part if one.tag in tags]
    numbers = [one for one in results if one is not None]
    return sum(numbers) if numbers else None


def _processes(gpu: ElementTree.Element) -> Iterator[tuple[Key, Value]]:
    found = [one for one in gpu.iterfind("processes/process_info") if "C" in one.findtext("type", "")]  # fmt: skip
    yield ("processes",), float(len(found))
    sizes = [quantity(one.findtext("used_memory")) for one in found]
    known = [one for one in sizes if one is not None]
    if known:
        yield ("process_memory_bytes",), sum(known)


def nvlink(status: str, errors: str) -> dict[str, dict[Key, Value]]:
    """By uuid, of `nvidia-smi nvlink -s` and `-e`: which links are up, errors by kind over all links."""
    found: dict[str, dict[Key, Value]] = {}
    for uuid, line in _lines(status):
        link = re.match(r"Link (\d+): ([\d.]+) GB/s", line)
        if link:
            found.setdefault(uuid, {})["nvlink_up", link[1]] = 1.0
    kinds = {"Replay": "replay", "Recovery": "recovery", "CRC": "crc_flit", "CRC FLIT": "crc_flit"}
    for uuid, line in _lines(errors):
        error = re.match(r"Link \d+: (Replay|Recovery|CRC(?: FLIT)?) Errors?: (\d+)", line)
        if error:
            result, key = found.setdefault(uuid, {}), ("nvlink_errors_total", kinds[error[1]])
            result[key] = float(result.get(key, 0.0)) + float(error[2])
    return found


def _lines(text: str) -> Iterator[tuple[str, str]]:
    uuid = ""
    for line in text.splitlines():
        gpu = re.match(r"GPU \d+:.*\(UUID: ([^)]+)\)", line)
        uuid = gpu[1] if gpu else uuid
        if uuid and not gpu:
            yield uuid, line.strip()
