"""Reads the reports on disk for pages, in other threads and bounded time; list entries are read again only when a report changed.

A report's folder belongs to the owner of its job, who may put anything there: a report is made anew from what was checked
on reading, and never served as it lies there.
"""

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from mldebug.core.errors import AccessError, EvidenceError, MldebugError
from mldebug.core.report_model import Report
from mldebug.incidents.report.html import ReportPage, render_page
from mldebug.incidents.report_entry import ReportEntry, read_entry
from mldebug.incidents.report_store import ReportStore, is_id

PATIENCE = 3.0  # seconds for the state dir to answer
HANGING = 4  # threads that may wait for it
MAX_JSON = 8 << 20  # bytes of a report: 8,192 ranks have 3.2 million, and take 0.4 s to render
MAX_LISTED = 500

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
        self._rendering: dict[int, threading.Lock] = {}  # by owner: one report of each at a time

    def entries(self, uid: int | None) -> tuple[ReportEntry, ...]:
        """The reports of this user (None: all), newest first. Raises MldebugError where they cannot be read."""
        return self._aside(lambda: self._list(uid))

    def version(self, name: str, uid: int | None) -> str:
        """A text that changes whenever the report does. Raises EvidenceError where there is none that this user may see."""
        return self._aside(lambda: str(self._look(name, uid)[1]))

    def page(self, name: str, uid: int | None, home: str) -> ReportPage:
        """A report as HTML, with the Content-Security-Policy that fits it."""
        owner, _ = self._aside(lambda: self._look(name, uid))
        lock = self._rendering.setdefault(owner, threading.Lock())
        if not lock.acquire(timeout=PATIENCE):  # what he made of his report costs him alone
            raise _silent()
        return self._aside(lambda: render_page(self._load(name, uid), home), lock.release)

    def _list(self, uid: int | None) -> tuple[ReportEntry, ...]:
        found: dict[str, CachedReport] = {}
        for name in self._archive.names()[:MAX_LISTED]:
            try:
                owner, version = self._look(name, None)
            except (OSError, MldebugError):
                continue
            kept = self._cached.get(name)
            if kept is None or kept[:2] != (owner, version):
                kept = CachedReport(owner, version, read_entry(self._archive.folder / name))
                self._cached[name] = (
                    kept  # at once: whoever asks again after a timeout goes on here
                )
            found[name] = kept
        self._cached = found
        return tuple(one.entry for one in found.values() if uid is None or one.owner == uid)

    def _load(self, name: str, uid: int | None) -> Report:
        _, (_, _, size) = self._look(name, uid)
        if size > MAX_JSON:
            raise EvidenceError(
                f"it is too large for a page: {size:,} bytes", f"mldebug reports show {name}"
            )
        return self._archive.load(name)

    def _look(self, name: str, uid: int | None) -> tuple[int, tuple[int, int, int]]:
        """Owner and version. Of what he may not see it says no more than of what is not there."""
        none = EvidenceError(f"there is no report {name[:60]!r} that you may see")
        if not is_id(name):
            raise none
        folder = self._archive.folder / name
        try:
            status = folder.lstat()
            file = os.lstat(folder / "report.json")
        except OSError:
            raise none from None
        if not stat.S_ISDIR(status.st_mode) or uid not in (None, status.st_uid):
            raise none
        return status.st_uid, (file.st_mtime_ns, file.st_ino, file.st_size)

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
