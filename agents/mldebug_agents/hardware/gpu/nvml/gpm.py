"""Averages from the GPU's own sampling (GPM, Hopper and newer): two snapshots of its counters, a read apart.

The snapshot of the last read is kept, so nothing ever waits for a window to pass. One GPU after the other: concurrent calls
have crashed drivers.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from mldebug.hardware.gpu.readings import GpuActivity
from mldebug_agents.hardware.gpu.nvml import bounds
from mldebug_agents.hardware.gpu.nvml.calls import Ask, Device

MIN_WINDOW = 0.1  # seconds: the hardware samples ten times a second

_RATIOS = {"graphics_ratio": 1, "sm_active_ratio": 2, "sm_occupancy_ratio": 3, "dram_ratio": 10}
_TENSOR = {"any": 5, "dfma": 6, "hmma": 7, "imma": 9}
_RATES = {
    "pcie_transmit_bytes_per_second": 20,
    "pcie_receive_bytes_per_second": 21,
    "nvlink_receive_bytes_per_second": 60,
    "nvlink_transmit_bytes_per_second": 61,
}
_IDS = (*_RATIOS.values(), *_TENSOR.values(), *_RATES.values())


class _Snapshots:
    """Two buffers of the library for one GPU: the last read and the next."""

    def __init__(self, last: Any, spare: Any) -> None:
        self.last, self.spare = last, spare
        self.device: Device | None = None
        self.at: float | None = None


class Gpm:
    """Reads GPM, the profiling counters of Hopper and newer. Keep one object: it owns the last sample of each GPU. `clock`
    returns seconds.
    """

    def __init__(self, nvml: ModuleType, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._kept: dict[int, _Snapshots] = {}
        self._order: Any = None

    def read(self, ask: Ask) -> GpuActivity | None:
        """Average activity since the last read of this GPU; None at the first read, and where the GPU has no GPM."""
        support = ask.keep("activity", "nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            return None
        pair = self._pair(ask)
        now = self._clock()
        if pair is not None and pair.device is not ask.device:  # it was lost and is back
            pair.device, pair.at = ask.device, None
        if pair is None or (pair.at is not None and now - pair.at < MIN_WINDOW):
            return None
        if ask("activity", "nvmlGpmSampleGet", pair.spare) is None:
            pair.at = None  # what comes next would be the average of a gap
            return None
        before, pair.at = pair.at, now
        pair.last, pair.spare = pair.spare, pair.last
        if before is None:
            return None
        values = self._metrics(ask, pair)
        return _activity(now - before, values) if values else None

    def close(self) -> None:
        """Free the sample buffers; call it before the library is shut down."""
        for pair in self._kept.values():
            for one in (pair.last, pair.spare):
                self._quietly("nvmlGpmSampleFree", one)
        self._kept.clear()

    def _pair(self, ask: Ask) -> _Snapshots | None:
        if ask.device.index not in self._kept:
            one, two = (self._quietly("nvmlGpmSampleAlloc") for _ in range(2))
            if one is None or two is None:
                ask.note("activity", "the library gives no buffer")
                return None
            self._kept[ask.device.index] = _Snapshots(one, two)
        return self._kept[ask.device.index]

    def _metrics(self, ask: Ask, pair: _Snapshots) -> dict[int, float]:
        order = self._order = self._order or self._nvml.c_nvmlGpmMetricsGet_t()
        order.version, order.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(_IDS)
        order.sample1, order.sample2 = pair.spare, pair.last
        for place, number in enumerate(_IDS):
            order.metrics[place].metricId = number
        try:
            self._nvml.nvmlGpmMetricsGet(order)
        except self._nvml.NVMLError as error:
            ask.note("activity", str(error))
            return {}
        return {
            one.metricId: one.value for one in order.metrics[: len(_IDS)] if one.nvmlReturn == 0
        }

    def _quietly(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None  # an older driver or board has none; a snapshot that is not to be had is noted where it is taken


def _activity(window: float, values: dict[int, float]) -> GpuActivity:
    def take(number: int, to: Callable[[Any], float]) -> float | None:
        try:
            return to(values[number])
        except (KeyError, bounds.AbsurdError):
            return None  # the board does not tell it, or tells an absurd one

    tensor = {pipe: take(number, bounds.nearly_percent) for pipe, number in _TENSOR.items()}
    return GpuActivity(
        window_seconds=window,
        tensor_ratio={pipe: ratio for pipe, ratio in tensor.items() if ratio is not None},
        **{name: take(number, bounds.nearly_percent) for name, number in _RATIOS.items()},
        **{name: take(number, bounds.mebibytes_per_second) for name, number in _RATES.items()},
    )
