"""One SQLite file: enough for one hub, and nothing else has to be installed."""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from mldebug.core.errors import UsageError
from mldebug.fleet.events import AnyEvent, kind_of
from mldebug.fleet.hub_model import EventFilter, FleetStore, StoreTotals

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE events (
        node TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, at REAL NOT NULL, received REAL NOT NULL,
        job TEXT NOT NULL, run TEXT NOT NULL, uid INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (node, id)
    );
    CREATE INDEX events_by_kind ON events (kind, at);
    CREATE INDEX events_by_subject ON events (kind, node, subject, at);
    CREATE INDEX events_by_node ON events (node, at);
    CREATE INDEX events_by_job ON events (job, at) WHERE job != '';
    CREATE INDEX events_by_time ON events (at);
    """,
)
"""Script N brings a database from schema N to N + 1 (`PRAGMA user_version`). A released script is never changed: add one."""

WAIT = 10.0  # seconds for a lock that another thread holds
FULL_AT, EMPTY_TO = 1.0, 0.9  # shares of the greatest size: pruning begins and ends there
AT_ONCE = 20_000  # rows that one step of pruning removes
STEPS = 50  # of one pruning: the rest is for the next
MOST_FOUND = 32 << 20  # bytes of the events of one answer
ROUNDS = 4  # in which what some nodes leave over is shared out among the others

_NODES = """
    WITH RECURSIVE each(node) AS (
        SELECT MIN(node) FROM events UNION ALL SELECT (SELECT MIN(node) FROM events WHERE node > each.node) FROM each WHERE node IS NOT NULL
    ) SELECT node FROM each WHERE node IS NOT NULL
"""
"""The names of all nodes: one step in their index for each, however many events it has."""

_EVENTS = msgspec.json.Decoder(AnyEvent)


class _Place(NamedTuple):
    """Where one event is in the table, its times, and its bytes."""

    row: int
    at: float
    received: float
    size: int


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the store."""

    folder: Path = Path()


