"""The incidents on disk: `ROOT/reports/<id>/{report.json,report.html,evidence/…}`, bounded by age, count and bytes.

`mldebug.storage` reads and writes the bytes, safe against crashes and against what a folder's owner puts there.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from mldebug.errors import AccessError, EvidenceError
from mldebug.model import CAPTURE_SCHEMA, REPORT_SCHEMA, NodeCapture, Report
from mldebug.storage import (
    OLD,
    TAKE_ANOTHER,
    folder_size,
    give,
    read_struct,
    replace_folder,
    write_files,
)

DAY = 86_400.0
MAX_CAPTURES = 4_096
MAX_AGE_DAYS = 90
MAX_REPORTS = 500
MAX_BYTES = 5 << 30

TEMPORARY = ".tmp-"
STALE_SECONDS = 3_600.0  # a temporary folder this old was left by a crash
SEE_LIST = "see what there is with: mldebug reports list"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_STAMP = re.compile(r"(\d{8}T\d{6}Z)-")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One report as a list shows it; `broken` says why it cannot be read ("" when it can)."""

    id: str
    verdict: str = ""
    confidence: str = ""
    job: str = ""
    sentence: str = ""
    time: str = ""
    state: str = ""
    broken: str = ""


class _JobHead(msgspec.Struct):
    name: str


class _DiagnosisHead(msgspec.Struct):
    verdict: str
    confidence: str
    summary: str


class _Head(msgspec.Struct):
    """The part of report.json that a list needs; the rest is skipped, not built."""

    schema: str
    detected_at: str
    state: str
    job: _JobHead
    diagnosis: _DiagnosisHead


