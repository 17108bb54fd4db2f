"""What is special of the store in PostgreSQL: weeks as partitions, several hubs on one database, a server that goes and comes, passwords.

What it has in common with the other stores is in test_hub_stores.py.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.plugins import create
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.hub_model import EventFilter
from mldebug_agents.fleet.hub.stores import postgresql
from mldebug_agents.fleet.hub.stores.postgresql.links import MOST, Links, conninfo
from mldebug_agents.fleet.hub.stores.postgresql.schema import MIGRATIONS, WEEK, partitions
from mldebug_agents.fleet.hub.stores.postgresql.store import PostgresStore
from shared.fleet.fleet_events import DAY, NOW, checkpoint, fault, one_of_each
from shared.fleet.postgres import PostgresServer, database_of, shared_server, temporary_server

ALL = EventFilter()


def opened(dsn: str, migrations: tuple[str, ...] = MIGRATIONS) -> PostgresStore:
    store = PostgresStore(Links(conninfo(dsn)), migrations)
    store.open()
    return store


@pytest.fixture
def dsn(tmp_path: Path) -> str:
    return database_of(tmp_path)


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresStore]:
    made = opened(dsn)
    yield made
    made.close()


def tables(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as link:
        return [one.table for one in partitions(link)]


def each_week(count: int, node: str = "n1") -> list[AnyEvent]:
    return [checkpoint(one, NOW - one * WEEK, node=node, subject=f"c/{one}") for one in range(count)]  # fmt: skip


# --- weeks -----------------------------------------------------------------------------------------


def test_old_weeks_go_as_whole_tables(store: PostgresStore, dsn: str) -> None:
    store.add([each_week(6)], NOW)
    assert len(tables(dsn)) == 6
    before = NOW - 3 * WEEK
    gone = store.prune(before, 1 << 40)
    assert len(tables(dsn)) == 6 - gone
    left = [one.at for one in store.find(ALL)]
    assert all(at > before - WEEK for at in left)  # a week longer at most
    assert [at for at in left if at >= before] == sorted(NOW - one * WEEK for one in range(4))
    assert store.add([each_week(6)], NOW) == [gone]  # their tables are made anew


def test_a_clock_that_was_never_set_makes_one_table(store: PostgresStore, dsn: str) -> None:
    events = [checkpoint(one, one * WEEK, subject=f"c/{one}") for one in range(100)]
    assert store.add([events], NOW) == [100]
    assert len(tables(dsn)) == 1
    assert store.prune(NOW - 180 * DAY, 1 << 40) == 100


def test_no_table_is_removed_for_want_of_space_but_only_events(store: PostgresStore, dsn: str) -> None:  # fmt: skip
    store.add([each_week(3), each_week(3, "n2")], NOW)
    assert store.prune(0.0, store.totals().bytes // 2) >= 3
    assert {one.node for one in store.find(ALL)} == {"n1", "n2"}
    assert len(tables(dsn)) == 3


def test_the_size_is_about_what_postgresql_says(store: PostgresStore, dsn: str) -> None:
    """The limit of bytes is kept by it: removed rows leave room in PostgreSQL's files, and no smaller files."""
    for number in range(10):
        store.add([[checkpoint(step, NOW - step, node=f"node{number}", subject=f"checkpoint/series/{step}") for step in range(1000)]], NOW)  # fmt: skip
    with psycopg.connect(dsn) as link:
        real = link.execute("SELECT SUM(pg_total_relation_size(oid)) FROM pg_class WHERE relkind IN ('r', 'p')  AND relnamespace = 'public'::regnamespace").fetchone()  # fmt: skip
    assert 0.5 < store.totals().bytes / float(real[0]) < 2.0


# --- several hubs ----------------------------------------------------------------------------------


def test_two_hubs_store_the_same_events_once_and_never_block_each_other(store: PostgresStore, dsn: str) -> None:  # fmt: skip
    """They bring the same events in other orders, as after a hub that died before its answer."""
    events = [checkpoint(step, NOW + step, node=f"n{step % 7}", subject=f"c/{step}") for step in range(210)]  # fmt: skip
    stored, errors = [0], []
    lock = threading.Lock()

    def bring(hub: PostgresStore, some: list[AnyEvent]) -> None:
        try:
            for start in range(0, len(some), 30):
                (count,) = hub.add([some[start : start + 30]], NOW)
                with lock:
                    stored[0] += count
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    other = opened(dsn)
    turned = [*reversed(events)]
    threads = [threading.Thread(target=bring, args=args) for args in ((store, events), (other, turned), (store, turned), (other, events))]  # fmt: skip
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert errors == []
    assert stored == [210]
    assert store.totals().events == len(store.find(ALL)) == 210
    other.close()


