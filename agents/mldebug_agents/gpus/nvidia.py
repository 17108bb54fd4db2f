"""NVIDIA GPUs, by the management library that comes with the driver: no DCGM, no root, no nvidia-smi."""

import math
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeVar

import msgspec

from mldebug.gpus.readings import (
    UNLISTED,
    GpuEvent,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
)
from mldebug.model import Gap
from mldebug_agents.gpuchild.trouble import DriverGoneError
from mldebug_agents.nvml.asking import Ask, Device
from mldebug_agents.nvml.errors import (
    INSUFFICIENT_RIGHTS,
    DeviceLostError,
    in_words,
    name_of,
)
from mldebug_agents.nvml.events import Events
from mldebug_agents.nvml.fullread import read_full
from mldebug_agents.nvml.gpm import Gpm
from mldebug_agents.nvml.library import LIBRARY, Library
from mldebug_agents.nvml.watchread import read_watch

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds in which a GPU that is lost is left alone
RESTART_PAUSE = 60.0  # seconds between two new starts because no GPU answers
HANDS_OFF = (79, 119, 120)  # Xids after which calls hang: off the bus, firmware does not answer
HANDS_OFF_PAUSE = 60.0
XID_CODE = "xid_"  # begins the code of a GPU that is left alone because of one
MAX_HEARD = 4096  # events that wait for a look
FORBIDDEN = in_words(INSUFFICIENT_RIGHTS)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`library`: name or path of the management library."""

    library: str = LIBRARY


class _Lost(msgspec.Struct):
    """A GPU that does not answer, and when to try again."""

    told: LostGpu
    until: float
    pause: float


class Nvidia:
    """All NVIDIA GPUs of this node. Methods raise MissingLibraryError, or DriverGoneError when a restart did not help."""

    def __init__(self, library: Library, clock: Callable[[], float] = time.monotonic) -> None:
        self._library = library
        self._clock = clock
        self._next_restart = -math.inf
        self._count = 0
        self._looks = 0
        self._lost: dict[int, _Lost] = {}
        self._seen: dict[str, LostGpu] = {}  # uuid -> how it would be told, were it missing
        self._at: dict[int, str] = {}  # index -> uuid, as long as the driver is the same
        self._heard: list[GpuEvent] = []  # before a read, and not told yet

    @cached_property
    def _gpm(self) -> Gpm:
        gpm = Gpm(self._library.nvml, self._clock)
        self._library.on_stop.append(gpm.close)
        return gpm

    @cached_property
    def _events(self) -> Events:
        events = Events(self._library.nvml)
        self._library.on_stop.append(events.close)
        return events

    def watch(self) -> NodeWatch:
        """Read what moves: utilization and power, and of one GPU, another at each look, the energy."""
        started, cpu = self._clock(), time.process_time()
        self._looks += 1
        found: list[GpuWatch] = self._restarting(lambda: self._all(self._read_watch))
        events, self._heard = tuple(self._heard), []
        return NodeWatch(
            at=time.time(),
            gpus=tuple(found),
            lost=self.lost(),
            events=events,
            read_seconds=self._clock() - started,
            cpu_seconds=time.process_time() - cpu,
        )

    def full(self) -> NodeGpus:
        """Read everything. What the driver told by itself before it is told by the next look."""
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
        here = {self._at.get(index) for index in range(self._count)}
        missing = [one for uuid, one in self._seen.items() if uuid not in here]
        lost = [self._lost[index].told for index in sorted(self._lost)]
        if len(missing) == 1 and [one.uuid for one in lost] == [""]:  # it is that one
            told = lost.pop()
            missing = [msgspec.structs.replace(missing[0], reason=told.reason, code=told.code)]
        return (*lost, *missing)

    def close(self) -> None:
        """Let go of all device files."""
        self._library.stop()

    def _read_watch(self, ask: Ask) -> GpuWatch:
        its_turn = ask.device.index == self._looks % self._count
        return read_watch(ask, self._clock, energy=its_turn)

    def _restarting(self, read: Callable[[], list[T]]) -> list[T]:
        """Where the driver is gone, or no GPU answers at all, start the library anew: once, and the latter rarely."""
        try:
            self._library.start()
            found = read()
            silent = self._lost and not any(map(self._alone, self._lost.values()))
            if found or not silent or self._clock() < self._next_restart:
                return found
        except DriverGoneError:
            pass  # that is what the restart is for; where it does not help, the read below raises
        self._next_restart = self._clock() + RESTART_PAUSE
        self._library.restart()
        self._lost = {index: one for index, one in self._lost.items() if self._alone(one)}
        return read()

    def _all(self, read: Callable[[Ask], T]) -> list[T]:
        self._listen()
        count = self._library.count()
        if count != self._count:  # numbers may have moved
            self._at.clear()
        self._count = count
        found = [self._one(index, read) for index in range(self._count)]
        self._lost = {index: one for index, one in self._lost.items() if index < self._count}
        self._events.join(self._library.devices())
        return [one for one in found if one is not None]

    def _listen(self) -> None:
        """Hear what was told since the last read, and before a GPU is touched whose driver or bus is in trouble."""
        heard = self._events.drain()
        self._heard = [*self._heard, *heard][-MAX_HEARD:]
        for event in heard:
            if event.xid in HANDS_OFF:
                self._leave_alone(event.index, event.xid)

    def _leave_alone(self, index: int, xid: int) -> None:
        """Touch it no more for a while from now on, whatever was said of it before."""
        before = self._lost.get(index)
        pause = max(HANDS_OFF_PAUSE, before.pause if before else 0.0)
        self._put_aside(index, f"Xid {xid}: it is left alone for now", f"{XID_CODE}{xid}", pause)

    def _alone(self, lost: _Lost) -> bool:
        """Is it one that an Xid forbids to touch now?"""
        return lost.told.code.startswith(XID_CODE) and self._clock() < lost.until

    def _one(self, index: int, read: Callable[[Ask], T]) -> T | None:
        lost = self._lost.get(index)
        if lost is not None and self._clock() < lost.until:
            return None
        try:
            device = self._library.device(index)
            self._note(device)
            value = read(Ask(self._library.nvml, device))
        except DeviceLostError as error:
            self._lose(index, str(error), name_of(error.code))
            return None
        self._lost.pop(index, None)
        return value

    def _note(self, device: Device) -> None:
        self._at[device.index] = device.uuid
        self._seen[device.uuid] = LostGpu(
            index=device.index,
            uuid=device.uuid,
            bus_id=device.bus_id,
            reason="it was there, and the driver does not list it any more",
            code=UNLISTED,
        )

    def _lose(self, index: int, reason: str, code: str) -> None:
        """Leave it alone ever longer: a GPU in trouble is not helped by questions."""
        before = self._lost.get(index)
        pause = min(LONGEST_PAUSE, before.pause * 2) if before else FIRST_PAUSE
        self._put_aside(index, reason, code, pause)

    def _put_aside(self, index: int, reason: str, code: str, pause: float) -> None:
        seen = self._seen.get(self._at.get(index, "")) or LostGpu(index=index, reason="")
        told = msgspec.structs.replace(seen, reason=reason, code=code)
        self._lost[index] = _Lost(told, self._clock() + pause, pause)
        self._library.forget(index)


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


def create(options: Options) -> Nvidia:
    """Build the reader; loads and opens nothing yet."""
    return Nvidia(Library(options.library))
