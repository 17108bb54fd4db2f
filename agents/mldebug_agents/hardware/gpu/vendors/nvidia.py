"""NVIDIA GPUs, by the management library that comes with the driver: no DCGM, no root, no nvidia-smi."""

import math
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeVar

import msgspec

from mldebug.core.model import Gap
from mldebug.hardware.gpu.excluded import XIDS, ExcludedGpu
from mldebug.hardware.gpu.readings import (
    GpuEvent,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
)
from mldebug_agents.hardware.gpu.errors import DriverGoneError
from mldebug_agents.hardware.gpu.nvml.absent import Absent
from mldebug_agents.hardware.gpu.nvml.calls import Ask
from mldebug_agents.hardware.gpu.nvml.errors import (
    INSUFFICIENT_RIGHTS,
    DeviceLostError,
    in_words,
    name_of,
)
from mldebug_agents.hardware.gpu.nvml.events import NvmlEvents
from mldebug_agents.hardware.gpu.nvml.full_read import read_full
from mldebug_agents.hardware.gpu.nvml.gpm import Gpm
from mldebug_agents.hardware.gpu.nvml.library import LIBRARY, Library
from mldebug_agents.hardware.gpu.nvml.watch_read import read_watch
from mldebug_agents.hardware.gpu.vendors import Vendor

T = TypeVar("T")
RESTART_PAUSE = 60.0  # seconds between two new starts because no GPU answers
MAX_EVENTS = 4096  # events that wait for a look
FORBIDDEN = in_words(INSUFFICIENT_RIGHTS)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where NVIDIA's management library is."""

    # its name, or an absolute path
    library: str = LIBRARY


class Nvidia:
    """All NVIDIA GPUs of this node. Methods raise MissingLibraryError, or DriverGoneError where a restart of the library did
    not help.
    """

    def __init__(self, library: Library, clock: Callable[[], float] = time.monotonic) -> None:
        self._library = library
        self._clock = clock
        self._next_restart = -math.inf
        self._count = 0
        self._looks = 0
        self._absent = Absent(clock)
        self._kept_events: list[GpuEvent] = []  # before a read, and not told yet
        self._forbidden: tuple[ExcludedGpu, ...] = ()  # by the kernel's log

    @cached_property
    def _gpm(self) -> Gpm:
        gpm = Gpm(self._library.nvml, self._clock)
        self._library.on_stop.append(gpm.close)
        return gpm

    @cached_property
    def _events(self) -> NvmlEvents:
        events = NvmlEvents(self._library.nvml)
        self._library.on_stop.append(events.close)
        return events

    def leave_alone(self, these: tuple[ExcludedGpu, ...]) -> None:
        """Do not touch these GPUs at the next read, which follows at once, nor until their time is over."""
        self._forbidden = these

    def watch(self) -> NodeWatch:
        """Read utilization and power of all GPUs, and the energy counter of one GPU, in turns."""
        started, cpu = self._clock(), time.process_time()
        self._looks += 1
        found: list[GpuWatch] = self._restarting(lambda: self._all(self._read_watch))
        events, self._kept_events = tuple(self._kept_events), []
        return NodeWatch(
            at=time.time(),
            gpus=tuple(found),
            lost=self.lost(),
            events=events,
            read_seconds=self._clock() - started,
            cpu_seconds=time.process_time() - cpu,
        )

    def full(self) -> NodeGpus:
        """Read everything. Driver events that arrive meanwhile are returned by the next `watch`."""
        started, cpu = self._clock(), time.process_time()
        found: list[GpuReading] = self._restarting(
            lambda: self._all(lambda ask: read_full(ask, self._gpm, self._clock))
        )
        driver, library = self._library.versions()
        return NodeGpus(
            at=time.time(),
            driver_version=driver,
            library_version=library,
            gpus=tuple(found),
            lost=self.lost(),
            gaps=tuple(_gaps(found)),
            read_seconds=self._clock() - started,
            cpu_seconds=time.process_time() - cpu,
        )

    def lost(self) -> tuple[LostGpu, ...]:
        """GPUs that did not answer at the last read, and those that were there before and are not listed now."""
        return self._absent.lost_gpus(self._count)

    def close(self) -> None:
        """Close all device files of the GPUs."""
        self._library.stop()

    def _read_watch(self, ask: Ask) -> GpuWatch:
        its_turn = ask.device.index == self._looks % self._count
        return read_watch(ask, self._clock, energy=its_turn)

    def _restarting(self, read: Callable[[], list[T]]) -> list[T]:
        """Where the driver is gone, or no GPU answers at all, start the library anew: once, and the latter rarely."""
        try:
            self._library.start()
            found = read()
            if found or not self._absent.silent or self._clock() < self._next_restart:
                return found
        except DriverGoneError:
            pass  # that is what the restart is for; where it does not help, the read below raises
        self._next_restart = self._clock() + RESTART_PAUSE
        self._library.restart()
        self._absent.forgive()
        return read()

    def _all(self, read: Callable[[Ask], T]) -> list[T]:
        self._listen()
        count = self._library.count()
        if count != self._count:
            self._renumber(count)
        for index in self._absent.stop_querying(self._forbidden, count):
            self._library.forget(index)
        found = [self._one(index, read) for index in range(count)]
        self._events.join(self._library.devices())
        return [one for one in found if one is not None]

    def _listen(self) -> None:
        """Hear what was told since the last read, and before a GPU is touched whose driver or bus is in trouble."""
        events = self._events.drain()
        self._kept_events = [*self._kept_events, *events][-MAX_EVENTS:]
        for event in events:
            if event.xid in XIDS:
                self._absent.leave_alone(event.index, event.xid)
                self._library.forget(event.index)

    def _renumber(self, count: int) -> None:
        """Numbers may have moved."""
        for index in range(self._count):
            self._library.forget(index)
        self._absent.renumber()
        self._count = count

    def _one(self, index: int, read: Callable[[Ask], T]) -> T | None:
        if self._absent.rests(index):
            return None
        try:
            device = self._library.device(index)
            self._absent.note(device)
            value = read(Ask(self._library.nvml, device))
        except DeviceLostError as error:
            self._absent.lose(index, str(error), name_of(error.code))
            self._library.forget(index)
            return None
        self._absent.answers(index)
        return value


def _gaps(found: list[GpuReading]) -> Iterator[Gap]:
    """What this user may not read, once for all GPUs."""
    names = {
        name for one in found for name, reason in one.unreadable.items() if reason == FORBIDDEN
    }
    if names:
        yield Gap(
            what=f"GPU metrics: {', '.join(sorted(names))}",
            reason=FORBIDDEN,
            way_out="run the agent as root, or load the nvidia module with"
            " NVreg_RestrictProfilingToAdminUsers=0",
        )


def create(options: Options) -> Vendor:
    """Build the reader of NVIDIA's GPUs; loads and opens nothing yet."""
    return Nvidia(Library(options.library))