def test_two_hubs_prune_in_turns_and_a_removed_week_is_made_anew(store: PostgresStore, dsn: str) -> None:  # fmt: skip
    store.add([each_week(3)], NOW)
    other = opened(dsn)
    with psycopg.connect(dsn) as link, link.transaction():
        link.execute("SELECT pg_advisory_xact_lock(%s)", (0x6D6C6465627567,))  # a third one
        assert other.prune(NOW + 9 * DAY, 1 << 40) == 0
    assert other.prune(NOW + 9 * DAY, 1 << 40) == 3
    other.close()
    with pytest.raises(OSError, match="no partition"):  # its sender tries again
        store.add([each_week(3)], NOW)
    assert store.add([each_week(3)], NOW) == [3]


def test_more_threads_than_connections_wait_for_one(store: PostgresStore) -> None:
    store.add([one_of_each()], NOW)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(store.find(ALL)))) for _ in range(3 * MOST)]  # fmt: skip
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert found == [7] * 3 * MOST


# --- schemas ---------------------------------------------------------------------------------------


def test_a_schema_is_brought_up_to_date_while_another_hub_stores(store: PostgresStore, dsn: str) -> None:  # fmt: skip
    store.add([[fault("n1")]], NOW)
    newer = (*MIGRATIONS, "ALTER TABLE nodes ADD COLUMN note text NOT NULL DEFAULT ''")
    new = opened(dsn, newer)
    assert new.add([[fault("n2")]], NOW) == [1]
    assert store.add([[fault("n3")]], NOW) == [1]  # the older hub goes on
    assert {one.node for one in new.find(ALL)} == {"n1", "n2", "n3"}
    new.close()
    opened(dsn, newer).close()  # and once only
    with pytest.raises(UsageError, match=f"has schema {len(newer)}, and this mldebug knows {len(MIGRATIONS)}"):  # fmt: skip
        opened(dsn)


def test_a_schema_change_that_fails_changes_nothing(store: PostgresStore, dsn: str) -> None:
    store.add([one_of_each()], NOW)
    with pytest.raises(UsageError, match="wrong"):
        opened(dsn, (*MIGRATIONS, "CREATE TABLE notes (words text); SELECT wrong"))
    with psycopg.connect(dsn) as link:
        assert link.execute("SELECT to_regclass('notes')").fetchone() == (None,)
    again = opened(dsn)
    assert again.totals().events == 7
    again.close()


def test_a_database_that_cannot_hold_every_text_is_refused(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {link.info.dbname}_ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'".encode())  # fmt: skip
        name = f"{link.info.dbname}_ascii"
    with pytest.raises(UsageError, match="has the encoding SQL_ASCII") as caught:
        opened(shared_server().dsn(name))
    assert "--encoding=UTF8" in caught.value.way_out


# --- a server that goes and comes ------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    made = temporary_server(durable=False)
    yield made
    made.stop()


def test_a_server_that_was_killed_loses_nothing_and_is_found_again(server: PostgresServer) -> None:
    store = opened(server.database("fleet"))
    assert store.add([[fault("n1")]], NOW) == [1]
    server.kill()
    with pytest.raises(OSError, match="the hub's database"):
        store.add([[fault("n2")]], NOW)
    with pytest.raises(OSError, match="the hub's database"):
        store.find(ALL)
    server.start()
    assert store.add([[fault("n1"), fault("n2")]], NOW) == [1]
    assert len(store.find(ALL)) == store.totals().events == 2
    store.close()


def test_without_a_server_a_hub_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the hub's database") as caught:
        opened(f"host={tmp_path} user=nobody dbname=nothing")
    assert "hub.database" in caught.value.way_out


# --- addresses and passwords -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("database", "why"),
    [
        ("postgresql://me:secret@db01/mldebug", "hub.database_password_file"),
        ("host=db01 password=secret", "hub.database_password_file"),
        ("db01/mldebug", "missing"),
    ],
)
def test_a_wrong_address_is_refused_and_its_password_is_not_repeated(database: str, why: str) -> None:  # fmt: skip
    with pytest.raises(MldebugError, match=why) as caught:
        create("hub_stores", "postgresql", postgresql.Options(database=database))
    assert "secret" not in caught.value.message


def test_the_password_comes_from_a_file_that_nobody_else_reads(tmp_path: Path, dsn: str, server: PostgresServer) -> None:  # fmt: skip
    with psycopg.connect(server.database("fleet"), autocommit=True) as link:
        link.execute("CREATE ROLE hub LOGIN PASSWORD 'right'; GRANT CREATE ON SCHEMA public TO hub")
        link.execute("COPY (SELECT 'local all hub scram-sha-256') TO PROGRAM 'cat > pg_hba.conf'")
        link.execute("SELECT pg_reload_conf()")
    file = tmp_path / "password"
    address = f"host={server.folder} user=hub dbname=fleet"

    def store() -> PostgresStore:
        made: PostgresStore = create("hub_stores", "postgresql", postgresql.Options(database=address, password_file=file))  # fmt: skip
        made.open()
        return made

    file.write_text("wrong\n")
    file.chmod(0o600)
    with pytest.raises(UsageError, match="password authentication failed"):
        store()
    file.write_text("right\n")
    store().close()
    file.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others"):
        store()
