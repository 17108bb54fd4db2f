"""What a GPU does now: load, memory, heat, power, clocks."""

from typing import Any

from mldebug.hardware.gpu.readings import CLOCK_EVENTS
from mldebug_agents.hardware.gpu.nvml import bounds, fields
from mldebug_agents.hardware.gpu.nvml.calls import Ask
from mldebug_agents.hardware.gpu.nvml.fields import Values

_MEMORY_V2 = 0x02000028
_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
_MARGIN_TURN = 4  # full reads: every 2 minutes as shipped; it takes 1.5 ms, all other heat nothing
_CLOSE = 5.0  # degrees: what is nearer is asked at every full read
_MARGINS = "temperature margins"
_THRESHOLDS = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}


def load(ask: Ask) -> dict[str, Any]:
    """The part of a `GpuReading` about load: utilization, and memory by the newer version of the call where there is one."""
    rates = ask("utilization", "nvmlDeviceGetUtilizationRates")
    memory = ask("memory_reserved", "nvmlDeviceGetMemoryInfo", _MEMORY_V2)
    reserved = memory and ask.convert("memory_reserved", memory.reserved, bounds.size)
    if memory is None:
        memory = ask("memory", "nvmlDeviceGetMemoryInfo")
    return {
        "utilization_ratio": rates and ask.convert("utilization", rates.gpu, bounds.percent),
        "memory_utilization_ratio": rates
        and ask.convert("memory_utilization", rates.memory, bounds.percent),
        "memory_total_bytes": memory and ask.convert("memory", memory.total, bounds.size),
        "memory_used_bytes": memory and ask.convert("memory", memory.used, bounds.size),
        "memory_free_bytes": memory and ask.convert("memory", memory.free, bounds.size),
        "memory_reserved_bytes": reserved,
    }


def heat(ask: Ask, values: Values) -> dict[str, Any]:
    """The part of a `GpuReading` about heat: temperatures, and the margin to the temperature at which clocks are lowered."""
    memory = values.get((fields.MEMORY_TEMPERATURE, 0)) or None  # boards without a sensor say 0
    return {
        "temperature_celsius": ask("temperature", "nvmlDeviceGetTemperature", 0, to=bounds.celsius),
        "memory_temperature_celsius": ask.convert("memory_temperature", memory, bounds.celsius),
        **_margin(ask),
        "temperature_limits_celsius": _without_none(
            {
                name: ask.keep(
                    f"limit {name}", "nvmlDeviceGetTemperatureThreshold", number, to=bounds.celsius
                )
                for name, number in _THRESHOLDS.items()
            }
        ),
    }


def _margin(ask: Ask) -> dict[str, Any]:
    """The last two answers: remembered between their turns, but one that is nearly used up is asked for again at once."""
    margins: tuple[float, ...] = ask.device.kept.get(_MARGINS, ())
    if not margins or margins[0] <= _CLOSE or ask.device.turn(ask.device.index, _MARGIN_TURN):
        now = ask("temperature_margin", "nvmlDeviceGetMarginTemperature", to=bounds.celsius)
        margins = () if now is None else (now, *margins[:1])
        ask.device.kept[_MARGINS] = margins
    return {
        "temperature_margin_celsius": margins[0] if margins else None,
        "temperature_margin_before_celsius": margins[1] if len(margins) > 1 else None,
    }


def power(ask: Ask, values: Values) -> dict[str, Any]:
    """The part of a `GpuReading` about power, in watts. Where the GPU gives one value only, it counts as the average."""

    def field(number: int) -> float | None:
        return ask.convert("power", values.get((number, 0)), bounds.milliwatts)

    average, instant = field(fields.POWER_AVERAGE), field(fields.POWER_INSTANT)
    if average is None and instant is None:
        average = ask("power", "nvmlDeviceGetPowerUsage", to=bounds.milliwatts)
    limits = ask.keep("power_limits", "nvmlDeviceGetPowerManagementLimitConstraints")
    low, high = limits if limits else (None, None)
    return {
        "power_average_watts": average,
        "power_instant_watts": instant,
        "power_limit_watts": ask(
            "power_limit", "nvmlDeviceGetEnforcedPowerLimit", to=bounds.milliwatts
        ),
        "power_limit_default_watts": ask.keep(
            "power_limit_default", "nvmlDeviceGetPowerManagementDefaultLimit", to=bounds.milliwatts
        ),
        "power_limit_min_watts": ask.convert("power_limit_min", low, bounds.milliwatts),
        "power_limit_max_watts": ask.convert("power_limit_max", high, bounds.milliwatts),
    }


def clocks(ask: Ask, values: Values) -> dict[str, Any]:
    """The part of a `GpuReading` about clocks: frequencies, the active reasons for low ones, and how long each reason was
    active.
    """
    now = {
        name: ask(f"clock {name}", "nvmlDeviceGetClockInfo", number, to=bounds.megahertz)
        for name, number in _CLOCKS.items()
    }
    most = {
        name: ask.keep(
            f"max clock {name}", "nvmlDeviceGetMaxClockInfo", number, to=bounds.megahertz
        )
        for name, number in _CLOCKS.items()
    }
    counters = {
        name: ask.convert(f"clock event {name}", values.get((number, 0)), bounds.count)
        for name, number in fields.CLOCK_EVENTS.items()
    }
    return {
        "performance_state": ask("performance_state", "nvmlDeviceGetPerformanceState", to=_state),
        "clock_hertz": _without_none(now),
        "clock_max_hertz": _without_none(most),
        "clock_events": _reasons(ask, "Current", kept=False),
        "clock_events_known": _reasons(ask, "Supported", kept=True) or (),
        "clock_event_counters": _without_none(counters),
    }


def _reasons(ask: Ask, which: str, *, kept: bool) -> tuple[str, ...] | None:
    """By the newer name of the call, or the older one."""
    for name in ("Event", "Throttle"):
        how = ask.keep if kept else ask
        bits = how("clock_events", f"nvmlDeviceGet{which}Clocks{name}Reasons", to=bounds.count)
        if bits is not None:
            on = [reason for place, reason in enumerate(CLOCK_EVENTS) if bits >> place & 1]
            return tuple(sorted(on))
    return None


def _state(value: Any) -> int:
    if not 0 <= value <= 15:  # 32 means unknown
        raise bounds.AbsurdError(f"it says P{value}")
    return int(value)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
