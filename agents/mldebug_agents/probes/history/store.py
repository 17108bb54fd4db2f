"""The history of probes on disk: `STATE_DIR/probes.sqlite`, of limited size, written by the user who runs a probe.

Two writers wait for each other. A damaged file is renamed to `probes.sqlite.broken`, and a new one begun. The agent reads the
file's bytes without opening the database, so it blocks no writer; a half-written change is unreadable only for a moment.
"""

import contextlib
import math
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from mldebug.core.errors import AccessError, EvidenceError
from mldebug.probes.history import ProbeRun, ProbeSeries

NAME = "probes.sqlite"
MOST_RUNS = 100  # of one series
MOST_SERIES = 500  # those that were measured last
MAX_BYTES = 16 << 20  # of the file, when it is read: more than that many rows take
WAIT = 5.0  # seconds for another writer
_SCHEMA = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, told BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS runs (series INTEGER NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL, busbw REAL NOT NULL);
CREATE INDEX IF NOT EXISTS runs_of ON runs (series, at);
"""
_FORGET = (
    """DELETE FROM runs WHERE series = :series AND rowid NOT IN
    (SELECT rowid FROM runs WHERE series = :series ORDER BY at DESC, rowid DESC LIMIT :most)""",
    """DELETE FROM runs WHERE series NOT IN
    (SELECT series FROM runs GROUP BY series ORDER BY max(at) DESC LIMIT :most)""",
    "DELETE FROM series WHERE id NOT IN (SELECT series FROM runs)",
)
_ALL = """SELECT CAST(told AS BLOB), at, seconds, busbw FROM runs JOIN series ON series.id = runs.series
ORDER BY series.id, at, runs.rowid"""
_OTHER = "name another folder with --state-dir"
# What SQLite says of a table that others made
_NONE_OF_OURS = ("no such column", "table runs has", "table series has")

Past = tuple[tuple[ProbeSeries, tuple[ProbeRun, ...]], ...]


def add_runs(state_dir: Path, measured: Sequence[tuple[ProbeSeries, ProbeRun]]) -> Past:
    """Add runs, all or none, and return all stored runs by series. Raises AccessError or EvidenceError where nothing was stored."""
    path = state_dir / NAME
    with _as_our_errors(path):
        _make(path)
        try:
            return _add(path, measured)
        except sqlite3.OperationalError as error:
            if not str(error).startswith(_NONE_OF_OURS):
                raise  # a full or ailing disk, or another writer: nothing is wrong with the file
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            pass  # damaged
        _set_aside(path)
        return _add(path, measured)


def load(state_dir: Path) -> Past:
    """All stored runs by series; empty without a file. Raises AccessError or EvidenceError where it cannot be read."""
    path = state_dir / NAME
    with _as_our_errors(path):
        try:
            _check(path)
        except FileNotFoundError:
            return ()
        with contextlib.closing(_open(path)) as link:
            return _read(link)


def unpack(content: bytes) -> Past:
    """All runs by series from the bytes of the file; raises EvidenceError where they are damaged or a change was half written."""
    with _as_our_errors(Path(NAME)), contextlib.closing(sqlite3.connect(":memory:")) as link:
        link.deserialize(content)
        return _read(link)


# --- inside --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _as_our_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise AccessError(f"{path}: {error.strerror}", f"ask as its owner, or {_OTHER}") from error
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}", _OTHER) from error
    except sqlite3.Error as error:
        raise EvidenceError(f"{path}: {error}", _OTHER) from error
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path} is damaged: {error.reason}", _OTHER) from error


def _set_aside(path: Path) -> None:
    os.replace(path, path.with_name(f"{NAME}.broken"))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path.with_name(f"{NAME}-journal"))
    _make(path)


def _make(path: Path) -> None:
    """The file, of the folder's owner: the agent reads what root has measured."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, flags, 0o600)
        try:
            owner = os.stat(path.parent)
            if os.geteuid() == 0:
                os.fchown(handle, owner.st_uid, owner.st_gid)
        finally:
            os.close(handle)
    _check(path)


def _check(path: Path) -> None:
    """Raise EvidenceError for what is no file of its own: SQLite would follow a link."""
    facts = os.lstat(path)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
        raise EvidenceError(
            f"{path} is not a file of its own", "remove it: mldebug has not made it"
        )
    if facts.st_size > MAX_BYTES:
        raise EvidenceError(
            f"{path} has {facts.st_size:,} bytes", "remove it: mldebug has not made it"
        )


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=WAIT, isolation_level=None)


def _add(path: Path, measured: Sequence[tuple[ProbeSeries, ProbeRun]]) -> Past:
    with contextlib.closing(_open(path)) as link:
        link.execute("BEGIN IMMEDIATE")  # waits for another writer here, not in the middle
        for statement in filter(str.strip, _SCHEMA.split(";")):
            link.execute(statement)
        for series, run in measured:
            _insert(link, series, run)
        link.execute(_FORGET[1], {"most": MOST_SERIES})
        link.execute(_FORGET[2])
        link.execute("COMMIT")
        return _read(link)


def _insert(link: sqlite3.Connection, series: ProbeSeries, run: ProbeRun) -> None:
    encoded = msgspec.json.encode(series)
    link.execute("INSERT OR IGNORE INTO series (told) VALUES (?)", (encoded,))
    ((number,),) = link.execute("SELECT id FROM series WHERE told = ?", (encoded,)).fetchall()
    link.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", (number, run.at, run.seconds, run.busbw))
    link.execute(_FORGET[0], {"series": number, "most": MOST_RUNS})


def _read(link: sqlite3.Connection) -> Past:
    if not link.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchall():
        return ()
    found: dict[bytes, list[ProbeRun]] = {}
    for encoded, *figures in link.execute(_ALL):
        if isinstance(encoded, bytes) and all(_is_figure(figure) for figure in figures):
            at, seconds, busbw = figures
            found.setdefault(encoded, []).append(ProbeRun(at=at, seconds=seconds, busbw=busbw))
    return tuple(
        (series, tuple(runs)) for encoded, runs in found.items() if (series := _series(encoded))
    )


def _is_figure(value: object) -> bool:
    """What a damaged page has in its place is left out."""
    return isinstance(value, float) and math.isfinite(value) and value >= 0


def _series(encoded: bytes) -> ProbeSeries | None:
    """None for one of another version."""
    try:
        return msgspec.json.decode(encoded, type=ProbeSeries)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
