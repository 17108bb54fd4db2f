"""The store in PostgreSQL. Several hubs may use one database at the same time."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import psycopg

from mldebug.core.errors import UsageError
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.hub_model import EventFilter, StoreTotals
from mldebug_agents.fleet.hub.pruning import EMPTY_TO, STEPS, next_thinning
from mldebug_agents.fleet.hub.rows import EventRow, event_of, row_of
from mldebug_agents.fleet.hub.selection import EventPlace, chosen
from mldebug_agents.fleet.hub.stores.postgresql.links import Link, Links
from mldebug_agents.fleet.hub.stores.postgresql.schema import (
    MIGRATIONS,
    OURS,
    Partition,
    make_week,
    migrate,
    partitions,
    week_of,
)

OF_A_ROW = 700  # bytes that a row takes besides its body, with its share of all indexes: measured
LOCKED = "5s"  # for a table that others use
CHANGED = "INSERT INTO nodes AS n SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) ON CONFLICT (node) DO UPDATE SET events = n.events + excluded.events, bytes = n.bytes + excluded.bytes"  # fmt: skip
NEW = "INSERT INTO known SELECT * FROM unnest(%s::text[], %s::text[], %s::float8[]) ON CONFLICT DO NOTHING RETURNING node, id"

Key = tuple[str, str]  # node, id


class PostgresStore:
    """Events in one partition for each week, by the time of the event."""

    def __init__(self, links: Links, migrations: Sequence[str] = MIGRATIONS) -> None:
        """Opens nothing yet."""
        self._links, self._migrations = links, migrations
        self._weeks: frozenset[int] = frozenset()  # whose partitions are there

    def open(self) -> None:
        """Raises UsageError where the server does not answer, refuses, or has a database of a newer mldebug."""
        try:
            with self._links.lent() as link:
                migrate(link, self._migrations)
        except UsageError:
            self.close()
            raise
        except OSError as error:
            raise UsageError(f"{error}", "look at hub.database: psql must be able to open it") from error  # fmt: skip

    def add(self, batches: Sequence[Sequence[AnyEvent]], received: float) -> list[int]:
        """Store what is new of all batches in one transaction."""
        rows = {(event.node, event.id): row_of(event, received) for batch in reversed(batches) for event in reversed(batch)}  # fmt: skip
        with self._links.lent() as link:
            self._make_weeks(link, {week_of(row.at) for row in rows.values()})
            try:
                new = _insert(link, rows)
            except psycopg.errors.CheckViolation:  # another hub has removed a week meanwhile
                self._weeks = frozenset()
                raise
        return [_count(batch, new) for batch in batches]

    def find(self, wanted: EventFilter) -> list[AnyEvent]:
        """The events that fit, by their times; at most `MOST_BYTES` bytes of them."""
        with self._links.lent() as link, link.transaction():
            link.execute(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
            )  # a row stays where it was found
            places = chosen(partial(_places, link), partial(_nodes, link), wanted)
            return [event_of(body) for body in _bodies(link, places)]

    def totals(self) -> StoreTotals:
        """How many events there are, and about how many bytes they take with their indexes."""
        with self._links.lent() as link:
            return _totals(link)

    def prune(self, before: float, most_bytes: int) -> int:
        """Remove the weeks that are over before `before`, then the oldest events of the nodes that have most. 0 while another hub does it."""
        gone = 0
        with self._links.lent() as link:
            with link.transaction():
                if not _alone(link):
                    return 0
                for one in partitions(link):
                    if one.end <= before:
                        gone += _drop(link, one)
                        self._weeks = frozenset()
            if _totals(link).bytes <= most_bytes:
                return gone
            for _ in range(STEPS):
                if _totals(link).bytes <= EMPTY_TO * most_bytes or not (step := _thin_out(link)):
                    break
                gone += step
        return gone

    def close(self) -> None:
        """Close all idle connections to the database."""
        self._links.close()

    def _make_weeks(self, link: Link, weeks: set[int]) -> None:
        for week in sorted(weeks - self._weeks):
            make_week(link, week)
            self._weeks |= {week}


def _insert(link: Link, rows: dict[Key, EventRow]) -> set[Key]:
    """Store those of the rows that are new, and return their keys. In the order of the keys: two hubs never wait for each other."""
    keys = sorted(rows)
    with link.transaction():
        columns = [key[0] for key in keys], [key[1] for key in keys], [rows[key].at for key in keys]
        new = {(str(node), str(key)) for node, key in link.execute(NEW, columns).fetchall()}
        if not new:
            return new
        with link.cursor().copy("COPY events FROM STDIN") as copy:
            for key in new:
                copy.write_row(rows[key])
        events = Counter(node for node, _ in new)
        sizes: Counter[str] = Counter()
        for key in new:
            sizes[key[0]] += OF_A_ROW + len(rows[key].body)
        nodes = sorted(events)
        link.execute(CHANGED, (nodes, [events[one] for one in nodes], [sizes[one] for one in nodes]))  # fmt: skip
    return new


def _count(batch: Sequence[AnyEvent], new: set[Key]) -> int:
    """How many of a batch are new; each counts for the first batch that has it."""
    mine = {(event.node, event.id) for event in batch} & new
    new -= mine
    return len(mine)


def _conditions(wanted: EventFilter) -> tuple[str, list[object]]:
    """The condition of a WHERE, and its values."""
    parts, values = ["at >= %s"], [wanted.since]
    found: list[object] = list(values)
    if wanted.kinds:
        parts.append("kind = ANY(%s)")
        found.append(list(wanted.kinds))
    for column in ("node", "job", "run", "uid"):
        if (value := getattr(wanted, column)) is not None:
            parts.append(f"{column} = %s")
            found.append(value)
    parts += [
        f"{one} <> ''" for one in ("job", "run") if getattr(wanted, one)
    ]  # so that their indexes serve
    return " AND ".join(parts), found


def _places(link: Link, wanted: EventFilter) -> list[EventPlace]:
    """Where the events are that fit, the newest first. Their bodies are not read."""
    where, values = _conditions(wanted)
    rows = f"SELECT tableoid::regclass::text AS week, ctid, at, received, octet_length(body) AS size FROM events WHERE {where}"  # noqa: S608 - made of constants
    if wanted.newest:
        rows = rows.replace("SELECT", "SELECT DISTINCT ON (kind, node, subject)", 1)
        rows += " ORDER BY kind, node, subject, at DESC, received DESC"
    statement = f"SELECT week, ctid::text, at, received, size FROM ({rows}) AS found ORDER BY at DESC, received DESC LIMIT %s"  # noqa: S608
    found = link.execute(statement.encode(), (*values, wanted.limit)).fetchall()
    return [EventPlace((str(row[0]), str(row[1])), float(str(row[2])), float(str(row[3])), int(str(row[4]))) for row in found]  # fmt: skip


def _bodies(link: Link, places: Sequence[EventPlace]) -> list[bytes]:
    """The bodies of these events, in their order."""
    found: dict[object, bytes] = {}
    for table in sorted({one.row[0] for one in places}):
        rows = [row for row in (one.row for one in places) if row[0] == table]
        statement = f"SELECT ctid::text, body FROM {table} WHERE ctid = ANY(%s::tid[])"  # noqa: S608 - a name of our own
        for row, body in link.execute(statement.encode(), ([row[1] for row in rows],), binary=True).fetchall():  # fmt: skip
            if isinstance(body, bytes):
                found[table, row] = body
    return [found[one.row] for one in places]


def _nodes(link: Link) -> list[str]:
    return [str(row[0]) for row in link.execute("SELECT node FROM nodes WHERE events > 0").fetchall()]  # fmt: skip


def _totals(link: Link) -> StoreTotals:
    row = link.execute("SELECT COALESCE(SUM(events), 0)::bigint, COALESCE(SUM(bytes), 0)::bigint FROM nodes").fetchone()  # fmt: skip
    events, size = row or (0, 0)
    return StoreTotals(int(str(events)), int(str(size)))


def _alone(link: Link) -> bool:
    """Whether no other hub changes tables now; for the rest of the transaction it will not."""
    row = link.execute("SELECT pg_try_advisory_xact_lock(%s)", (OURS,)).fetchone()
    return bool(row and row[0])


def _drop(link: Link, one: Partition) -> int:
    """Remove a week as a whole. Returns how many events it had."""
    link.execute(f"SET LOCAL lock_timeout = '{LOCKED}'".encode())
    counts = f"SELECT node, -COUNT(*), -SUM({OF_A_ROW} + octet_length(body)) FROM {one.table} GROUP BY node ORDER BY node"  # noqa: S608
    rows = link.execute(counts.encode()).fetchall()
    link.execute(CHANGED, tuple([row[place] for row in rows] for place in range(3)))
    link.execute(f"DROP TABLE {one.table}".encode())
    link.execute("DELETE FROM known WHERE at < %s", (one.end,))
    link.execute("DELETE FROM nodes WHERE events <= 0")
    return -sum(int(str(row[1])) for row in rows)


def _thin_out(link: Link) -> int:
    rows = link.execute("SELECT node, events FROM nodes ORDER BY events DESC LIMIT 2").fetchall()
    thinning = next_thinning([(str(node), int(str(count))) for node, count in rows])
    if thinning is None:
        return 0
    node, step = thinning
    with link.transaction():
        last = link.execute("SELECT at FROM events WHERE node = %s ORDER BY at OFFSET %s LIMIT 1", (node, step - 1)).fetchone()  # fmt: skip
        if last is None:
            link.execute("DELETE FROM nodes WHERE node = %s", (node,))
            return 0
        gone = link.execute("DELETE FROM events WHERE node = %s AND at <= %s RETURNING id, octet_length(body)", (node, last[0])).fetchall()  # fmt: skip
        link.execute("DELETE FROM known WHERE node = %s AND id = ANY(%s)", (node, [row[0] for row in gone]))  # fmt: skip
        size = sum(OF_A_ROW + int(str(row[1])) for row in gone)
        link.execute(CHANGED, ([node], [-len(gone)], [-size]))
    return len(gone)
