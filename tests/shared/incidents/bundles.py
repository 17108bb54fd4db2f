"""Support bundles for the tests: recordings of real H200s as a bundle, and what any bundle holds."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from mldebug.hardware.gpu.readings import GpuReading, GpuWatch, NodeGpus, NodeWatch
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.support.bundle import layout
from mldebug_agents.support.bundle.layout import ClockPair, Manifest

SIGNALS = Path(__file__).parents[2] / "fixtures" / "h200" / "signals"
UUIDS = ("GPU-00000001-0000-4000-8000-000000000001", "GPU-00000002-0000-4000-8000-000000000002")
BUSES = ("00000000:45:00.0", "00000000:5D:00.0")
JOB = "h200"
FULL_EVERY = 30.0
Row = dict[str, Any]


def h200_bundle(name: str, folder: Path) -> Path:
    """The one-second recording of that name (tests/fixtures/h200/signals) as an unpacked bundle."""
    rows = [json.loads(line) for line in (SIGNALS / f"{name}.jsonl").read_text().splitlines()]
    began, ended = rows[0]["t"], rows[-1]["t"]
    files = {
        layout.WATCH: _lines([_watch(row) for row in rows]),
        layout.FULL: _lines([_full(row) for row in rows[:: int(FULL_EVERY)]] + _when_ranks_come(rows)),
        layout.STATUSES: _lines([_status(row) for row in rows]),
    }  # fmt: skip
    manifest = Manifest(
        began_at=began, ended_at=ended, clocks=ClockPair(unix=ended, monotonic=ended - began)
    )
    return write(folder, manifest, files)


def write(folder: Path, manifest: Manifest, files: dict[str, bytes]) -> Path:
    """A bundle as a folder."""
    for name, content in {layout.MANIFEST: msgspec.json.encode(manifest), **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def unpacked(path: Path) -> dict[str, bytes]:
    """Everything in a packed bundle, by its whole name."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes()))) as archive:
        found = {one.name: archive.extractfile(one) for one in archive if one.isreg()}
        return {name: file.read() for name, file in found.items() if file is not None}


def _lines(values: list[Any]) -> bytes:
    return b"".join(msgspec.json.encode(one) + b"\n" for one in values)


def _when_ranks_come(rows: list[Row]) -> list[NodeGpus]:
    """An agent reads everything soon after it has met a run."""
    return [_full(next(row for row in rows if row["ranks"]))]


def _watch(row: Row) -> NodeWatch:
    gpus = tuple(
        GpuWatch(
            uuid=UUIDS[index],
            index=index,
            bus_id=BUSES[index],
            utilization_ratio=one["util"] / 100,
            memory_utilization_ratio=one["mem_util"] / 100,
            power_watts=one["power_mw"] / 1000,
            energy_joules=one["energy_mj"] / 1000,
        )
        for index, one in enumerate(row["gpus"])
    )
    return NodeWatch(at=row["t"], gpus=gpus)


def _full(row: Row) -> NodeGpus:
    gpus = tuple(
        GpuReading(
            uuid=UUIDS[index],
            index=index,
            bus_id=BUSES[index],
            power_average_watts=one["power_mw"] / 1000,
            energy_joules=one["energy_mj"] / 1000,
        )
        for index, one in enumerate(row["gpus"])
    )
    return NodeGpus(at=row["t"], gpus=gpus, driver_version="580.159.04")


def _status(row: Row) -> Snapshot:
    alive = {int(rank): one["pid"] for rank, one in row["ranks"].items() if one["state"] != "gone"}
    run = RunState(
        id=JOB,
        name="rec_train.py",
        launcher="torchrun",
        world_size=2,
        ranks=alive,
        gpus={rank: UUIDS[rank] for rank in alive},
    )
    return Snapshot(node="h200", at=row["t"], started_at=row["t"], runs=(run,) if alive else ())