class Archive:
    """All reports below one folder. `clock` returns unix seconds."""

    def __init__(
        self,
        root: Path,
        *,
        max_age_days: float = MAX_AGE_DAYS,
        max_reports: int = MAX_REPORTS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = root / "reports"
        self._max_age = max_age_days * DAY
        self._max_reports = max_reports
        self._max_bytes = max_bytes
        self._clock = clock

    def save(
        self,
        report: Report,
        html: str,
        evidence: Mapping[str, bytes],
        *,
        owner_uid: int | None = None,
    ) -> Path:
        """Write one report and return its folder; the same id again replaces what was there.

        `evidence` maps plain file names to content. As root the folder is given to `owner_uid`.
        """
        for name in (report.id, *evidence):
            _check_name(name)
        target = self.folder / report.id
        temporary = self._make_temporary(report.id)
        try:
            write_files(temporary, _contents(report, html, evidence))
            give(temporary, owner_uid)
            replace_folder(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return target

    def list(self) -> tuple[Entry, ...]:
        """Return all reports, newest first; one that cannot be read is listed as broken."""
        return tuple(self._entry(name) for name in reversed(self._ids()))

    def path(self, wanted: str) -> Path:
        """Return the folder of a report given by its id, an unambiguous prefix, or `latest`."""
        return self.folder / self._resolve(wanted)

    def load(self, wanted: str) -> Report:
        """Read one report; `EvidenceError` when it is absent, ambiguous or malformed."""
        file = self.path(wanted) / "report.json"
        report = read_struct(file, Report)
        if report.schema != REPORT_SCHEMA:
            raise EvidenceError(
                f"{file} is of schema {report.schema[:60]!r}", _newer(REPORT_SCHEMA)
            )
        return report

    def evidence(self, wanted: str) -> tuple[NodeCapture, ...]:
        """Read the node captures that a report rests on."""
        return load_captures(self.path(wanted))

    def prune(self) -> tuple[str, ...]:
        """Remove what is too old or too much, oldest first, and return the ids; the newest one always stays."""
        self._sweep_temporaries()
        removed = tuple(self._excess())
        for name in removed:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return removed

    def _make_temporary(self, name: str) -> Path:
        temporary = self.folder / f"{TEMPORARY}{os.getpid()}-{name}"
        try:
            # owners pass through to their own report but cannot list the others
            self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
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
        except OSError:
            return []
        return sorted(name for name in found if _ID.fullmatch(name))

    def _entry(self, name: str) -> Entry:
        file = self.folder / name / "report.json"
        try:
            head = read_struct(file, _Head)
        except EvidenceError as error:
            return Entry(id=name, broken=error.message)
        return Entry(
            id=name,
            verdict=head.diagnosis.verdict,
            confidence=head.diagnosis.confidence,
            job=head.job.name,
            sentence=head.diagnosis.summary,
            time=head.detected_at,
            state=head.state,
        )

    def _resolve(self, wanted: str) -> str:
        if wanted == "latest":
            return self._latest()
        _check_name(wanted)
        found = [name for name in self._ids() if name.startswith(wanted)]
        if wanted in found:
            return wanted
        if len(found) > 1:
            raise EvidenceError(
                f"{wanted!r} fits {len(found)} reports", f"one of them: {', '.join(found[-3:])}"
            )
        if not found:
            raise EvidenceError(f"there is no report {wanted!r} in {self.folder}", SEE_LIST)
        return found[0]

    def _latest(self) -> str:
        whole = (entry.id for entry in map(self._entry, reversed(self._ids())) if not entry.broken)
        latest = next(whole, None)
        if latest is None:
            raise EvidenceError(f"there is no report in {self.folder}", TAKE_ANOTHER)
        return latest

    def _excess(self) -> Iterator[str]:
        """Newest first: the first is safe, each of the others has to fit."""
        oldest_allowed = self._clock() - self._max_age
        total = 0
        for index, name in enumerate(reversed(self._ids())):
            folder = self.folder / name
            total += folder_size(folder)
            old = _made_at(folder) < oldest_allowed
            if index and (old or index >= self._max_reports or total > self._max_bytes):
                yield name

    def _sweep_temporaries(self) -> None:
        """Clear what a crash has left; a report that was half replaced then gets its name back."""
        for folder in self.folder.glob(f"{TEMPORARY}*"):
            with contextlib.suppress(OSError):
                if folder.lstat().st_mtime >= self._clock() - STALE_SECONDS:
                    continue
                name = folder.name.removeprefix(TEMPORARY).partition("-")[2]
                target = self.folder / name.removesuffix(OLD)
                if name.endswith(OLD) and not os.path.lexists(target):
                    os.rename(folder, target)
                else:
                    shutil.rmtree(folder, ignore_errors=True)


def load_captures(directory: Path) -> tuple[NodeCapture, ...]:
    """Read `capture-*.json` of a report folder (its `evidence/`) or of the folder itself, in order of name."""
    places = (directory / "evidence", directory)
    files = next((found for found in map(_capture_files, places) if found), [])
    if not files:
        raise EvidenceError(f"there is no capture-*.json in {directory}", TAKE_ANOTHER)
    if len(files) > MAX_CAPTURES:
        raise EvidenceError(f"{directory} holds {len(files)} captures, more than {MAX_CAPTURES}")
    return tuple(_load_capture(file) for file in files)


def _capture_files(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        folder / name for name in names if name.startswith("capture-") and name.endswith(".json")
    )


def _load_capture(file: Path) -> NodeCapture:
    capture = read_struct(file, NodeCapture)
    if capture.schema != CAPTURE_SCHEMA:
        raise EvidenceError(f"{file} is of schema {capture.schema[:60]!r}", _newer(CAPTURE_SCHEMA))
    return capture


def _newer(schema: str) -> str:
    return f"this mldebug reads {schema}; read it with the version that wrote it"


def _contents(report: Report, html: str, evidence: Mapping[str, bytes]) -> dict[str, bytes]:
    named = {f"evidence/{name}": content for name, content in evidence.items()}
    encoded = msgspec.json.encode(report) + b"\n"
    return named | {"report.html": html.encode(errors="replace"), "report.json": encoded}


# --- names, ages and sizes -----------------------------------------------------------------------


def _check_name(name: str) -> None:
    if not _ID.fullmatch(name):
        raise EvidenceError(f"{name[:60]!r} is not the name of a report", SEE_LIST)


def _made_at(folder: Path) -> float:
    """Unix time from the id, else from the folder itself."""
    stamp = _STAMP.match(folder.name)
    with contextlib.suppress(ValueError, OSError):
        if stamp:
            return datetime.strptime(stamp[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        return folder.lstat().st_mtime
    return 0.0
