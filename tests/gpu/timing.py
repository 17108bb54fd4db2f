"""What reads of the GPUs cost: whole reads, and single calls of the library by wall clock and CPU."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import msgspec

from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch
from mldebug_agents.hardware.gpu.nvml import fields
from mldebug_agents.hardware.gpu.nvml.library import Library
from mldebug_agents.hardware.gpu.nvml.watch_read import KEPT, Energy
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia

WARM = 2  # reads that are not counted
DEAREST = 15


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of one thing done some times: median, ninth decile, longest."""

    what: str
    gpus: int
    rounds: int
    wall: tuple[float, float, float]
    cpu: tuple[float, float, float]
    bare: tuple[
        float, float
    ]  # medians of wall and CPU without what is asked of one GPU however many there are
    requests: int = 0  # reads that asked a GPU for its energy
    energy: tuple[float, float, float] | None = None  # what that alone took in those; None: in none
    first: float = 0.0  # wall of the very first read, which is not among the others

    @property
    def of_eight(self) -> tuple[float, float]:
        """Wall and CPU of eight such GPUs: reads ask one after the other, but a look only one for its energy.

        A look counts as one that asks it, and waits for it as long as nine of ten do.
        """
        scale = 8 / max(self.gpus, 1)
        energy = self.energy[1] if self.energy else 0.0
        wall, cpu = (one * scale + energy for one in self.bare)
        return wall, cpu


def read_costs(reader: Nvidia, rounds: int, pause: float) -> Iterator[Cost]:
    """The two reads, with `pause` seconds before each: the averages need a window, and a driver remembers for a while."""
    for name, read in (("watch", reader.watch), ("full", reader.full)):
        result: list[NodeWatch | NodeGpus] = []
        once: list[float] = []
        for _ in range(rounds + WARM):
            time.sleep(pause)
            before = energies(reader)
            result.append(read())
            news = energies(reader).items() - before.items() if name == "watch" else ()
            once.append(sum(one.seconds for _, one in news) * 1e3)
        walls = [one.read_seconds * 1e3 for one in result[WARM:]]
        cpus = [one.cpu_seconds * 1e3 for one in result[WARM:]]
        matching = [one for one in once[WARM:] if one > 0]
        yield Cost(
            what=name,
            gpus=len(result[-1].gpus),
            rounds=rounds,
            wall=spread(walls),
            cpu=spread(cpus),
            bare=(_without(walls, once[WARM:]), _without(cpus, once[WARM:])),
            requests=len(matching),
            energy=spread(matching) if matching else None,
            first=result[0].read_seconds * 1e3,
        )


def _without(all_of_it: Sequence[float], part: Sequence[float]) -> float:
    return median(max(one - other, 0.0) for one, other in zip(all_of_it, part, strict=True))


def energies(reader: Nvidia) -> dict[int, Energy]:
    """What each GPU told last of its energy, when, and the seconds that took."""
    kept = {one.index: one.kept.get(KEPT) for one in reader._library.devices()}
    return {index: one for index, one in kept.items() if one is not None}


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, ninth decile, longest. The decile is the smallest value that nine of ten do not exceed."""
    ordered = sorted(values)
    rank = -(-9 * len(ordered) // 10)
    return median(ordered), ordered[rank - 1], ordered[-1]


# --- single calls --------------------------------------------------------------------------------


class Timed:
    """The binding, with a clock around every call of the library."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        return self._clocked(name, found) if name.startswith("nvml") and callable(found) else found

    def _clocked(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds[name] += time.perf_counter() - started
                self.calls[name] += 1

        return timed


def dearest(reader: Nvidia, library: Library, read: str = "full") -> list[tuple[str, int, float]]:
    """Function, calls and milliseconds of one read of all GPUs; the averages (GPM) are not among them."""
    plain = library.nvml
    timed = Timed(plain)
    library.nvml = timed  # type: ignore[assignment]
    try:
        getattr(reader, read)()
    finally:
        library.nvml = plain
    names = sorted(timed.seconds, key=lambda name: -timed.seconds[name])[:DEAREST]
    return [(name, timed.calls[name], timed.seconds[name] * 1e3) for name in names]


def candidates(library: Library, rounds: int, pause: float) -> list[dict[str, Any]]:
    """Ways to ask for what the watch needs, each cold (after a pause) and once more at once, in milliseconds a GPU.

    What a library does not have is told with its error.
    """
    library.start()
    device = library.device(0)
    found: list[dict[str, Any]] = []
    for name, call in _ways(library.nvml, device.handle).items():
        try:
            cold, again = _timed(call, rounds, pause)
        except Exception as error:  # noqa: BLE001 - whatever a way fails with is the finding
            found.append({"way": name, "error": f"{type(error).__name__}: {error}"})
            continue
        walls, cpus = zip(*cold, strict=True)
        repeated = median(wall for wall, _ in again)
        found.append({"way": name, "wall": spread(walls), "cpu": spread(cpus), "again": repeated})
    return found


def _timed(call: Callable[[], Any], rounds: int, pause: float) -> tuple[list[Any], list[Any]]:
    cold, again = [], []
    for _ in range(rounds):
        time.sleep(pause)
        cold.append(_once(call))
        again.append(_once(call))
    return cold, again


def _once(call: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def _ways(nvml: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    def batch(*numbers: int) -> Callable[[], Any]:
        return lambda: nvml.nvmlDeviceGetFieldValues(gpu, [(one, 0) for one in numbers])

    def samples(kind: int) -> Callable[[], Any]:
        return lambda: nvml.nvmlDeviceGetSamples(gpu, kind, 0)

    averages = nvml.nvmlGpmSampleAlloc() if hasattr(nvml, "nvmlGpmSampleAlloc") else None
    return {
        "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu),
        "power": lambda: nvml.nvmlDeviceGetPowerUsage(gpu),
        "power, instant: field": batch(fields.POWER_INSTANT),
        "power, average: field": batch(fields.POWER_AVERAGE),
        "energy": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        "energy: field": batch(fields.ENERGY),
        "power and energy: fields": batch(fields.POWER_INSTANT, fields.ENERGY),
        "samples of power": samples(0),
        "samples of utilization": samples(1),
        "samples of memory utilization": samples(2),
        "processes' utilization": lambda: nvml.nvmlDeviceGetProcessUtilization(gpu, 0),
        "GPM sample": lambda: nvml.nvmlGpmSampleGet(gpu, averages),
        "clock": lambda: nvml.nvmlDeviceGetClockInfo(gpu, 1),
        "memory": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu),
        "processes": lambda: nvml.nvmlDeviceGetComputeRunningProcesses(gpu),
        "one link error counter": lambda: nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, 0, 3),
    }
