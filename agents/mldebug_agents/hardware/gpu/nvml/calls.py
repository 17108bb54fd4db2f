"""The one place that calls NVML, NVIDIA's management library: it counts queries, converts values, and notes errors."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from mldebug_agents.hardware.gpu.errors import DriverGoneError
from mldebug_agents.hardware.gpu.nvml.errors import (
    DRIVER_GONE,
    LOST,
    UNKNOWN,
    UNSUPPORTED,
    DeviceLostError,
    in_words,
)

T = TypeVar("T")
MAX_NOTES = 64  # metrics that a reading says it could not read
TURN = 20  # full reads: every 10 minutes as shipped


class Device:
    """One GPU while its handle is valid. `unsupported`: queries that it answered with "not supported", which are not repeated."""

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self.handle = handle
        self.uuid = ""
        self.bus_id = ""
        self.unsupported: dict[tuple[object, ...], str] = {}  # function and arguments -> metric
        self.kept: dict[str, Any] = {}  # what was asked before and holds
        self.reads = -1  # number of the full read, from 0

    def begin_full_read(self) -> None:
        """Count a full read that begins now."""
        self.reads += 1

    def turn(self, number: int, every: int = TURN) -> bool:
        """Whether this full read is one of those (one in `every`) that also query rarely needed values. `number` spreads these queries over the reads."""
        return self.reads <= 0 or (self.reads + number) % every == 0


class Ask:
    """The queries to one GPU in one read. A value that cannot be read is None; why is noted under the name of its metric."""

    def __init__(self, nvml: ModuleType, device: Device) -> None:
        self.nvml = nvml
        self.device = device
        self.unreadable: dict[str, str] = {}
        self.answers = 0

    def __call__(
        self, metric: str, function: str, *arguments: Any, to: Callable[[Any], T] = lambda x: x
    ) -> T | None:
        """Call `function(handle, *arguments)`; raises only `DeviceLostError` and `DriverGoneError`."""
        key = (function, *(argument for argument in arguments if isinstance(argument, int | tuple)))
        call = getattr(self.nvml, function, None)
        if call is None:  # a pynvml that is older than the metric
            self.device.unsupported[key] = metric
        if key in self.device.unsupported:
            return None
        try:
            value = call(self.device.handle, *arguments) if call else None
            self.answers += 1
            return to(value)
        except self.nvml.NVMLError as error:
            self._failed(metric, key, int(error.value))
        except (ValueError, TypeError, AttributeError) as error:
            self.note(metric, str(error))
        return None

    def keep(
        self, metric: str, function: str, *arguments: Any, to: Callable[[Any], T] = lambda x: x
    ) -> T | None:
        """Query until one query succeeds, then return its value at all later reads; None before that. For values that cannot
        change while the driver is loaded.
        """
        name = f"{metric} {arguments}"
        if name not in self.device.kept:
            value = self(metric, function, *arguments, to=to)
            if value is None:
                return None
            self.device.kept[name] = value
        kept: T = self.device.kept[name]
        return kept

    def seldom(
        self,
        metric: str,
        function: str,
        *,
        to: Callable[[Any], T] = lambda x: x,
        every: int = TURN,
    ) -> T | None:
        """Query at one full read in `every`, and return the last value at the reads between; for slow or rarely changing
        values. A failed query gives None, and is repeated at the next read.
        """
        if metric not in self.device.kept or self.device.turn(self.device.index, every):
            self.device.kept[metric] = self(metric, function, to=to)
        kept: T | None = self.device.kept[metric]
        if kept is None:
            del self.device.kept[metric]
        return kept

    def convert(self, metric: str, value: Any, to: Callable[[Any], T]) -> T | None:
        """Convert a value with `to`, for example to base units. None where it is None or impossible; the latter is noted
        under `metric`.
        """
        try:
            return None if value is None else to(value)
        except (ValueError, TypeError) as error:
            self.note(metric, str(error))
            return None

    def note(self, metric: str, reason: str) -> None:
        """Note why the value of a metric is missing in this read."""
        if len(self.unreadable) < MAX_NOTES:
            self.unreadable[metric] = reason[:200]

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Metrics that this GPU or driver does not know, sorted."""
        return tuple(sorted(set(self.device.unsupported.values())))[:MAX_NOTES]

    def _failed(self, metric: str, key: tuple[object, ...], code: int) -> None:
        if code in LOST:
            raise DeviceLostError(code)
        if code in DRIVER_GONE:
            raise DriverGoneError(in_words(code))
        if code in UNSUPPORTED:
            self.device.unsupported[key] = metric
            return
        self.note(metric, in_words(code))
        if code == UNKNOWN and not self.answers and len(self.unreadable) >= 3:
            raise DeviceLostError(code)  # three times nothing but that: it will not get better
