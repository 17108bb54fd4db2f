"""One SQLite file: enough for one hub, and nothing else has to be installed."""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from mldebug.core.errors import UsageError
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.hub_model import EventFilter, FleetStore, StoreTotals
from mldebug_agents.fleet.hub.pruning import AT_ONCE, EMPTY_TO, STEPS, next_thinning
from mldebug_agents.fleet.hub.rows import EventRow, event_of, row_of
from mldebug_agents.fleet.hub.selection import EventPlace, chosen
from mldebug_agents.state.folder import MODE

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
    """
    CREATE TABLE nodes (node TEXT PRIMARY KEY, events INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO nodes SELECT node, COUNT(*) FROM events GROUP BY node;
    CREATE INDEX events_by_run ON events (run, at) WHERE run != '';
    """,
)
"""Script N brings a database from schema N to N + 1 (`PRAGMA user_version`). A released script is never changed: add one.

`nodes` says how many events each node has, so that nobody has to count them.
"""

WAIT = 10.0  # seconds for a lock that another thread holds

_NODES = """
    WITH RECURSIVE each(node) AS (
        SELECT MIN(node) FROM events UNION ALL SELECT (SELECT MIN(node) FROM events WHERE node > each.node) FROM each WHERE node IS NOT NULL
    ) SELECT node FROM each WHERE node IS NOT NULL
"""
"""The names of all nodes: one step in their index for each, however many events it has."""

INSERT = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
CHANGED = "INSERT INTO nodes VALUES (?, ?) ON CONFLICT (node) DO UPDATE SET events = events + excluded.events"


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
            self.path.parent.mkdir(mode=MODE, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            migrate(self._link(), self._migrations, self.path)
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise UsageError(f"{self.path} cannot be used: {error}", "move it away, or set another hub.state_dir") from error  # fmt: skip

    def add(self, batches: Sequence[Sequence[AnyEvent]], received: float) -> list[int]:
        """Store what is new of all batches in one transaction."""
        with _as_os_error(), _transaction(self._link()) as link:
            return [_insert(link, batch, received) for batch in batches]

    def find(self, wanted: EventFilter) -> list[AnyEvent]:
        """The events that fit, by their times; at most `MOST_BYTES` bytes of them."""
        with _as_os_error():
            link = self._link()
            places = chosen(partial(_places, link), partial(_nodes, link), wanted)
            bodies = (link.execute("SELECT body FROM events WHERE rowid = ?", one.row[1:]).fetchone() for one in places)  # fmt: skip
            return [event_of(body[0]) for body in bodies if body]  # None: pruned meanwhile

    def totals(self) -> StoreTotals:
        """How many events there are, and how much of the file is in use."""
        with _as_os_error():
            (count,) = self._link().execute("SELECT COALESCE(SUM(events), 0) FROM nodes").fetchone()
            return StoreTotals(count, self._used())

    def prune(self, before: float, most_bytes: int) -> int:
        """Remove what is too old, then the oldest events of the nodes that have most."""
        with _as_os_error():
            link = self._link()
            gone = 0
            while step := _remove(link, "at < ?", before, AT_ONCE):
                gone += step
            if self._used() <= most_bytes:
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


def _insert(link: sqlite3.Connection, batch: Sequence[AnyEvent], received: float) -> int:
    """Store what is new of a batch; returns how many that is."""
    by_node: dict[str, list[EventRow]] = {}
    for event in batch:
        by_node.setdefault(event.node, []).append(row_of(event, received))
    new = [(node, link.executemany(INSERT, rows).rowcount) for node, rows in by_node.items()]
    link.executemany(CHANGED, new)
    return sum(count for _, count in new)


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
    parts += [
        f"{one} != ''" for one in ("job", "run") if getattr(wanted, one)
    ]  # so that their indexes serve
    return " AND ".join(parts), found


def _places(link: sqlite3.Connection, wanted: EventFilter) -> list[EventPlace]:
    """Where the events are that fit, the newest first. Their bodies are not read: a flood of large ones would be sorted with them."""
    where, values = _conditions(wanted)
    # SQLite gives the other columns of a group from the row that has the MAX
    group, at = ("GROUP BY kind, node, subject", "MAX(at)") if wanted.newest else ("", "at")
    statement = f"SELECT rowid, {at}, received, LENGTH(body) FROM events WHERE {where} {group} ORDER BY 2 DESC, 3 DESC LIMIT ?"  # noqa: S608 - made of constants
    return [
        EventPlace(("events", row[0]), *row[1:])
        for row in link.execute(statement, (*values, wanted.limit))
    ]


def _nodes(link: sqlite3.Connection) -> list[str]:
    return [row[0] for row in link.execute(_NODES)]


def _thin_out(link: sqlite3.Connection) -> int:
    rows = link.execute("SELECT node, events FROM nodes ORDER BY events DESC LIMIT 2").fetchall()
    thinning = next_thinning(rows)
    return _remove(link, "node = ?", *thinning) if thinning else 0


def _remove(link: sqlite3.Connection, where: str, value: object, most: int) -> int:
    """Remove the oldest events that fit, at most so many, in one transaction."""
    oldest = f"SELECT rowid FROM events WHERE {where} ORDER BY at LIMIT ?"  # noqa: S608 - made of constants
    with _transaction(link):
        rows = link.execute(f"DELETE FROM events WHERE rowid IN ({oldest}) RETURNING node", (value, most)).fetchall()  # noqa: S608  # fmt: skip
        gone = Counter(node for (node,) in rows)
        link.executemany(CHANGED, [(node, -count) for node, count in gone.items()])
        link.execute("DELETE FROM nodes WHERE events <= 0")
    return len(rows)


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
