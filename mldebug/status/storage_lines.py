"""Storage and checkpoints as `status --storage` prints them: lines, and JSON. Pure."""

from collections.abc import Iterator

import msgspec

from mldebug.core.redact import clean
from mldebug.core.units import duration_words, size_words
from mldebug.status.gpu_lines import StatusLine
from mldebug.status.snapshot import Snapshot
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.state import SeriesState
from mldebug.storage.filesystems.state import CollectorState, Row, StorageState

WIDEST = 300
NOTHING = "No filesystem is looked at: no job is seen here, and storage.paths names none."


def storage_lines(storage: StorageState) -> Iterator[StatusLine]:
    """The state of storage in lines: alerts, then measured values by heading, then what could not be read."""
    for alarm in storage.alarms:
        yield StatusLine(clean(f"! {alarm.whole}", WIDEST), True)
    if storage.rows.get("filesystems") == ():
        yield StatusLine(NOTHING)
    for heading, rows in storage.rows.items():
        if not rows:
            continue
        yield StatusLine(f"{heading.replace('_', ' ').capitalize()}:")
        for row in rows:
            yield StatusLine(f"  {clean(str(row.get('line', '')), WIDEST)}")
    if storage.gaps:
        yield StatusLine("Not seen:")
    for gap in storage.gaps:
        way = f" → {gap.way_out}" if gap.way_out else ""
        yield StatusLine(f"  {clean(f'{gap.what}: {gap.reason}{way}', WIDEST)}")


def storage_json(storage: StorageState) -> str:
    """The state of storage as a JSON object: a list for each heading, `alarms` and `gaps`."""
    rows = {"filesystems": (), "quotas": (), **storage.rows}
    whole = {**rows, "alarms": storage.alarms, "gaps": storage.gaps}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


NAME = "checkpoints"


def checkpoints_part(snapshot: Snapshot) -> CollectorState:
    """Rows for the checkpoints: one for each series, and below it one for each of its newest checkpoints; empty without series."""
    states = [
        *snapshot.checkpoint_series,
        *(one for run in snapshot.runs for one in run.checkpoint_series),
    ]
    rows = tuple(row for state in states for row in _rows(state, snapshot.at))
    return CollectorState(name=NAME, at=snapshot.at, rows={NAME: rows} if rows else {})


def _rows(state: SeriesState, now: float) -> Iterator[Row]:
    place = f"{clean(state.folder, 120)}/{clean(state.series, 60)}"
    key: Row = {"job": state.run, "folder": state.folder, "series": state.series}
    yield key | {"line": f"{place}: {state.sentence}"}
    for one in state.listed:
        yield key | _facts(one) | {"line": f"  {clean(one.name, 80)}  {checkpoint_words(one, now)}"}


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


def checkpoint_words(one: KnownCheckpoint, now: float) -> str:
    """A checkpoint in words: `complete, 4.2 GiB, 4 shards by 4 ranks, 12 min old`. `now`: unix time."""
    age = duration_words(round(now - one.ended))
    shards = f", {one.shards} {'shard' if one.shards == 1 else 'shards'}" if one.shards else ""
    ranks = f" by {one.world_size} ranks" if one.shards and one.world_size else ""
    why = f": {one.why}" if one.why else ""
    return f"{one.state.value}, {size_words(one.size)}{shards}{ranks}, {age} old{why}"
