"""What the amdgpu and amdkfd drivers show of a GPU in /sys, as readings. Pure: texts of files in, values out.

Written after the kernel's documentation (Documentation/gpu/amdgpu) and trees that others have recorded; not tried on a card.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from mldebug.hardware.gpu.readings import EccCount, ErrorType, GpuProcess, GpuReading, GpuWatch

VENDOR = "0x1002"
LEAST_VRAM = 2 << 30  # bytes: graphics inside of a processor is no accelerator
WATCH_FILES = ("unique_id", "uevent", "gpu_busy_percent", "mem_busy_percent")
FULL_FILES = (
    *WATCH_FILES, "product_name", "serial_number", "vbios_version", "mem_info_vram_total", "mem_info_vram_used",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "pcie_replay_count", "pp_dpm_sclk", "pp_dpm_mclk",
)  # fmt: skip
POWER_FILES = ("power1_average", "power1_input")
SENSOR_FILES = ("power1_cap", "power1_cap_default", "power1_cap_min", "power1_cap_max")
SENSORS = {"edge": "core", "junction": "junction", "mem": "memory"}
_SLOT = re.compile(r"^PCI_SLOT_NAME=([0-9a-fA-F:.]{1,16})$", re.MULTILINE)
_CLOCK = re.compile(r"^\s*\w{1,3}: (\d{1,6})(M|G)hz( \*)?\s*$", re.MULTILINE | re.IGNORECASE)
_COUNT = re.compile(r"^(ue|ce|de): (\d{1,18})\s*$", re.MULTILINE)
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_KINDS: dict[str, ErrorType] = {"ue": "uncorrected", "ce": "corrected"}
_MEMORY = "umc"  # the block of the memory controllers
Texts = Mapping[
    str, str
]  # name of the file -> its text; a file that is not there, or cannot be read, is absent


def address(texts: Texts) -> str:
    """The PCI address of a card, from the texts of its files in /sys; "" where they do not contain it."""
    found = _SLOT.search(texts.get("uevent", ""))
    return found[1].lower() if found else ""


def identity(texts: Texts) -> str:
    """A stable name of a card, used as its uuid: the chip's unique id, else the PCI address."""
    number = texts.get("unique_id", "").strip()
    return f"AMD-{number}" if re.fullmatch("[0-9a-f]{8,32}", number) and set(number) != {"0"} else f"AMD-{address(texts)}"  # fmt: skip


def parse_watch(index: int, texts: Texts, sensors: Texts) -> GpuWatch:
    """The quick reading of one card (load, power) from the texts of its files in /sys."""
    return GpuWatch(
        uuid=identity(texts),
        index=index,
        bus_id=address(texts),
        utilization_ratio=_percent(texts.get("gpu_busy_percent")),
        memory_utilization_ratio=_percent(texts.get("mem_busy_percent")),
        power_watts=_power(sensors),
    )


def parse_full(index: int, texts: Texts, sensors: Texts, errors: Texts, processes: tuple[GpuProcess, ...] | None) -> GpuReading:  # fmt: skip
    """The full reading of one card. `errors`: by block, the text of ras/BLOCK_err_count; `sensors`: texts of the files of its
    hwmon folder.
    """
    total, used = _number(texts.get("mem_info_vram_total")), _number(texts.get("mem_info_vram_used"))  # fmt: skip
    heat = temperatures(sensors)
    return GpuReading(
        uuid=identity(texts),
        index=index,
        bus_id=address(texts),
        name=texts.get("product_name", "").strip() or "AMD GPU",
        serial=texts.get("serial_number", "").strip(),
        vbios=texts.get("vbios_version", "").strip(),
        utilization_ratio=_percent(texts.get("gpu_busy_percent")),
        memory_utilization_ratio=_percent(texts.get("mem_busy_percent")),
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=max(0, total - used) if total is not None and used is not None else None,
        temperature_celsius=heat.get("core", heat.get("junction")),
        memory_temperature_celsius=heat.get("memory"),
        temperature_limits_celsius=_limits(sensors),
        power_average_watts=_micro(sensors.get("power1_average")),
        power_instant_watts=_micro(sensors.get("power1_input")),
        power_limit_watts=_micro(sensors.get("power1_cap")),
        power_limit_default_watts=_micro(sensors.get("power1_cap_default")),
        power_limit_min_watts=_micro(sensors.get("power1_cap_min")),
        power_limit_max_watts=_micro(sensors.get("power1_cap_max")),
        clock_hertz=dict(_clocks(texts, now=True)),
        clock_max_hertz=dict(_clocks(texts, now=False)),
        ecc=tuple(_ecc(errors)),
        pcie_generation=_generation(texts.get("current_link_speed")),
        pcie_generation_max=_generation(texts.get("max_link_speed")),
        pcie_width=_number(texts.get("current_link_width")),
        pcie_width_max=_number(texts.get("max_link_width")),
        pcie_replays=_number(texts.get("pcie_replay_count")),
        processes=processes,
    )


