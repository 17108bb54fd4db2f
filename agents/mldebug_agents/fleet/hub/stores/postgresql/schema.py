"""The tables in PostgreSQL, how an older schema is brought up to date, and the partition of each week."""

from collections.abc import Sequence
from typing import NamedTuple

from mldebug.core.errors import UsageError
from mldebug_agents.fleet.hub.stores.postgresql.links import Link

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE events (
        node text NOT NULL, id text NOT NULL, kind text NOT NULL, subject text NOT NULL, at float8 NOT NULL,
        received float8 NOT NULL, job text NOT NULL, run text NOT NULL, uid bigint NOT NULL, body bytea NOT NULL
    ) PARTITION BY RANGE (at);
    CREATE INDEX events_by_kind ON events (kind, at);
    CREATE INDEX events_by_subject ON events (kind, node, subject, at);
    CREATE INDEX events_by_node ON events (node, at);
    CREATE INDEX events_by_job ON events (job, at) WHERE job <> '';
    CREATE INDEX events_by_run ON events (run, at) WHERE run <> '';
    CREATE TABLE known (node text NOT NULL, id text NOT NULL, at float8 NOT NULL, PRIMARY KEY (node, id));
    CREATE INDEX known_by_time ON known (at);
    CREATE TABLE nodes (node text PRIMARY KEY, events bigint NOT NULL, bytes bigint NOT NULL);
    """,
)
"""Script N brings a database from schema N to N + 1 (table `mldebug_schema`). A released script is never changed: add one.

`known` holds the ids, since an index over all partitions cannot be unique without their key; `nodes` what each node has.
"""

WEEK = 7 * 86400
FIRST = 2609  # weeks since 1970: what is older (a clock that was not set) is in one partition
OURS = 0x6D6C6465627567  # of pg_advisory_xact_lock: one hub at a time changes tables


class Partition(NamedTuple):
    """A partition of `events`: its table, and the first second after it."""

    table: str
    end: float


def week_of(at: float) -> int:
    """The number of the week in which a moment is; `FIRST - 1` for all weeks before `FIRST`."""
    return max(FIRST - 1, int(at // WEEK))


def partition_of(week: int) -> Partition:
    """The partition of a week."""
    return Partition(f"events_w{week}", float((week + 1) * WEEK))


def migrate(link: Link, migrations: Sequence[str]) -> None:
    """Bring the database to the newest schema, wholly or not at all. Raises UsageError where a newer mldebug has written it, or
    where it cannot hold every text.
    """
    encoding = link.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise UsageError(f"the database of hub.database has the encoding {encoding}", "createdb --encoding=UTF8 --template=template0 NAME")  # fmt: skip
    with link.transaction():
        link.execute("SET LOCAL statement_timeout = 0")
        link.execute("SELECT pg_advisory_xact_lock(%s)", (OURS,))
        link.execute("CREATE TABLE IF NOT EXISTS mldebug_schema (version int NOT NULL)")
        version = int(str(_value(link, "SELECT COALESCE(MAX(version), 0) FROM mldebug_schema")))
        if version > len(migrations):
            newer = (
                f"the hub's database has schema {version}, and this mldebug knows {len(migrations)}"
            )
            raise UsageError(newer, "start the newer mldebug, or set another hub.database")
        for number, script in enumerate(migrations[version:], version + 1):
            link.execute(script.encode())
            link.execute("INSERT INTO mldebug_schema VALUES (%s)", (number,))


def make_week(link: Link, week: int) -> None:
    """Make the partition of a week, where no hub has made it yet."""
    begin = "MINVALUE" if week < FIRST else str(week * WEEK)
    table, end = partition_of(week)
    with link.transaction():
        link.execute("SELECT pg_advisory_xact_lock(%s)", (OURS,))
        statement = f"CREATE TABLE IF NOT EXISTS {table} PARTITION OF events FOR VALUES FROM ({begin}) TO ({end:.0f})"
        link.execute(statement.encode())


def partitions(link: Link) -> list[Partition]:
    """The partitions that there are, the oldest first."""
    rows = link.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass").fetchall()  # fmt: skip
    weeks = sorted(int(str(table).rpartition("events_w")[2]) for (table,) in rows)
    return [partition_of(week) for week in weeks]


def _value(link: Link, statement: str) -> object:
    row = link.execute(statement.encode()).fetchone()
    return row[0] if row else None
