"""What the probe child saw of a filesystem, joined to the ranks that wait on it."""

from mldebug.storage.filesystems.state import CollectorState, Row
from mldebug.storage.filesystems.visibility import UIDS
from mldebug_agents.storage.filesystems.evidence import (
    AT_END,
    FRESH,
    LATELY,
    RecentFills,
    stuck_devices,
)


def state_of(*rows: Row) -> CollectorState:
    return CollectorState(name="filesystems", at=1000.0, rows={"filesystems": rows})


def test_a_filesystem_that_hangs_by_any_of_its_mounts_is_stuck() -> None:
    rows: tuple[Row, ...] = (
        {"device": "0:40", "stuck_seconds": 70.0},
        {"device": "0:40", "stuck_seconds": 0.0},
        {"device": "0:41", "stuck_seconds": 0.0},
    )
    assert stuck_devices(state_of(*rows), 1004.0) == {"0:40": 74.0}


def test_what_was_seen_long_ago_tells_nothing() -> None:
    row: Row = {"device": "0:40", "stuck_seconds": 70.0}
    assert stuck_devices(state_of(row), 1001.0 + FRESH) == {}
    assert stuck_devices(None, 1000.0) == {}


def test_an_exit_is_told_how_full_its_user_s_filesystems_were() -> None:
    full: Row = {"device": "0:40", "mount": "/data", "line": "/data: 99.9% used", "used_ratio": 0.999, UIDS: "1000 1001"}  # fmt: skip
    other = full | {"mount": "/home/x", UIDS: "2000"}
    common = full | {"mount": "/", "used_ratio": 0.4, UIDS: ""}
    silent = full | {"mount": "/nfs", "used_ratio": None}
    state = state_of(full, other, common, silent)
    recent = RecentFills()
    recent.add(state)
    recent.add(CollectorState(name="filesystems", at=state.at + 5.0))  # the job has ended since

    fills = recent.of_users({1000}, state.at + 7.0)

    assert [(one.mount, one.used_ratio, one.age) for one in fills] == [("/data", 0.999, 7.0), ("/", 0.4, 7.0)]  # fmt: skip
    assert recent.of_users({1000}, state.at + 2 * LATELY) == ()
    recent.add(CollectorState(name="filesystems", at=state.at + 2 * LATELY))
    assert recent.of_users({1000}, state.at + 7.0) == ()


def test_what_was_full_at_the_end_and_was_freed_by_it_counts() -> None:
    """A job that dies of a full disk removes its temporary files: the look after that finds space."""
    recent = RecentFills()
    for at, used in ((1000.0, 0.93), (1020.0, 1.0), (1040.0, 0.6)):
        row: Row = {"device": "0:40", "mount": "/data", "line": f"/data: {used:.0%} used", "used_ratio": used, UIDS: ""}  # fmt: skip
        recent.add(CollectorState(name="filesystems", at=at, rows={"filesystems": (row,)}))

    soon, late = recent.of_users({1000}, 1041.0), recent.of_users({1000}, 1041.0 + AT_END)

    assert [(one.line, one.age) for one in soon] == [("/data: 100% used", 21.0)]
    assert [one.line for one in late] == ["/data: 60% used"]
