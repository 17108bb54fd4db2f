"""The page about who uses what: sums, checkpoints that could go, and that everybody sees their own."""

from msgspec.structs import replace

from mldebug.status.snapshot import Snapshot
from mldebug.storage.checkpoints.history import CheckpointReading, CheckpointSeries
from mldebug.storage.checkpoints.model import CheckpointVerdict, Completeness
from mldebug.storage.checkpoints.state import SeriesState, series_state
from mldebug.storage.filesystems.state import CollectorState, Row, StorageState
from mldebug.web import frame
from mldebug.web.page import PageRequest
from mldebug.web.pages.usage import NOT_YET, UsagePage, UsagePageData
from mldebug_agents.web.peer_credentials import PeerCredentials, view
from shared.web.pagedata import quiet, saved
from shared.web.snapshots import moving
from shared.web.webtext import HOSTILE, text_of

GIB = 1 << 30
WHOLE = CheckpointVerdict(state=Completeness.COMPLETE)


def tree(path: str, size: int, job: str = "", uids: str = "", **more: object) -> Row:
    return {"path": path, "how": "watched", "bytes": size, "inodes": 12, "line": path, "job": job, "uids": uids} | more  # type: ignore[return-value]  # fmt: skip


def counted(*rows: Row, **changes: object) -> Snapshot:
    runs = (
        replace(moving(), id="a", name="train.py", user="ada", uid=1001),
        replace(moving(), id="b", name="eval.py", user="bob", uid=1002),
    )
    storage = StorageState(parts=(CollectorState(name="trees", at=0.0, rows={"trees": rows}),))
    return quiet(*runs, storage=storage, **changes)


ROWS = (
    tree("/scratch/ada/run", 40 * GIB, "a", "1001"),
    tree("/scratch/ada/logs", 2 * GIB, "a", "1001"),
    tree("/scratch/bob/run", 7 * GIB, "b", "1002", lower_bound=True),
    tree("/scratch", 100 * GIB),
)


def built(snapshot: Snapshot) -> UsagePageData:
    return UsagePage().build(PageRequest(snapshot=snapshot))


def test_sums_by_user_and_the_largest_directories_first() -> None:
    shown = built(counted(*ROWS))
    assert [(one.user, one.size, one.runs) for one in shown.users] == [("ada", "42 GiB", "train.py"), ("bob", "7 GiB", "eval.py")]  # fmt: skip
    assert [one.path for one in shown.folders][:2] == ["/scratch", "/scratch/ada/run"]
    assert shown.folders[2].how == "at least so much"
    assert shown.lead == "100 GiB in 1 directory"  # the others lie in it


def test_a_user_sees_the_directories_of_their_own_runs_and_those_of_the_configuration() -> None:
    mine = view(counted(*ROWS), PeerCredentials(pid=1, uid=1002), None)
    assert {one.path for one in built(mine).folders} == {"/scratch", "/scratch/bob/run"}
    assert [one.user for one in built(mine).users] == ["bob"]
    assert "ada" not in text_of(frame.render("usage", PageRequest(snapshot=mine)) or "")
    stranger = view(counted(*ROWS), PeerCredentials(pid=1, uid=54321), None)
    assert [one.path for one in built(stranger).folders] == ["/scratch"]


def series(sizes: int = 6) -> SeriesState:
    """Whole checkpoints of 10 GiB, ten minutes apart, and one that was cut."""
    kept = CheckpointSeries()
    readings = [
        CheckpointReading(name=f"step-{100 * one}", size=10 * GIB, oldest=600.0 * one, newest=600.0 * one + 1, verdict=WHOLE)
        for one in range(1, sizes + 1)
    ]  # fmt: skip
    kept.look(10_000.0, readings, whole=True)
    return series_state(kept, ("a", "/scratch/ada/run", "step-#"), 10_000.0)


def test_what_would_be_free_is_told_for_each_number_of_kept_checkpoints() -> None:
    shown = built(counted(*ROWS, checkpoint_series=(series(),)))
    (row,) = [one for one in shown.series if one.place == "/scratch/ada/run/step-#"]
    assert (row.size, row.run) == ("60 GiB", "train.py")
    assert row.frees == ("50 GiB", "40 GiB", "30 GiB", "10 GiB")
    assert [one.split(",")[0] for one in row.could_go] == ["step-100", "step-200", "step-300"]
    assert "30 GiB would be free if the newest 3 checkpoints stay" in shown.lead


def test_checkpoints_outside_of_what_is_counted_are_told_by_their_own_size() -> None:
    lone = replace(series(), folder="/nfs/ada/ckpt")
    shown = built(counted(ROWS[0], checkpoint_series=(lone,)))
    assert [(one.path, one.size, one.inodes) for one in shown.folders] == [("/nfs/ada/ckpt", "60 GiB", ""), ("/scratch/ada/run", "40 GiB", "12")]  # fmt: skip
    inside = built(counted(ROWS[0], checkpoint_series=(series(),)))
    assert [one.path for one in inside.folders] == ["/scratch/ada/run"]


def test_nothing_counted_says_so_and_hostile_names_are_text() -> None:
    empty = built(quiet())
    assert (empty.lead, empty.notes) == ("Nothing is counted yet", (NOT_YET,))
    hostile = counted(tree(f"/x/{HOSTILE}", GIB, "a"), checkpoint_series=(saved(folder=HOSTILE),))
    html = frame.render("usage", PageRequest(snapshot=hostile))
    assert html is not None
    assert "<script>alert" not in html
