"""Who uses what: directories and checkpoints by user and run, and which checkpoints could go. Nothing is ever deleted."""

from collections.abc import Iterator, Sequence
from posixpath import join

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.text import typed
from mldebug.core.units import duration_words, size_words
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.storage.checkpoints.state import COUNTS, KEPT, SeriesState
from mldebug.storage.filesystems.state import Row
from mldebug.storage.usage.tally import is_below
from mldebug.web.page import PageRequest, WebPage

MOST = 256  # rows of one table
NOT_YET = "Nothing is counted yet: no run is seen to write to a local filesystem, and trees.paths names no directory."
NOT_ALL = "Counted is where runs write now, and trees.paths. What earlier runs left, and what a run may have resumed from, mldebug usage finds."


class FolderRow(msgspec.Struct, frozen=True, kw_only=True):
    """A directory, or the checkpoints in one that is not counted itself."""

    path: str
    size: str
    inodes: str
    run: str  # "": of the configuration
    user: str
    how: str


class UserRow(msgspec.Struct, frozen=True, kw_only=True):
    """The sum over all runs of one user: the bytes of the directories whose sizes were counted, and how many runs, both as words."""

    user: str
    size: str
    runs: str


class RetentionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A series of checkpoints, and what would become free."""

    place: str
    run: str
    size: str
    frees: tuple[str, ...]  # for each of `COUNTS`
    could_go: tuple[str, ...]


class UsagePageData(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of the page "Usage" shows."""

    lead: str
    users: tuple[UserRow, ...]
    folders: tuple[FolderRow, ...]
    series: tuple[RetentionRow, ...]
    counts: tuple[int, ...]
    kept: int
    notes: tuple[str, ...]
    command: str


class _CountedFolder(msgspec.Struct):
    path: str
    bytes: int
    inodes: int | None
    run: str
    how: str


class UsagePage:
    """The page "Usage": who uses how much of each disk, as `mldebug usage` prints it, from what the agent has counted already. A user sees the own runs alone."""

    title = "Usage"
    key = ""  # the page "Storage" leads here: one more would not fit into the menu of a phone
    reports = False

    def build(self, request: PageRequest) -> UsagePageData:
        """Build the page from the snapshot's directories and checkpoints."""
        snapshot = request.snapshot
        runs = {run.id: run for run in snapshot.runs}
        series = [
            *snapshot.checkpoint_series,
            *(one for run in snapshot.runs for one in run.checkpoint_series),
        ]
        folders = sorted(_folders(snapshot, series), key=lambda one: -one.bytes)
        freed = sum(one.would_free.get(KEPT, 0) for one in series)
        return UsagePageData(
            lead=_lead(folders, freed),
            users=tuple(_users(folders, runs)),
            folders=tuple(_folder_row(one, runs) for one in folders[:MOST]),
            series=tuple(_series_row(one, runs, snapshot.at) for one in _by_gain(series)[:MOST]),
            counts=COUNTS,
            kept=KEPT,
            notes=(NOT_ALL,) if folders else (NOT_YET,),
            command=typed("usage"),
        )


def _folders(snapshot: Snapshot, series: Sequence[SeriesState]) -> Iterator[_CountedFolder]:
    """The counted directories, then the folders of checkpoints outside of them."""
    rows = snapshot.storage.rows.get("trees", ()) if snapshot.storage else ()
    counted = [tree for row in rows if (tree := _counted(row)) is not None]
    yield from counted
    others: dict[tuple[str, str], _CountedFolder] = {}
    for one in series:
        if not any(is_below(one.folder, outer.path) for outer in counted):
            key = one.run, one.folder
            known = others.setdefault(
                key, _CountedFolder(one.folder, 0, None, one.run, "its checkpoints")
            )
            known.bytes += one.bytes
    yield from others.values()


def _counted(row: Row) -> _CountedFolder | None:
    size, inodes = row.get("bytes"), row.get("inodes")
    if not isinstance(size, int) or not isinstance(inodes, int):
        return None
    how = "at least so much" if row.get("lower_bound") else str(row.get("how", "")).replace("_", " ")  # fmt: skip
    return _CountedFolder(str(row["path"]), size, inodes, str(row.get("job") or ""), how)


def _lead(folders: Sequence[_CountedFolder], freed: int) -> str:
    if not folders:
        return "Nothing is counted yet"
    outer = [one for one in folders if not any(is_below(one.path, other.path) for other in folders if other is not one)]  # fmt: skip
    words = f"{size_words(sum(one.bytes for one in outer))} in {len(outer)} {'directory' if len(outer) == 1 else 'directories'}"
    return f"{words}; {size_words(freed)} would be free if the newest {KEPT} checkpoints stay" if freed else words  # fmt: skip


def _users(folders: Sequence[_CountedFolder], runs: dict[str, RunState]) -> Iterator[UserRow]:
    """Sums by user, of the directories that runs write to; the largest first."""
    sums: dict[str, int] = {}
    names: dict[str, set[str]] = {}
    for one in folders:
        if run := runs.get(one.run):
            user = run.user or str(run.uid)
            sums[user] = sums.get(user, 0) + one.bytes
            names.setdefault(user, set()).add(run.name)
    for user, size in sorted(sums.items(), key=lambda item: -item[1]):
        shown = ", ".join(sorted(names[user])[:4])
        yield UserRow(user=clean(user, 40), size=size_words(size), runs=clean(shown, 160))


def _folder_row(one: _CountedFolder, runs: dict[str, RunState]) -> FolderRow:
    run = runs.get(one.run)
    return FolderRow(
        path=clean(one.path, 300),
        size=size_words(one.bytes),
        inodes="" if one.inodes is None else f"{one.inodes:,}",
        run=clean(run.name, 60) if run else "",
        user=clean(run.user or str(run.uid), 40) if run else "",
        how=clean(one.how, 60),
    )


def _by_gain(series: Sequence[SeriesState]) -> list[SeriesState]:
    return sorted(series, key=lambda one: (-one.would_free.get(KEPT, 0), -one.bytes))


def _series_row(one: SeriesState, runs: dict[str, RunState], now: float) -> RetentionRow:
    run = runs.get(one.run)
    return RetentionRow(
        place=clean(join(one.folder, one.series), 300),
        run=clean(run.name, 60) if run else "",
        size=size_words(one.bytes),
        frees=tuple(size_words(one.would_free.get(keep, 0)) for keep in COUNTS),
        could_go=tuple(
            f"{clean(each.name, 80)}, {size_words(each.size)}, {duration_words(int(now - each.ended))} old"
            for each in one.could_go
        ),
    )


def create(options: NoOptions) -> WebPage:
    """Build the web page `usage`: who uses what, and which checkpoints could go."""
    return UsagePage()
