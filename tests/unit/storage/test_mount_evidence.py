"""What the probe child saw of a filesystem, joined to the ranks that wait on it."""

from mldebug.storage.filesystems.state import CollectorState, Row
from mldebug.storage.filesystems.visibility import UIDS
from mldebug_agents.storage.filesystems.evidence import FRESH, LATELY, RecentFills, stuck_devices


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


def test_an_exit_is_told_how_full_its_user_s_filesystems_were() -> None:
    full: Row = {"device": "0:40", "mount": "/data", "line": "/data: 99.9% used", "used_ratio": 0.999, UIDS: "1000 1001"}  # fmt: skip
    other = full | {"mount": "/home/x", UIDS: "2000"}
    common = full | {"mount": "/", "used_ratio": 0.4, UIDS: ""}
    silent = full | {"mount": "/nfs", "used_ratio": None}
    state = told(full, other, common, silent)
    recent = RecentFills()
    recent.add(state)
    recent.add(CollectorState(name="filesystems", at=state.at + 5.0))  # the job has ended since

    fills = recent.of_users({1000}, state.at + 7.0)

    assert [(one.mount, one.used_ratio, one.age) for one in fills] == [("/data", 0.999, 7.0), ("/", 0.4, 7.0)]  # fmt: skip
    assert recent.of_users({1000}, state.at + 2 * LATELY) == ()
    recent.add(CollectorState(name="filesystems", at=state.at + 2 * LATELY))
    assert recent.of_users({1000}, state.at + 7.0) == ()