class SqliteStore:
    """Events in the file `hub.sqlite` of a folder; each thread has a connection of its own."""

    def __init__(self, folder: Path, migrations: Sequence[str] = MIGRATIONS) -> None:
        """Opens nothing yet."""
        self.path = folder / "hub.sqlite"
        self._migrations = migrations
        self._local = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._lock = threading.Lock()

    def open(self) -> None:
        """Raises UsageError where the file cannot be used: another program's, damaged, or of a newer mldebug."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            migrate(self._link(), self._migrations, self.path)
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise UsageError(f"{self.path} cannot be used: {error}", "move it away, or set another hub.state_dir") from error  # fmt: skip

    def add(self, batches: Sequence[Sequence[AnyEvent]], received: float) -> list[int]:
        """Store what is new of all batches in one transaction."""
        with _as_os_error(), _transaction(self._link()) as link:
            return [sum(_insert(link, event, received) for event in batch) for batch in batches]

    def find(self, wanted: EventFilter) -> list[AnyEvent]:
        """The events that fit, by their times; at most `MOST_FOUND` bytes of them."""
        with _as_os_error():
            link = self._link()
            places, whole = _within(_places(link, wanted), wanted.limit, MOST_FOUND)
            if not whole and wanted.node is None:
                places = _shared_out(link, wanted)
            places.sort(key=lambda one: (one.at, one.received))
            bodies = (link.execute("SELECT body FROM events WHERE rowid = ?", one[:1]).fetchone() for one in places)  # fmt: skip
            return [_EVENTS.decode(body[0]) for body in bodies if body]  # None: pruned meanwhile

    def totals(self) -> StoreTotals:
        """How many events there are, and how much of the file is in use."""
        with _as_os_error():
            (count,) = self._link().execute("SELECT COUNT(*) FROM events").fetchone()
            return StoreTotals(count, self._used())

    def prune(self, before: float, most_bytes: int) -> int:
        """Remove what is too old, then the oldest events of the nodes that have most."""
        with _as_os_error():
            link = self._link()
            gone = link.execute("DELETE FROM events WHERE at < ?", (before,)).rowcount
            if self._used() <= FULL_AT * most_bytes:
                return gone
            for _ in range(STEPS):
                if self._used() <= EMPTY_TO * most_bytes or not (step := _thin_out(link)):
                    break
                gone += step
            return gone

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for link in self._all:
                link.close()
            self._all.clear()

    def _used(self) -> int:
        link = self._link()
        pages, free, size = (
            link.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _link(self) -> sqlite3.Connection:
        link: sqlite3.Connection | None = getattr(self._local, "link", None)
        if link is None:
            link = sqlite3.connect(self.path, WAIT, isolation_level=None, check_same_thread=False)
            link.execute("PRAGMA journal_mode=WAL")
            link.execute("PRAGMA synchronous=FULL")  # what is acknowledged outlives a power cut
            self._local.link = link
            with self._lock:
                self._all.append(link)
        return link


def migrate(link: sqlite3.Connection, migrations: Sequence[str], path: Path) -> None:
    """Bring the database to the newest schema, one script after another, each wholly or not at all. Raises UsageError where a newer
    mldebug has written it.
    """
    (version,) = link.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        newer = f"{path} has schema {version}, and this mldebug knows {len(migrations)}"
        raise UsageError(newer, "start the newer mldebug, or set another hub.state_dir")
    for number, script in enumerate(migrations[version:], version + 1):
        link.executescript(f"BEGIN IMMEDIATE;{script};PRAGMA user_version = {number};COMMIT;")


def _insert(link: sqlite3.Connection, event: AnyEvent, received: float) -> int:
    """1 where the event is new, 0 where it is stored already."""
    row = (
        event.node,
        event.id,
        kind_of(event),
        event.subject,
        event.at,
        received,
        event.job,
        event.run,
        event.uid,
    )
    body = msgspec.json.encode(event)
    statement = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    return link.execute(statement, (*row, body)).rowcount


def _conditions(wanted: EventFilter) -> tuple[str, list[object]]:
    """The condition of a WHERE, and its values."""
    parts, values = ["at >= ?"], [wanted.since]
    found: list[object] = list(values)
    if wanted.kinds:
        parts.append(f"kind IN ({', '.join('?' for _ in wanted.kinds)})")
        found += wanted.kinds
    for column in ("node", "job", "run", "uid"):
        if (value := getattr(wanted, column)) is not None:
            parts.append(f"{column} = ?")
            found.append(value)
    if wanted.job:
        parts.append("job != ''")  # so that the index of jobs serves
    return " AND ".join(parts), found


def _places(link: sqlite3.Connection, wanted: EventFilter) -> list[_Place]:
    """Where the events are that fit, the newest first. Their bodies are not read: a flood of large ones would be sorted with them."""
    where, values = _conditions(wanted)
    # SQLite gives the other columns of a group from the row that has the MAX
    group, at = ("GROUP BY kind, node, subject", "MAX(at)") if wanted.newest else ("", "at")
    statement = f"SELECT rowid, {at}, received, LENGTH(body) FROM events WHERE {where} {group} ORDER BY 2 DESC, 3 DESC LIMIT ?"  # noqa: S608 - made of constants
    return [_Place(*row) for row in link.execute(statement, (*values, wanted.limit))]


def _within(places: list[_Place], most: int, size: int) -> tuple[list[_Place], bool]:
    """The first so many, of so many bytes together; and whether none is left out that there may be."""
    for number, one in enumerate(places):
        size -= one.size
        if number >= most or size < 0:
            return places[:number], False
    return places, len(places) < most


def _shared_out(link: sqlite3.Connection, wanted: EventFilter) -> list[_Place]:
    """Of each node as many of its newest events that fit as of any other: where there are too many, one node's flood hides no other's."""
    found: dict[str, list[_Place]] = {}
    waiting = [row[0] for row in link.execute(_NODES)]
    rows, size = wanted.limit, MOST_FOUND
    for _ in range(ROUNDS):
        if not waiting:
            break
        share = max(1, rows // len(waiting)), max(1, size // len(waiting))
        more = []
        for node in waiting:
            limited = msgspec.structs.replace(wanted, node=node, limit=share[0])
            found[node], whole = _within(_places(link, limited), *share)
            if whole:
                rows -= len(found[node])
                size -= sum(one.size for one in found[node])
            else:
                more.append(node)
        if len(more) == len(waiting):
            break
        waiting = more
    return [one for places in found.values() for one in places]


def _thin_out(link: sqlite3.Connection) -> int:
    """Remove the oldest events of the node that has most, down to what the next one has, and at least a hundredth of its own."""
    rows = link.execute("SELECT node, COUNT(*) FROM events GROUP BY node ORDER BY 2 DESC LIMIT 2").fetchall()  # fmt: skip
    if not rows:
        return 0
    node, count = rows[0]
    more = count - rows[1][1] if len(rows) > 1 else count
    step = min(AT_ONCE, max(1, count // 100, more // 2))
    return link.execute(
        "DELETE FROM events WHERE rowid IN (SELECT rowid FROM events WHERE node = ? ORDER BY at LIMIT ?)",
        (node, step),
    ).rowcount


@contextmanager
def _transaction(link: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    link.execute("BEGIN IMMEDIATE")
    try:
        yield link
    except BaseException:
        link.execute("ROLLBACK")
        raise
    link.execute("COMMIT")


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise OSError(f"the hub's database: {error}") from error


def create(options: Options) -> FleetStore:
    """Build the store of one SQLite file."""
    return SqliteStore(options.folder)
