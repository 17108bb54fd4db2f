"""Reports on disk: `ROOT/reports/<id>/{report.json,report.html,evidence/…}`, limited by age, number and bytes.

`mldebug.core.files` reads and writes the files, safe against crashes and against links that a
folder's owner puts there.
"""

import contextlib
import errno
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from mldebug.core.errors import AccessError, EvidenceError
from mldebug.core.files import (
    OLD,
    add_folder,
    check_unmounted,
    give,
    read_bytes,
    read_struct,
    replace_folder,
    write_files,
)
from mldebug.core.model import NodeCapture
from mldebug.core.owned_trees import facts_of, folder_size, is_there, remove_tree
from mldebug.core.report_model import REPORT_SCHEMA, Report
from mldebug.core.text import typed
from mldebug.incidents.pruning import StoredReport, excess
from mldebug.incidents.report.sanitize import tidy_report
from mldebug.incidents.report_entry import ReportEntry, read_entry
from mldebug.incidents.stored_evidence import load_captures, newer

DAY = 86_400.0
MAX_AGE_DAYS = 90
MAX_REPORTS = 500
MAX_BYTES = 5 << 30

PRUNE_SECONDS = 1.0  # of one pruning: what an owner piled up in his reports takes several
REMOVAL_SECONDS = 0.1  # of it for removals, however long a slow disk took to tell what there is: else it would keep all for ever
TEMPORARY = ".tmp-"
OWNER = "owner"  # the file in a report's folder that has the uid of its job, for agents that may not give the folder to him
STALE_SECONDS = 3_600.0  # a temporary folder this old was left by a crash

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_STAMP = re.compile(r"(\d{8}T\d{6}Z)-")


def is_id(name: str) -> bool:
    """Whether the name is a valid report id."""
    return _ID.fullmatch(name) is not None


