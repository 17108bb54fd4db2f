"""What the probe child saw of a filesystem, joined to the ranks that wait on it."""

from mldebug.storage.filesystems.state import CollectorState, Row
from mldebug_agents.storage.filesystems.evidence import FRESH, stuck_devices


def told(*rows: Row) -> CollectorState:
    return CollectorState(name="filesystems", at=1000.0, rows={"filesystems": rows})


def test_a_filesystem_that_hangs_by_any_of_its_mounts_is_stuck() -> None:
    rows: tuple[Row, ...] = (
        {"device": "0:40", "stuck_seconds": 70.0},
        {"device": "0:40", "stuck_seconds": 0.0},
        {"device": "0:41", "stuck_seconds": 0.0},
    )
    assert stuck_devices(told(*rows), 1004.0) == {"0:40": 74.0}


def test_what_was_seen_long_ago_tells_nothing() -> None:
    row: Row = {"device": "0:40", "stuck_seconds": 70.0}
    assert stuck_devices(told(row), 1001.0 + FRESH) == {}
    assert stuck_devices(None, 1000.0) == {}
