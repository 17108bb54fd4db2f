"""Counters of GPU drivers made monotone: they wrap at 32 bits, start again with the driver, glitch, and lack a unit.

Keep one `Counters` per node and pass every full read through it. A total begins with what the driver tells at first.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from mldebug.gpus.readings import Activity, EccCount, GpuReading, NodeGpus, NvLink, RemappedRows

WORD = 2**32
MAX_WATTS = 100_000.0  # no GPU is near it: what is beyond is a glitch
MAX_BYTES_PER_SECOND = 100e12
MAX_EVENTS_PER_SECOND = 1e9
PCIE_LANE = (0.25e9, 0.5e9, 1e9, 2e9, 4e9, 8e9, 16e9)  # bytes a second of a lane, by generation

NANOSECOND, MICROSECOND = 1e-9, 1e-6
SLACK = 1.25  # two reads are not as far apart as the driver's own clock says
PROOFS = 3  # movements that a unit of microseconds must have fitted
BUSY = 0.5  # … one of them this near to all of the time


class Total:
    """One counter. `value` only grows."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._last = 0.0
        self._high: float | None = None  # where it was before it fell, for one read
        self.dropped = 0  # intervals that could not be

    def add(self, told: float, most: float = math.inf, wraps_at: int | None = None) -> float:
        """Take what the driver tells now; `most` is what can have been added since. Returns the total."""
        if self.value is None:
            self.value, self._last = told, told
            return told
        delta = self._delta(told, wraps_at)
        self._high = self._last if told < self._last else None
        self._last = told
        if 0 <= delta <= most:
            self.value += delta
        else:
            self.dropped += 1
        return self.value

    def grow(self, by: float) -> None:
        """Add what was counted by somebody else."""
        self.value = (self.value or 0.0) + by

    def move(self, told: float, wraps_at: int) -> None:
        """Count from the last `skip` or `move` on; the value begins at 0."""
        self.grow(self._delta(told, wraps_at))
        self.skip(told)

    def skip(self, told: float) -> None:
        """Take what the driver tells now for the beginning of the next interval; this one cannot be counted."""
        self._last, self._high = told, None

    def _delta(self, told: float, wraps_at: int | None) -> float:
        if self._high is not None and told >= self._high:
            return told - self._high  # it had not started anew: one read was wrong
        if told >= self._last:
            return told - self._last
        if wraps_at and self._last > wraps_at / 2 > told:
            return told + wraps_at - self._last
        return told  # it started anew from 0