class ReportStore:
    """All reports below one folder.

    `clock` returns unix seconds; `config`: the config file that was given, shown in advice.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_age_days: float = MAX_AGE_DAYS,
        max_reports: int = MAX_REPORTS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
        config: Path | None = None,
    ) -> None:
        self.folder = root / "reports"
        self._max_age = max_age_days * DAY
        self._max_reports = max_reports
        self._max_bytes = max_bytes
        self._clock = clock
        self._config = config

    def save(
        self,
        report: Report,
        html: str,
        evidence: Mapping[str, bytes],
        *,
        owner_uid: int | None = None,
    ) -> Path:
        """Write one report and return its folder. A report with the same id is replaced.

        `evidence`: content by plain file name. If run as root, the folder is given to the user
        `owner_uid`.
        """
        return self._save(report, html, evidence, owner_uid, replace_folder)

    def save_new(
        self,
        report: Report,
        html: str,
        evidence: Mapping[str, bytes],
        *,
        owner_uid: int | None = None,
    ) -> Path | None:
        """Write one report and return its folder; None, and nothing is written, where a report with this id exists."""
        done: list[bool] = []
        folder = self._save(
            *(report, html, evidence, owner_uid),
            lambda temporary, target: done.append(add_folder(temporary, target)),
        )
        return folder if done == [True] else None

    def _save(
        self,
        report: Report,
        html: str,
        evidence: Mapping[str, bytes],
        owner_uid: int | None,
        put: Callable[[Path, Path], None],
    ) -> Path:
        for name in (report.id, *evidence):
            self._check_name(name)
        target = self.folder / report.id
        temporary = self._make_temporary(report.id)
        try:
            write_files(temporary, _contents(report, html, evidence, owner_uid))
            give(temporary, owner_uid)
            put(temporary, target)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise  # else its owner has mounted something on the one before, and keeps that
        finally:
            remove_tree(temporary)
        return target

    def remove(self, report_id: str) -> None:
        """Remove one report; does nothing where there is none of this id."""
        self._check_name(report_id)
        remove_tree(self.folder / report_id)

    def list(self) -> tuple[ReportEntry, ...]:
        """All reports, newest first; one that cannot be read is listed as broken.

        Raises AccessError where this user may not list the folder.
        """
        return tuple(self._entry(name) for name in reversed(self._ids()))

    def names(self) -> Sequence[str]:
        """The ids of all reports, newest first. No report is opened."""
        return tuple(reversed(self._ids()))

    def path(self, wanted: str) -> Path:
        """Return the folder of a report given by its id, an unambiguous prefix, or `latest`."""
        return self.folder / self._resolve(wanted)

    def load(self, wanted: str) -> Report:
        """Read one report (id, unambiguous prefix, or `latest`), into which its owner may have written anything: it is tidied.

        Raises EvidenceError when it is absent, ambiguous, malformed or of another schema.
        """
        file = self.path(wanted) / "report.json"
        check_unmounted(file)
        report = read_struct(file, Report)
        if report.schema != REPORT_SCHEMA:
            raise EvidenceError(f"{file} is of schema {report.schema[:60]!r}", newer(REPORT_SCHEMA))
        return tidy_report(report)

    def evidence(self, wanted: str) -> tuple[NodeCapture, ...]:
        """Read the node captures that a report rests on (id, unambiguous prefix, or `latest`)."""
        return load_captures(self.path(wanted))

    def prune(self, *, by_age: bool = False) -> tuple[str, ...]:
        """Remove reports that are too old, too many or too large together, and return their ids. Ends after `PRUNE_SECONDS`, or where
        reading what there is took that long, soon after; the next call goes on.

        `mldebug.incidents.pruning` says which. `by_age`: whether the caller has seen the clock go on for a day without being set;
        else it may be wrong, and none is too old.
        """
        until = time.monotonic() + PRUNE_SECONDS
        self._sweep_temporaries(until)
        removed, excess = [], list(self._excess(by_age=by_age))
        until = max(until, time.monotonic() + REMOVAL_SECONDS)
        for name in excess:
            if time.monotonic() > until:  # the next report is not to wait: the next pruning goes on
                break
            if remove_tree(self.folder / name, seconds=until - time.monotonic()):
                removed.append(name)
        return tuple(removed)

    def _make_temporary(self, name: str) -> Path:
        temporary = self.folder / f"{TEMPORARY}{os.getpid()}-{name}"
        try:
            # owners pass through to their own report but cannot list the others
            self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            if not remove_tree(temporary):  # more than one removal can take: the next sweep goes on
                temporary.rename(self.folder / f"{TEMPORARY}{secrets.token_hex(8)}-{name}")
            temporary.mkdir(mode=0o700)
        except OSError as error:
            raise AccessError(
                f"cannot write reports below {self.folder}: {error.strerror}",
                "choose another folder with agent.state_dir, or make this one writable",
            ) from error
        return temporary

    def _ids(self) -> Sequence[str]:
        try:
            with os.scandir(self.folder) as entries:
                found = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        except PermissionError as error:
            raise AccessError(
                f"this user may not list the reports in {self.folder}",
                "ask as root; a report of your own job opens under its full id",
            ) from error
        except OSError:
            return []
        # nobody waits for a filesystem that a report's owner has mounted on it
        return sorted(name for name in found if is_id(name) and _is_folder(self.folder / name))

    def _entry(self, name: str) -> ReportEntry:
        return read_entry(self.folder / name)

    def _resolve(self, wanted: str) -> str:
        if wanted == "latest":
            return self._latest()
        self._check_name(wanted)
        if _is_folder(self.folder / wanted):
            return wanted  # who may not list the others may open his own
        found = [name for name in self._ids() if name.startswith(wanted)]
        if len(found) > 1:
            raise EvidenceError(
                f"{wanted!r} fits {len(found)} reports", f"one of them: {', '.join(found[-3:])}"
            )
        if not found:
            raise EvidenceError(f"there is no report {wanted!r} in {self.folder}", self._see_list())
        return found[0]

    def _latest(self) -> str:
        ids = self._ids()
        entries = map(self._entry, reversed(ids))
        latest = next((entry.id for entry in entries if not entry.broken), None)
        if latest is not None:
            return latest
        if ids:
            raise EvidenceError(
                f"none of the {len(ids)} reports in {self.folder} can be read", self._see_list()
            )
        how = f"take one with: {typed('dump', self._config)}"
        raise EvidenceError(f"there is no report in {self.folder}", how)

    def _check_name(self, name: str) -> None:
        if not _ID.fullmatch(name):
            raise EvidenceError(f"{name[:60]!r} is not the name of a report", self._see_list())

    def _see_list(self) -> str:
        return f"see what there is with: {typed('reports list', self._config)}"

    def _excess(self, *, by_age: bool) -> tuple[str, ...]:
        try:
            kept = [_kept(self.folder / name) for name in self._ids()]
        except AccessError:
            return ()
        return excess(
            kept,
            oldest_allowed=self._clock() - self._max_age if by_age else -math.inf,
            max_reports=self._max_reports,
            max_bytes=self._max_bytes,
        )

    def _sweep_temporaries(self, until: float) -> None:
        """Clear what a crash has left; a report that was half replaced then gets its name back."""
        for folder in self.folder.glob(f"{TEMPORARY}*"):
            if time.monotonic() > until:
                return
            # another process sweeps, too; what stays is tried again at the next start
            with contextlib.suppress(OSError):
                if facts_of(folder).st_mtime >= self._clock() - STALE_SECONDS:
                    continue
                name = folder.name.removeprefix(TEMPORARY).partition("-")[2]
                target = self.folder / name.removesuffix(OLD)
                if name.endswith(OLD) and not is_there(target):
                    os.rename(folder, target)
                else:
                    remove_tree(folder, seconds=until - time.monotonic())


def _contents(
    report: Report, html: str, evidence: Mapping[str, bytes], owner_uid: int | None
) -> dict[str, bytes]:
    named = {f"evidence/{name}": content for name, content in evidence.items()}
    encoded = msgspec.json.encode(report) + b"\n"
    owner = {} if owner_uid is None else {OWNER: f"{owner_uid}\n".encode()}
    return named | {"report.html": html.encode(errors="replace"), "report.json": encoded} | owner


def report_owner(folder: Path) -> int:
    """The uid of the user whose report this folder is.

    Raises OSError where there is no such folder.

    It is the folder's owner; where that is the agent itself, the user whom the agent named in the
    folder, as the service cannot change owners.
    """
    owner = facts_of(folder).st_uid
    if owner == os.geteuid():
        with contextlib.suppress(EvidenceError, AccessError, ValueError):
            return int(read_bytes(folder / OWNER)[:16])
    return owner


# --- names, ages and sizes -----------------------------------------------------------------------


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(facts_of(path).st_mode)
    except OSError:
        return False  # it went meanwhile


def _kept(folder: Path) -> StoredReport:
    try:
        owner = report_owner(folder)
    except OSError:
        owner = -1
    return StoredReport(
        id=folder.name, owner=owner, size=folder_size(folder), made_at=_made_at(folder)
    )


def _made_at(folder: Path) -> float:
    """Unix time from the id, else from the folder itself."""
    stamp = _STAMP.match(folder.name)
    # the id is a person's, or the folder went meanwhile
    with contextlib.suppress(ValueError, OSError):
        if stamp:
            return datetime.strptime(stamp[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        return facts_of(folder).st_mtime
    return 0.0
