"""Our metrics beside those of nvidia-smi: two reads of ours around one of its own.

`same`: equal within the digits that it prints. `between`: it lies between our two reads. `moved`: it moves from second to
second, and is off by as much as is told, but not by more than such a value may move. `differs`: anything else. `only ours`:
nvidia-smi has no such line.
"""

from collections.abc import Iterator, Mapping

import msgspec

from gpu.smi import Key, Value
from mldebug.hardware.gpu.readings import NodeGpus
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.metrics.hardware.gpus import samples

OURS = "mldebug_gpu_"
MOVING: dict[str, tuple[float, float]] = {
    "utilization_ratio": (0.0, 0.5),
    "memory_utilization_ratio": (0.0, 0.5),
    "power_watts": (0.25, 30.0),
    "clock_hertz": (0.25, 1e8),
    "temperature_celsius": (0.0, 5.0),
    "temperature_margin_celsius": (0.0, 5.0),
    "memory_bytes": (0.02, 2.5e8),
    "process_memory_bytes": (0.02, 2.5e8),
    "clock_event_seconds_total": (0.0, 1.0),
    "clock_event_active": (0.0, 1.0),
    "performance_state": (0.0, 8.0),
}
"""What moves from second to second, and how far: as a share of what nvidia-smi says, and in its unit; the larger counts.

Far enough for two reads some tenths of a second apart, and too little for a wrong unit.
"""
SLACK = {
    "memory_bytes": 2.0**20,
    "memory_size_bytes": 2.0**20,
    "process_memory_bytes": 2.0**20,
    "power_watts": 0.01,
    "utilization_ratio": 1e-9,
    "clock_event_seconds_total": 1e-6,
}  # half a unit of what nvidia-smi prints, or the whole where it rounds down
WHY = {
    "memory_bytes": "printed in whole MiB",
    "memory_size_bytes": "printed in whole MiB",
    "process_memory_bytes": "printed in whole MiB for each process",
    "power_watts": "moves from read to read; asked some milliseconds apart",
    "utilization_ratio": "the driver's own window of up to a second, asked at another moment",
    "memory_utilization_ratio": "the driver's own window of up to a second, asked at another moment",
    "clock_hertz": "moves from read to read",
    "temperature_celsius": "moves from read to read",
    "temperature_margin_celsius": "moves from read to read",
    "clock_event_seconds_total": "ours counts on between the reads; theirs calls nanoseconds microseconds on some drivers",
    "clock_event_active": "moves from read to read",
}
NO_LINE = {
    "activity": "by GPM, which nvidia-smi -q does not print",
    "temperature_limit_celsius": "nvidia-smi prints margins for this GPU in place of temperatures",
    "nvlink_up": "nvidia-smi nvlink was not to be had",
    "nvlink_errors_total": "nvidia-smi nvlink does not print this kind",
    "energy_joules_total": "not in nvidia-smi -q; compared with the average power",
    "ecc_errors_total": "nvidia-smi prints SRAM and DRAM only",
    "pcie_errors_total": "not in nvidia-smi -q",
    "recovery_action": "nvidia-smi prints the active one only",
}

NOT_OURS = {
    "clock_event_seconds_total": "ours is absent until a movement has proved the driver's unit"
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one GPU. `off`: the difference as a share of what nvidia-smi says; None where that is nothing."""

    gpu: int
    metric: str
    labels: str
    before: Value
    after: Value | None
    theirs: Value | None
    verdict: str
    off: float | None = None
    why: str = ""


def ours(node: NodeGpus) -> dict[str, dict[Key, Value]]:
    """Every metric that the exposition has of each GPU, by uuid."""
    snapshot = Snapshot(node="", at=node.at, started_at=node.at, gpus=node)
    found: dict[str, dict[Key, Value]] = {one.uuid: {} for one in node.gpus}
    for sample in samples(snapshot):
        family = sample.family
        if not family.series.startswith(OURS) or family.labels[:1] != ("uuid",):
            continue
        name, entry = family.series.removeprefix(OURS), found[sample.labels[0]]
        if family.kind == "info":
            named = zip(family.labels, sample.labels, strict=True)
            entry |= {("info", label): value for label, value in named if label not in ("uuid", "gpu")}  # fmt: skip
        elif isinstance(sample.value, float | int):
            entry[name, *sample.labels[2:]] = float(sample.value)
    return found


def table(before: NodeGpus, theirs: Mapping[str, Mapping[Key, Value]], after: NodeGpus) -> list[Row]:  # fmt: skip
    """All metrics of all GPUs, in the order of the exposition."""
    first, second = ours(before), ours(after)
    return [
        row
        for gpu in before.gpus
        for row in _rows(
            gpu.index, first[gpu.uuid], theirs.get(gpu.uuid, {}), second.get(gpu.uuid, {})
        )
    ]


def _rows(gpu: int, first: Mapping[Key, Value], theirs: Mapping[Key, Value], second: Mapping[Key, Value]) -> Iterator[Row]:  # fmt: skip
    for key in (*first, *(one for one in second if one not in first)):
        value, now = theirs.get(key), second.get(key)
        before = first.get(key, now)
        assert before is not None
        verdict, off = _judge(key, before, value, now)
        yield Row(
            gpu=gpu,
            metric=key[0],
            labels=" ".join(key[1:]),
            before=before,
            after=now,
            theirs=value,
            verdict=verdict,
            off=off,
            why=_why(key, verdict),
        )
    for key in theirs.keys() - first.keys() - second.keys():
        yield Row(
            gpu=gpu,
            metric=key[0],
            labels=" ".join(key[1:]),
            before="",
            after=None,
            theirs=theirs[key],
            verdict="only theirs",
            why=NOT_OURS.get(key[0], ""),
        )


def _judge(key: Key, before: Value, theirs: Value | None, after: Value | None) -> tuple[str, float | None]:  # fmt: skip
    if theirs is None:
        return "only ours", None
    mine = [one for one in (before, after) if one is not None]
    if isinstance(theirs, str) or any(isinstance(one, str) for one in mine):
        return ("same" if theirs in mine else "differs"), None
    numbers = [float(one) for one in mine]
    slack = SLACK.get(key[0], 1e-6)
    if any(abs(one - theirs) <= slack for one in numbers):
        return "same", 0.0
    if min(numbers) <= theirs <= max(numbers):
        return "between", 0.0
    off = min(abs(one - theirs) for one in numbers)
    share, most = MOVING.get(key[0], (0.0, 0.0))
    word = "moved" if off <= max(share * abs(theirs), most) else "differs"
    return word, off / abs(theirs) if theirs else None


def _why(key: Key, verdict: str) -> str:
    if verdict == "only ours":
        by_gpm = key[0].endswith("active_ratio") or key[0] == "sm_occupancy_ratio"
        return NO_LINE["activity"] if by_gpm else NO_LINE.get(key[0], "not in nvidia-smi -q")
    return WHY.get(key[0], "") if verdict in ("moved", "differs", "between") else ""
