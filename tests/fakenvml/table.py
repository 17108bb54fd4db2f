"""A recording of pynvml values (tests/fixtures/h200/nvml-*.json) as the lines that `fakenvml.c` serves.

What was recorded of one link only (fields, error counters) is served for all links that were up.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

Table = dict[str, str]  # what is asked -> return code and values, tab separated

_KEYED = {
    r"Clock(\d)": "nvmlDeviceGetClockInfo {d} {0}",
    r"MaxClock(\d)": "nvmlDeviceGetMaxClockInfo {d} {0}",
    r"TempThresh(\d)": "nvmlDeviceGetTemperatureThreshold {d} {0}",
    r"TotalEcc(\d)(\d)": "nvmlDeviceGetTotalEccErrors {d} {0} {1}",
    r"MemErr(\d)(\d)(\d)": "nvmlDeviceGetMemoryErrorCounter {d} {0} {1} {2}",
    r"NvLinkState(\d+)": "nvmlDeviceGetNvLinkState {d} {0}",
    r"NvLinkErr(\d+)_(\d)": "nvmlDeviceGetNvLinkErrorCounter {d} {0} {1}",
    r"PcieThroughput(\d)": "nvmlDeviceGetPcieThroughput {d} {0}",
    r"Temp": "nvmlDeviceGetTemperature {d} 0",
    r"ComputeRunningProcesses": "nvmlDeviceGetComputeRunningProcesses_v3 {d}",
    r"PciInfo": "nvmlDeviceGetPciInfo_v3 {d}",
}
_OF_A_LINK = {*range(138, 142), *range(161, 169)}  # fields that take the link as their scope
_ORDER = {
    "nvmlDeviceGetMemoryInfo": ("total", "free", "used"),
    "nvmlDeviceGetUtilizationRates": ("gpu", "memory"),
    "nvmlDeviceGetRowRemapperHistogram": ("max", "high", "partial", "low", "none"),
    "nvmlDeviceGetPciInfo_v3": ("busId", "domain", "bus", "device"),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("pid", "usedGpuMemory"),
}


def load(path: Path) -> Table:
    """All lines of a recording."""
    document = json.loads(path.read_text())
    table = {
        "nvmlSystemGetDriverVersion -1": answer(0, document["driver"]["v"]),
        "nvmlSystemGetNVMLVersion -1": answer(0, document["nvml"]["v"]),
        "nvmlDeviceGetCount_v2 -1": answer(0, document["count"]),
    }
    for device in range(document["count"]):
        table.update(_device(device, document[f"gpu{device}"]))
    return table


def answer(code: int, *values: object) -> str:
    """Return code and values of one line."""
    return "\t".join(map(str, (code, *values)))


def write(table: Table, path: Path) -> None:
    """Replace the table at once: whoever reads sees the old one or the new one."""
    lines = [f"{key}\t{value}" if value else key for key, value in table.items()]
    new = path.with_name(path.name + ".new")
    new.write_text("\n".join(lines) + "\n")
    new.replace(path)


def _device(device: int, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    links = [int(key[11:]) for key in table if key.startswith("NvLinkState")]
    for name, one in table.items():
        if isinstance(one, dict) and set(one) == {"v", "us"}:
            key = _key(name, device)
            yield key, _value(key.partition(" ")[0], one["v"])
    for link in links:
        for kind in range(5):
            if f"NvLinkErr{link}_{kind}" not in table:
                yield (
                    f"nvmlDeviceGetNvLinkErrorCounter {device} {link} {kind}",
                    answer(0, table[f"NvLinkErr1_{kind}"]["v"]),
                )
    yield from _fields(device, table["fields"], links)
    yield f"nvmlGpmQueryDeviceSupport {device}", answer(0, table["gpm_supported"])
    for name, one in table["gpm"].items():
        number = getattr(pynvml, name, None)
        if number is not None:
            yield f"gpm {device} {number}", answer(one["ret"], one["v"])


def _key(name: str, device: int) -> str:
    for pattern, key in _KEYED.items():
        found = re.fullmatch(pattern, name)
        if found:
            return key.format(*found.groups(), d=device)
    return f"nvmlDeviceGet{name} {device}"


def _value(function: str, value: Any) -> str:
    if isinstance(value, str) and value.startswith("ERR "):
        word = value.split()[1].removeprefix("NVMLError_")
        return answer(_codes().get(word, 3))
    order = _ORDER.get(function, ())
    if isinstance(value, dict):
        return answer(0, *(value[name] for name in order or value))
    if isinstance(value, list):
        parts = [ast.literal_eval(one) if isinstance(one, str) else one for one in value]
        flat = [[one[name] for name in order] if isinstance(one, dict) else [one] for one in parts]
        return answer(0, *(one for many in flat for one in many))
    return answer(0, value)


def _codes() -> dict[str, int]:
    words = {name: code for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    return {
        "".join(part.capitalize() for part in name[11:].split("_")): code
        for name, code in words.items()
    }


def _fields(
    device: int, fields: dict[str, dict[str, Any]], links: list[int]
) -> Iterator[tuple[str, str]]:
    for name, one in fields.items():
        number = getattr(pynvml, name, None)
        if number is None:
            continue
        filled = one["type"] != 0 or one["d"] or one["lat_us"]
        value = one["d"] if one["type"] == 0 else one["ull"]
        text = answer(one["ret"], *([one["type"], value, one["lat_us"]] if filled else []))
        for scope in links if number in _OF_A_LINK else [0]:
            yield f"field {device} {number} {scope}", text
