"""The saves in `status --storage`."""

import msgspec

from mldebug.status.snapshot import Snapshot
from mldebug.status.storage_lines import checkpoints_part, storage_json, storage_lines
from mldebug.storage.checkpoints.history import CheckpointReading, CheckpointSeries
from mldebug.storage.checkpoints.model import CheckpointVerdict, Completeness
from mldebug.storage.checkpoints.state import LISTED, series_state
from mldebug.storage.filesystems.state import StorageState

NOW = 1_700_000_000.0


def series(count: int) -> CheckpointSeries:
    found = []
    for step in range(count):
        verdict = CheckpointVerdict(layout="distributed", state=Completeness.COMPLETE, shards=4)
        if step == count - 1:
            verdict = CheckpointVerdict(layout="distributed", state=Completeness.INCOMPLETE, why="\x1b[31mcut", shards=3)  # fmt: skip
        at = NOW - 7200 + step * 60
        found.append(CheckpointReading(name=f"step_{step}", size=1 << 30, files=5, oldest=at, newest=at, inode=step, verdict=verdict))  # fmt: skip
    it = CheckpointSeries()
    it.look(NOW - 8000, [], whole=True)
    it.look(NOW - 6530, found, whole=True, world_size=4)
    it.look(NOW, found, whole=True, world_size=4)
    return it


def test_each_series_is_told_with_its_newest_saves() -> None:
    state = series_state(series(12), ("", "/ckpt/\x1b[0mname", "step_#"), NOW)
    part = checkpoints_part(Snapshot(node="n", at=NOW, started_at=NOW, checkpoint_series=(state,)))
    storage_state = StorageState(parts=(part,))
    lines = [one.text for one in storage_lines(storage_state)]
    assert lines[0] == "Checkpoints:"
    assert lines[1].startswith("  /ckpt/name/step_#: last complete checkpoint step_10 ")
    assert lines[2] == "    step_11  incomplete, 1 GiB, 3 shards by 4 ranks, 1 h 49 min old: cut"
    assert lines[3] == "    step_10  complete, 1 GiB, 4 shards by 4 ranks, 1 h 50 min old"
    assert len(lines) == 2 + LISTED
    assert all(one.isprintable() for one in lines)
    rows = msgspec.json.decode(storage_json(storage_state))["checkpoints"]
    assert (rows[1]["name"], rows[1]["state"], rows[1]["world_size"]) == (
        "step_11",
        "incomplete",
        4,
    )


def test_where_nothing_is_known_there_is_no_heading() -> None:
    assert checkpoints_part(Snapshot(node="n", at=NOW, started_at=NOW)).rows == {}