def temperatures(sensors: Texts) -> dict[str, float]:
    """Degrees Celsius by sensor (core, junction, memory), by the labels of hwmon. Impossible values (0, or 200 and more) are
    left out.
    """
    found = {}
    for place in range(1, 9):
        name = SENSORS.get(sensors.get(f"temp{place}_label", "").strip())
        value = _number(sensors.get(f"temp{place}_input"))
        if name and value and value < 200_000:
            found[name] = value / 1000
    return found


def sensor_files() -> tuple[str, ...]:
    """The names of the hwmon files that are read, those of temperatures included."""
    heat = [f"temp{place}_{name}" for place in range(1, 4) for name in ("label", "input", "crit", "emergency")]  # fmt: skip
    return (*POWER_FILES, *SENSOR_FILES, *heat)


def gpu_ids(nodes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """PCI address -> id that amdkfd gives the GPU. `nodes`: (gpu_id, properties) of each node of its topology; CPUs have the id 0."""
    found: dict[str, str] = {}
    for number, text in nodes:
        values = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        place, domain = _number(values.get("location_id")), _number(values.get("domain")) or 0
        if number.strip().isdecimal() and number.strip() != "0" and place is not None:
            bus, device, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7
            found[f"{domain:04x}:{bus:02x}:{device:02x}.{function}"] = number.strip()
    return found


def _ecc(errors: Texts) -> Iterator[EccCount]:
    """Errors since the driver was loaded: of the memory, of all other blocks together (sram), and the sum."""
    sums: dict[tuple[str, ErrorType], int] = {}
    for block, text in errors.items():
        for kind, number in _COUNT.findall(text):
            if kind in _KINDS:
                for location in ("dram" if block == _MEMORY else "sram", "total"):
                    key = location, _KINDS[kind]
                    sums[key] = sums.get(key, 0) + int(number)
    for (location, kind), count in sorted(sums.items()):
        yield EccCount(type=kind, location=location, scope="volatile", count=count)


def _clocks(texts: Texts, *, now: bool) -> Iterator[tuple[str, float]]:
    """The level with a star is in force. While the chip sleeps a line `S: 19Mhz *` may have it."""
    for domain, name in (("graphics", "pp_dpm_sclk"), ("memory", "pp_dpm_mclk")):
        levels = [(int(value) * (1e6 if unit in "Mm" else 1e9), bool(star)) for value, unit, star in _CLOCK.findall(texts.get(name, ""))]  # fmt: skip
        wanted = [hertz for hertz, star in levels if star] if now else [max((hertz for hertz, _ in levels), default=0.0)]  # fmt: skip
        if wanted and wanted[0]:
            yield domain, wanted[0]


def _limits(sensors: Texts) -> dict[str, float]:
    """Of the junction where it has limits, else of the edge."""
    found: dict[str, float] = {}
    for place in (1, 2):
        if sensors.get(f"temp{place}_label", "").strip() in ("edge", "junction"):
            for name, key in (("crit", "slowdown"), ("emergency", "shutdown")):
                value = _number(sensors.get(f"temp{place}_{name}"))
                if value and value < 200_000:
                    found[key] = value / 1000
    return found


def _power(sensors: Texts) -> float | None:
    return next((watts for name in POWER_FILES if (watts := _micro(sensors.get(name))) is not None), None)  # fmt: skip


def _micro(text: str | None) -> float | None:
    value = _number(text)
    return value / 1e6 if value is not None and value < 10**10 else None


def _percent(text: str | None) -> float | None:
    value = _number(text)
    return value / 100 if value is not None and value <= 100 else None


def _generation(text: str | None) -> int | None:
    speed = re.match(r"([\d.]{1,5}) GT/s", text or "")
    return _GENERATION.get(float(speed[1])) if speed else None


def _number(text: str | None) -> int | None:
    """A number that is no error of the driver: all ones, as a card that is gone reads, are none."""
    stripped = (text or "").strip()
    if not (stripped.isascii() and stripped.isdecimal() and len(stripped) < 20):
        return None
    value = int(stripped)
    return value if value not in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF) else None