class Unit:
    """The unit of the clock event counters, which drivers disagree about: proved by their own movements, or unknown.

    No counter can grow faster than time. What is too fast for microseconds is nanoseconds; several movements that fit
    microseconds, one of them near all of the time, are microseconds.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None  # of one tick
        self._fitted = 0
        self._busiest = 0.0

    def see(self, ticks: float, seconds: float) -> None:
        """Take one movement of one counter between two reads."""
        if self.seconds == NANOSECOND or ticks <= 0 or seconds <= 0:
            return
        share = ticks * MICROSECOND / seconds
        if share > SLACK:
            if ticks * NANOSECOND <= seconds * SLACK:  # else it is a glitch, which proves nothing
                self.seconds = NANOSECOND
            return
        self._fitted += 1
        self._busiest = max(self._busiest, share)
        if self._fitted >= PROOFS and self._busiest >= BUSY:
            self.seconds = MICROSECOND


class Counters:
    """Makes the counters of every full read monotone."""

    def __init__(self) -> None:
        self._totals: dict[tuple[object, ...], Total] = {}
        self._raw: dict[tuple[str, str], int] = {}  # clock event counters of the last read
        self._unit = Unit()
        self._at: float | None = None
        self._driver = ""

    @property
    def unit(self) -> float | None:
        """Seconds of one tick of the clock event counters; None while not known."""
        return self._unit.seconds

    @property
    def dropped(self) -> int:
        """Intervals that were left out because a counter had grown faster than it can."""
        return sum(total.dropped for total in self._totals.values())

    def take(self, node: NodeGpus) -> NodeGpus:
        """Return the same read with monotone counters and, once the unit is known, `clock_event_seconds`."""
        seconds = node.at - self._at if self._at is not None else 0.0
        if node.driver_version != self._driver:
            self._unit, self._driver = Unit(), node.driver_version
        self._calibrate(node, seconds)
        self._at = node.at
        self._forget(node)
        gpus = tuple(self._gpu(gpu, max(0.0, seconds)) for gpu in node.gpus)
        return msgspec.structs.replace(node, gpus=gpus)

    def _calibrate(self, node: NodeGpus, seconds: float) -> None:
        raw = {
            (gpu.uuid, name): count
            for gpu in node.gpus
            for name, count in gpu.clock_event_counters.items()
        }
        for key in raw.keys() & self._raw.keys():
            self._unit.see(raw[key] - self._raw[key], seconds)
        self._raw = raw

    def _forget(self, node: NodeGpus) -> None:
        here = {gpu.uuid for gpu in node.gpus} | {gpu.uuid for gpu in node.lost}
        self._totals = {key: one for key, one in self._totals.items() if key[0] in here}

    def _gpu(self, gpu: GpuReading, seconds: float) -> GpuReading:
        def total(name: str, told: float | None, rate: float = MAX_EVENTS_PER_SECOND) -> Any:
            if told is None:
                return None
            key = (gpu.uuid, name)
            return self._totals.setdefault(key, Total()).add(told, rate * seconds)

        def each(name: str, told: Mapping[str, int]) -> dict[str, int]:
            return {kind: total(f"{name} {kind}", count) for kind, count in told.items()}

        return msgspec.structs.replace(
            gpu,
            energy_joules=total("energy", gpu.energy_joules, MAX_WATTS),
            clock_event_seconds=self._clock_events(gpu),
            ecc=tuple(_ecc(one, total) for one in gpu.ecc),
            remapped_rows=_rows(gpu.remapped_rows, total),
            pcie_replays=total("replays", gpu.pcie_replays),
            pcie_errors=each("pcie", gpu.pcie_errors),
            pcie_receive_bytes=self._pcie(gpu, "receive", seconds),
            pcie_transmit_bytes=self._pcie(gpu, "transmit", seconds),
            nvlinks=tuple(_link(one, each) for one in gpu.nvlinks),
            nvlink_receive_bytes=total("nvlink in", gpu.nvlink_receive_bytes, MAX_BYTES_PER_SECOND),
            nvlink_transmit_bytes=total(
                "nvlink out", gpu.nvlink_transmit_bytes, MAX_BYTES_PER_SECOND
            ),
        )

    def _clock_events(self, gpu: GpuReading) -> dict[str, float]:
        unit, found = self._unit.seconds, {}
        for name, raw in gpu.clock_event_counters.items():
            ticks = self._totals.setdefault((gpu.uuid, "event", name), Total()).add(raw)
            if unit is not None:
                found[name] = ticks * unit
        return found

    def _pcie(self, gpu: GpuReading, way: str, seconds: float) -> int | None:
        """Bytes since the first read: of the averages where there are any, else of the counter of 32 bits.

        That counter wraps many times between two reads of a busy link, and nobody can tell how often: an interval in which
        it can have done so is left out, and where that is every one there is no number.
        """
        total = self._totals.setdefault((gpu.uuid, "pcie bytes", way), Total())
        rate = _rate(gpu.activity, way)
        if gpu.activity is not None and rate is not None:
            total.grow(rate * gpu.activity.window_seconds)
        else:
            raw = getattr(gpu, f"pcie_{way}_bytes")
            if raw is not None and 0 < _lanes(gpu) * seconds < WORD:
                total.move(raw, WORD)
            elif raw is not None:
                total.skip(raw)
        return None if total.value is None else int(total.value)


def _rate(activity: Activity | None, way: str) -> float | None:
    found = getattr(activity, f"pcie_{way}_bytes_per_second", None)
    return float(found) if found is not None else None


def _lanes(gpu: GpuReading) -> float:
    """Bytes a second that the PCIe link can carry."""
    generation = min(max(gpu.pcie_generation_max or len(PCIE_LANE), 1), len(PCIE_LANE))
    return PCIE_LANE[generation - 1] * (gpu.pcie_width_max or 32)


def _ecc(one: EccCount, total: Any) -> EccCount:
    name = f"ecc {one.type} {one.location} {one.scope}"
    return msgspec.structs.replace(one, count=total(name, one.count))


def _rows(rows: RemappedRows | None, total: Any) -> RemappedRows | None:
    if rows is None:
        return None
    return msgspec.structs.replace(
        rows,
        corrected=total("rows corrected", rows.corrected),
        uncorrected=total("rows uncorrected", rows.uncorrected),
    )


def _link(link: NvLink, each: Any) -> NvLink:
    return msgspec.structs.replace(link, errors=each(f"nvlink {link.link}", link.errors))
