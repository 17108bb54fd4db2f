"""Reads the reports on disk for pages, in other threads and bounded time; an entry of the list is read again only if its report
changed.

A report's folder belongs to the owner of its job, who may put anything there. So HTML is made from the checked data each time, and
no file from the folder is served.
"""

import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from mldebug.core.errors import AccessError, EvidenceError, MldebugError
from mldebug.core.owned_trees import facts_of
from mldebug.core.report_model import Report
from mldebug.incidents.report.html import ReportPage, ReportSite, render_page
from mldebug.incidents.report_entry import ReportEntry, read_entry
from mldebug.incidents.report_store import ReportStore, is_id, report_owner
from mldebug.jobs.owners import in_turns

PATIENCE = 3.0  # seconds for the state dir to answer
HANGING = 4  # threads that may wait for it
MAX_JSON = 8 << 20  # bytes of a report: 8,192 ranks have 3.2 million, and take 0.4 s to render
MAX_LISTED = 500
MILLISECONDS = (
    1000  # for reading the reports of one owner in one list, and twice that for those of all
)
LATER = "there was no time to read it: load the list again"

T = TypeVar("T")


class CachedReport(NamedTuple):
    """A report in the list, with its owner and a version that changes when its file does."""

    owner: int  # uid
    version: tuple[int, int, int]  # changes when the file does
    entry: ReportEntry


class ReportCache:
    """Lists and renders reports that a user may see. Works in threads of its own: the state dir may lie on a mount that hangs."""

    def __init__(self, state_dir: Path) -> None:
        self._archive = ReportStore(state_dir)
        self._cached: dict[str, CachedReport] = {}
        self._free = threading.BoundedSemaphore(HANGING)
        self._locks: dict[
            int, threading.Lock
        ] = {}  # by owner: one list or report of each at a time

    def entries(self, uid: int | None) -> tuple[ReportEntry, ...]:
        """The reports of this user (None: of all users), newest first. Raises MldebugError where they cannot be read."""
        done = self._turn(uid) if uid is not None else lambda: None
        return self._aside(lambda: self._list(uid), done)

    def version(self, name: str, uid: int | None) -> str:
        """A text that changes whenever the report does. Raises EvidenceError where there is none that this user may see."""
        return self._aside(lambda: str(self._look(name, uid)[1]))

    def page(self, name: str, uid: int | None, site: Callable[[Report], ReportSite]) -> ReportPage:
        """A report as HTML, with the Content-Security-Policy that fits it. `site` says what stands around it."""
        owner, _ = self._aside(lambda: self._look(name, uid))

        def made() -> ReportPage:
            report = self._load(name, uid)
            return render_page(report, site(report))

        return self._aside(made, self._turn(owner))

    def _turn(self, owner: int) -> Callable[[], None]:
        """Wait until no report of this owner is being read, and return what ends the turn: what an owner made of the own reports delays nobody else."""
        lock = self._locks.setdefault(owner, threading.Lock())
        if not lock.acquire(timeout=PATIENCE):
            raise _silent()
        return lock.release

    def _list(self, uid: int | None) -> tuple[ReportEntry, ...]:
        """Owners take turns, and each has so much time: what an owner made of the own reports, or changes all the time, delays nobody else."""
        looked = dict(self._look_at_all())
        wanted = [name for name, (owner, _) in looked.items() if uid in (None, owner)]
        self._cached = {name: kept for name, kept in self._cached.items() if name in looked}
        spent: Counter[int] = Counter()
        found: dict[str, ReportEntry] = {}
        for name in in_turns(wanted, lambda name: looked[name][0]):
            owner, version = looked[name]
            kept = self._cached.get(name)
            if kept is not None and kept[:2] == (owner, version):
                found[name] = kept.entry
            elif spent[owner] > MILLISECONDS or spent.total() > 2 * MILLISECONDS:
                found[name] = kept.entry if kept else ReportEntry(id=name, broken=LATER)
            else:
                begun = time.monotonic()
                kept = CachedReport(owner, version, read_entry(self._archive.folder / name))
                self._cached[name] = kept  # at once: whoever asks again goes on here
                found[name] = kept.entry
                spent[owner] += int(1000 * (time.monotonic() - begun))
        return tuple(found[name] for name in wanted)

    def _look_at_all(self) -> Iterator[tuple[str, tuple[int, tuple[int, int, int]]]]:
        for name in self._archive.names()[:MAX_LISTED]:
            with suppress(OSError, MldebugError):  # pruned or being written: the next look has it
                yield name, self._look(name, None)

    def _load(self, name: str, uid: int | None) -> Report:
        _, (_, _, size) = self._look(name, uid)
        if size > MAX_JSON:
            raise EvidenceError(
                f"it is too large for a page: {size:,} bytes", f"mldebug reports show {name}"
            )
        return self._archive.load(name)

    def _look(self, name: str, uid: int | None) -> tuple[int, tuple[int, int, int]]:
        """Owner and version. Of a report that the user may not see it says no more than of one that does not exist."""
        none = EvidenceError(f"there is no report {name[:60]!r} that you may see")
        if not is_id(name):
            raise none
        folder = self._archive.folder / name
        try:
            status, owner = facts_of(folder), report_owner(folder)
            file = facts_of(folder / "report.json")
        except OSError:
            raise none from None
        if not stat.S_ISDIR(status.st_mode) or uid not in (None, owner):
            raise none
        return owner, (file.st_mtime_ns, file.st_ino, file.st_size)

    def _aside(self, work: Callable[[], T], done: Callable[[], None] = lambda: None) -> T:
        """Do it in another thread; AccessError where that takes too long. `done` is called once it is over, however late."""
        until = time.monotonic() + PATIENCE
        if not self._free.acquire(timeout=PATIENCE):
            done()
            raise _silent()
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(work())
            except Exception as error:  # noqa: BLE001 - it is raised again below
                errors.append(error)
            finally:
                self._free.release()
                done()

        thread = threading.Thread(target=run, name="mldebug-reports", daemon=True)
        thread.start()
        thread.join(max(0.1, until - time.monotonic()))
        if errors:
            raise errors[0]
        if not results:
            raise _silent()
        return results[0]


def _silent() -> AccessError:
    return AccessError(
        "the reports could not be read in time", "see the mount of the state directory"
    )
