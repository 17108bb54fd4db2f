"""What reads of the GPUs cost: whole reads, and single calls of the library by wall clock and CPU."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import msgspec

from mldebug.gpus.readings import NodeGpus, NodeWatch
from mldebug_agents.gpus.nvidia import Nvidia
from mldebug_agents.nvml import fields
from mldebug_agents.nvml.energy import KEPT
from mldebug_agents.nvml.library import Library

WARM = 2  # reads that are not counted
DEAREST = 15


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of one thing done some times: median, ninth decile, longest."""

    what: str
    gpus: int
    rounds: int
    wall: tuple[float, float, float]
    cpu: tuple[float, float, float]
    once: float = 0.0  # of it, what is asked of one GPU however many there are

    @property
    def of_eight(self) -> tuple[float, float]:
        """Median wall and CPU of eight such GPUs: reads ask one after the other, but a look only one for its energy."""
        scale = 8 / max(self.gpus, 1)
        wall, cpu = ((one - self.once) * scale + self.once for one in (self.wall[0], self.cpu[0]))
        return wall, cpu


def read_costs(reader: Nvidia, rounds: int, pause: float) -> Iterator[Cost]:
    """The two reads, with `pause` seconds before each: the averages need a window, and a driver remembers for a while."""
    for name, read in (("watch", reader.watch), ("full", reader.full)):
        told: list[NodeWatch | NodeGpus] = []
        once: list[float] = []
        for number in range(rounds + WARM):
            time.sleep(pause)
            told.append(read())
            if name == "watch" and number >= WARM:
                once.append(energy_seconds(reader) * 1e3)
        counted = told[WARM:]
        yield Cost(
            what=name,
            gpus=len(told[-1].gpus),
            rounds=rounds,
            wall=spread([one.read_seconds * 1e3 for one in counted]),
            cpu=spread([one.cpu_seconds * 1e3 for one in counted]),
            once=median(once) if once else 0.0,
        )


def energy_seconds(reader: Nvidia) -> float:
    """What the last look took for the energy of one GPU."""
    told = [one.kept[KEPT] for one in reader._library.devices() if KEPT in one.kept]
    return max(told, key=lambda one: one.at).seconds if told else 0.0


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, ninth decile, longest."""
    ordered = sorted(values)
    return median(ordered), ordered[int(0.9 * (len(ordered) - 1))], ordered[-1]


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
