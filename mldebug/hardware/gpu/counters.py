"""Makes counters of GPU drivers monotone: they wrap at 32 bits, start again with the driver, give wrong values now and then, and lack a unit.

Keep one `Counters` per node and pass every full reading through it. A total begins with the
driver's first value.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from mldebug.hardware.gpu.readings import (
    EccCount,
    GpuActivity,
    GpuReading,
    LostGpu,
    NodeGpus,
    NvLink,
    RemappedRows,
)
from mldebug.hardware.gpu.total import NANOSECOND, SLACK, TimeUnit, Total

WORD = 2**32
MAX_WATTS = 100_000.0  # no GPU is near it: what is beyond is a glitch
MAX_BYTES_PER_SECOND = 100e12
MAX_EVENTS_PER_SECOND = 1e6
MAX_BAD = 4096  # uncorrectable errors and rows between two reads: no job lives through so many
SAME_UUID = "same_uuid"
PCIE_LANE = (0.25e9, 0.5e9, 1e9, 2e9, 4e9, 8e9, 16e9)  # bytes a second of a lane, by generation
Count = Callable[[str, int, float], int]
"""Make a counter monotone: name, what is told, seconds since it was told last -> its total."""


class Counters:
    """Replaces the counters of full readings by ones that never fall, whatever a driver or a restart does to them."""

    def __init__(self) -> None:
        self._totals: dict[tuple[object, ...], Total] = {}
        self._links = LinkErrors()
        self._raw: dict[tuple[str, str], int] = {}  # clock event counters of the last read
        self._unit = TimeUnit()
        self._at: float | None = None
        self._driver = ""

    @property
    def unit(self) -> float | None:
        """Seconds of one tick of the counters of clock events (reasons for lowered clocks); None while not known."""
        return self._unit.seconds

    @property
    def dropped(self) -> int:
        """How many intervals were left out because a counter had grown faster than is possible."""
        return sum(total.dropped for total in self._totals.values())

    def take(self, node: NodeGpus) -> NodeGpus:
        """Return the full reading with counters that never fall and, once their unit is known, with `clock_event_seconds`.

        GPUs with the same UUID cannot be told apart, and are treated as GPUs that do not answer.
        """
        node = _distinct(node)
        seconds = node.at - self._at if self._at is not None else 0.0
        if node.driver_version != self._driver:
            self._unit, self._driver = TimeUnit(), node.driver_version
        self._calibrate(node, seconds)
        self._at = node.at
        self._forget(node)
        gpus = tuple(self._gpu(gpu, max(0.0, seconds), node.at) for gpu in node.gpus)
        return msgspec.structs.replace(node, gpus=gpus)

    def _calibrate(self, node: NodeGpus, seconds: float) -> None:
        raw = {
            (gpu.uuid, name): count
            for gpu in node.gpus
            for name, count in gpu.clock_event_counters.items()
        }
        both = raw.keys() & self._raw.keys()
        self._unit.see([(key[1], raw[key] - self._raw[key]) for key in both], seconds)
        self._raw = raw

    def _forget(self, node: NodeGpus) -> None:
        here = {gpu.uuid for gpu in node.gpus} | {gpu.uuid for gpu in node.lost}
        self._totals = {key: one for key, one in self._totals.items() if key[0] in here}
        self._links.keep_only(here)

    def _gpu(self, gpu: GpuReading, seconds: float, at: float) -> GpuReading:
        def count(name: str, value: float | None, most: float) -> Any:
            if value is None:
                return None
            return self._totals.setdefault((gpu.uuid, name), Total()).add(value, most)

        def total(name: str, value: float | None, rate: float = MAX_EVENTS_PER_SECOND) -> Any:
            return count(name, value, rate * seconds)

        def errors(name: str, value: int, since: float) -> Any:
            return count(name, value, MAX_EVENTS_PER_SECOND * since)

        def each(name: str, values: Mapping[str, int]) -> dict[str, int]:
            return {kind: total(f"{name} {kind}", count) for kind, count in values.items()}

        return msgspec.structs.replace(
            gpu,
            energy_joules=total("energy", gpu.energy_joules, MAX_WATTS),
            clock_event_seconds=self._clock_events(gpu, seconds),
            ecc=tuple(_ecc(one, count, seconds) for one in gpu.ecc),
            remapped_rows=_rows(gpu.remapped_rows, count),
            pcie_replays=total("replays", gpu.pcie_replays),
            pcie_errors=each("pcie", gpu.pcie_errors),
            pcie_receive_bytes=self._pcie(gpu, "receive", seconds),
            pcie_transmit_bytes=self._pcie(gpu, "transmit", seconds),
            nvlinks=tuple(self._links.take(gpu, at, errors)),
            nvlink_receive_bytes=total("nvlink in", gpu.nvlink_receive_bytes, MAX_BYTES_PER_SECOND),
            nvlink_transmit_bytes=total(
                "nvlink out", gpu.nvlink_transmit_bytes, MAX_BYTES_PER_SECOND
            ),
        )

    def _clock_events(self, gpu: GpuReading, seconds: float) -> dict[str, float]:
        unit, found = self._unit.seconds, {}
        most = SLACK * seconds / (unit or NANOSECOND)
        for name, raw in gpu.clock_event_counters.items():
            ticks = self._totals.setdefault((gpu.uuid, "event", name), Total()).add(raw, most)
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


def _rate(activity: GpuActivity | None, way: str) -> float | None:
    found = getattr(activity, f"pcie_{way}_bytes_per_second", None)
    return float(found) if found is not None else None


def _lanes(gpu: GpuReading) -> float:
    """Bytes a second that the PCIe link can carry."""
    generation = min(max(gpu.pcie_generation_max or len(PCIE_LANE), 1), len(PCIE_LANE))
    return PCIE_LANE[generation - 1] * (gpu.pcie_width_max or 32)


def _ecc(one: EccCount, count: Any, seconds: float) -> EccCount:
    name = f"ecc {one.type} {one.location} {one.scope}"
    most = MAX_BAD if one.type == "uncorrected" else MAX_EVENTS_PER_SECOND * seconds
    return msgspec.structs.replace(one, total=count(name, one.count, most))


def _rows(rows: RemappedRows | None, count: Any) -> RemappedRows | None:
    if rows is None:
        return None
    return msgspec.structs.replace(
        rows,
        corrected_total=count("rows corrected", rows.corrected, MAX_BAD),
        uncorrected_total=count("rows uncorrected", rows.uncorrected, MAX_BAD),
    )


def _distinct(node: NodeGpus) -> NodeGpus:
    """The same with GPUs of one UUID among those that do not answer."""
    uuids = [one.uuid for one in node.gpus]
    doubled = {uuid for uuid in uuids if uuids.count(uuid) > 1}
    if not doubled:
        return node
    reason = "another GPU tells the same UUID"
    more = tuple(
        LostGpu(index=one.index, bus_id=one.bus_id, reason=reason, code=SAME_UUID)
        for one in node.gpus
        if one.uuid in doubled
    )
    clear = tuple(one for one in node.gpus if one.uuid not in doubled)
    return msgspec.structs.replace(node, gpus=clear, lost=(*node.lost, *more))


class _LinkErrorCounts(msgspec.Struct):
    """One link, as it was when its errors were asked for last."""

    at: float
    errors: dict[str, int]  # totals
    grown: dict[str, int] = {}
    seconds: float | None = None


class LinkErrors:
    """The growth of NVLink error counters between the last two readings that asked for them.

    A link is asked only at one of twenty full readings. A rate over the time between two full
    readings would be twenty times too high once, and then 0 for ten minutes.
    """

    def __init__(self) -> None:
        self._errors_read: dict[tuple[str, int], _LinkErrorCounts] = {}

    def take(self, gpu: GpuReading, at: float, count: Count) -> Iterator[NvLink]:
        """The GPU's NVLinks with error counts that never fall, and the growth of each since it was last asked.

        `at`: unix time of the reading; `count`: makes one counter monotone.
        """
        for link in gpu.nvlinks:
            key = (gpu.uuid, link.link)
            before = self._errors_read.get(key)
            if link.errors_read or before is None:
                before = self._errors_read[key] = _ask(link, at, before, count)
            yield msgspec.structs.replace(
                link, errors=before.errors, grown=before.grown, grown_seconds=before.seconds
            )

    def keep_only(self, uuids: set[str]) -> None:
        """Forget all GPUs but these."""
        self._errors_read = {key: one for key, one in self._errors_read.items() if key[0] in uuids}


def _ask(
    link: NvLink, at: float, before: _LinkErrorCounts | None, count: Count
) -> _LinkErrorCounts:
    seconds = max(0.0, at - before.at) if before else 0.0
    totals = {
        kind: count(f"nvlink {link.link} {kind}", errors, seconds)
        for kind, errors in link.errors.items()
    }
    old = before.errors if before else {}
    more = {kind: total - old[kind] for kind, total in totals.items() if kind in old}
    grown = {kind: one for kind, one in more.items() if one}
    return _LinkErrorCounts(at, totals, grown, seconds or None)
