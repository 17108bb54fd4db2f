"""The saves that an agent knows, as a part of `status --storage`. Pure."""

from collections.abc import Iterator

from mldebug.core.redact import clean
from mldebug.core.units import format_duration
from mldebug.status.snapshot import Snapshot
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.state import SeriesState, size_words
from mldebug.storage.filesystems.state import CollectorState, Row

NAME = "checkpoints"


def saves_part(snapshot: Snapshot) -> CollectorState:
    """One row for each series, and below it one for each of its newest saves; none where nothing is known."""
    states = [*snapshot.saves, *(one for run in snapshot.runs for one in run.saves)]
    rows = tuple(row for one in states for row in _rows(one, snapshot.at))
    return CollectorState(name=NAME, at=snapshot.at, rows={NAME: rows} if rows else {})


def _rows(state: SeriesState, now: float) -> Iterator[Row]:
    place = f"{clean(state.folder, 120)}/{clean(state.series, 60)}"
    key: Row = {"job": state.run, "folder": state.folder, "series": state.series}
    yield key | {"line": f"{place}: {state.sentence}"}
    for one in state.listed:
        yield key | _facts(one) | {"line": f"  {clean(one.name, 80)}  {save_words(one, now)}"}


def _facts(one: KnownCheckpoint) -> Row:
    return {
        "name": one.name,
        "state": one.state.value,
        "why": one.why,
        "layout": one.layout,
        "bytes": one.size,
        "shards": one.shards,
        "world_size": one.world_size,
        "step": one.step,
        "began": one.began,
        "ended": one.ended,
    }


def save_words(one: KnownCheckpoint, now: float) -> str:
    """`complete, 4.2 GiB, 4 shards by 4 ranks, 12m old`."""
    age = format_duration(float(round(max(0.0, now - one.ended))))
    shards = f", {one.shards} {'shard' if one.shards == 1 else 'shards'}" if one.shards else ""
    ranks = f" by {one.world_size} ranks" if one.shards and one.world_size else ""
    why = f": {one.why}" if one.why else ""
    return f"{one.state.value}, {size_words(one.size)}{shards}{ranks}, {age} old{why}"
