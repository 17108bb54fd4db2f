"""NVML, NVIDIA's management library: loads and starts it, restarts it after the driver was reloaded, and keeps the GPUs' handles."""

import contextlib
import ctypes
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from mldebug_agents.hardware.gpu.errors import DriverGoneError, MissingLibraryError
from mldebug_agents.hardware.gpu.nvml import bounds
from mldebug_agents.hardware.gpu.nvml.calls import Ask, Device
from mldebug_agents.hardware.gpu.nvml.errors import (
    DRIVER_GONE,
    LOST,
    UNKNOWN,
    DeviceLostError,
    in_words,
)

LIBRARY = "libnvidia-ml.so.1"
NO_PYNVML = "the package nvidia-ml-py is not installed"


class Library:
    """NVML from its start to its stop. `path`: the library's file, or a name that the dynamic linker searches for."""

    def __init__(self, path: str = LIBRARY) -> None:
        self._path = path
        self._running = False
        self._devices: dict[int, Device] = {}
        self.on_stop: list[Callable[[], None]] = []

    @cached_property
    def nvml(self) -> ModuleType:
        """The Python binding of NVML, imported at the first call. Raises MissingLibraryError."""
        try:
            return import_module("pynvml")
        except ImportError:
            raise MissingLibraryError(NO_PYNVML) from None

    def start(self) -> None:
        """Load and initialise NVML, which opens the GPUs' device files. Raises MissingLibraryError or DriverGoneError."""
        if self._running:
            return
        _load(self.nvml, self._path)
        try:
            self.nvml.nvmlInitWithFlags(0)
        except self.nvml.NVMLError as error:
            if int(error.value) == 13:  # older than that function
                raise MissingLibraryError(f"{self._path} has no nvmlInitWithFlags") from None
            raise DriverGoneError(in_words(int(error.value))) from None
        self._running = True

    def stop(self) -> None:
        """Shut NVML down, which closes all device files. Does not raise where the driver is gone."""
        for one in self.on_stop:
            one()
        self._devices.clear()
        if self._running:
            self._running = False
            with contextlib.suppress(self.nvml.NVMLError):
                self.nvml.nvmlShutdown()

    def restart(self) -> None:
        """Stop and start NVML, after the driver was unloaded or loaded again. Raises as `start` does."""
        self.stop()
        self.start()

    def count(self) -> int:
        """How many GPUs the driver lists; in a container, those that were given to it."""
        count: int = self._call("nvmlDeviceGetCount", to=bounds.small)
        return count

    def versions(self) -> tuple[str, str]:
        """Versions of driver and library; "" for one that cannot be read."""
        return self._text("nvmlSystemGetDriverVersion"), self._text("nvmlSystemGetNVMLVersion")

    def device(self, index: int) -> Device:
        """The GPU with this index, and its handle. Raises DeviceLostError or DriverGoneError."""
        if index not in self._devices:
            handle = self._call("nvmlDeviceGetHandleByIndex", index)
            device = Device(index, handle)
            ask = Ask(self.nvml, device)
            device.uuid = ask("uuid", "nvmlDeviceGetUUID", to=bounds.words) or ""
            info = ask("bus_id", "nvmlDeviceGetPciInfo")
            device.bus_id = bounds.words(info.busId) if info is not None else ""
            if not ask.answers:
                raise DeviceLostError(UNKNOWN)
            device.uuid = device.uuid or f"bus-{device.bus_id}"
            self._devices[index] = device
        return self._devices[index]

    def devices(self) -> tuple[Device, ...]:
        """The GPUs whose handles are valid now."""
        return tuple(self._devices.values())

    def forget(self, index: int) -> None:
        """Drop the handle of the GPU with this index, so that the next use gets a new one."""
        self._devices.pop(index, None)

    def _call(self, function: str, *arguments: Any, to: Callable[[Any], Any] = lambda x: x) -> Any:
        try:
            return to(getattr(self.nvml, function)(*arguments))
        except self.nvml.NVMLError as error:
            code = int(error.value)
            if arguments and code not in DRIVER_GONE:
                raise DeviceLostError(code) from None
            raise DriverGoneError(in_words(code if code not in LOST else UNKNOWN)) from None
        except ValueError as error:
            raise MissingLibraryError(f"{function}: {error}") from None

    def _text(self, function: str) -> str:
        # an older driver does not tell it
        with contextlib.suppress(self.nvml.NVMLError, ValueError, AttributeError):
            return bounds.words(getattr(self.nvml, function)())
        return ""


def _load(nvml: Any, path: str) -> None:
    """Hand pynvml the library of that path; by itself it knows only the default name."""
    if getattr(nvml.nvmlLib, "_name", None) == path:
        return
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise MissingLibraryError(f"{path} cannot be loaded: {error}") from None
    nvml.nvmlLib = library
    nvml._nvmlGetFunctionPointer_cache.clear()
