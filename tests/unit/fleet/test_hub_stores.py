"""The contract of every store of a hub, and what is special of each: schemas, and a file that cannot be used."""

import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.core.errors import UsageError
from mldebug.core.plugins import create, load, names
from mldebug.fleet.events import AnyEvent, kind_of, with_id
from mldebug.fleet.hub_model import EventFilter, FleetStore
from mldebug_agents.fleet.hub.stores.sqlite import MIGRATIONS, SqliteStore
from shared.fleet.fleet_events import DAY, NOW, checkpoint, fault, health, incident, one_of_each
from shared.fleet.postgres import database_of

OPTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "sqlite": lambda folder: {"folder": folder},
    "postgresql": lambda folder: {"database": database_of(folder)},
}
"""By store: the options that open one below a folder. A new store has to be here."""

ALL = EventFilter()


def open_store(name: str, folder: Path) -> FleetStore:
    store: FleetStore = create("hub_stores", name, load("hub_stores", name).Options(**OPTIONS[name](folder)))  # fmt: skip
    store.open()
    return store


def opened(folder: Path, migrations: tuple[str, ...] = MIGRATIONS) -> SqliteStore:
    store = SqliteStore(folder, migrations)
    store.open()
    return store


@pytest.fixture(params=names("hub_stores"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[FleetStore]:
    made = open_store(kind, tmp_path)
    yield made
    made.close()


def many(node: str, count: int, at: float = NOW) -> list[AnyEvent]:
    return [checkpoint(step, at + step, node=node, subject=f"c/{step}") for step in range(count)]


def test_every_kind_of_event_comes_back_as_it_was(store: FleetStore) -> None:
    assert store.add([one_of_each()], NOW) == [7]
    assert sorted(store.find(ALL), key=kind_of) == sorted(one_of_each(), key=kind_of)


def test_an_event_is_stored_once_whoever_brings_it_and_however_often(store: FleetStore) -> None:
    assert store.add([[fault(), fault()], [fault()]], NOW) == [1, 0]
    assert store.add([one_of_each(), one_of_each()], NOW + 9) == [6, 0]
    assert len(store.find(ALL)) == store.totals().events == 7


def test_one_id_of_two_nodes_is_two_events(store: FleetStore) -> None:
    """So that no node can keep another's event out by sending its id first."""
    copied = msgspec.structs.replace(fault("n2"), id=fault("n1").id)
    assert store.add([[fault("n1")], [copied]], NOW) == [1, 1]


def test_events_come_in_the_order_of_their_times(store: FleetStore) -> None:
    store.add([[checkpoint(3, NOW + 3), checkpoint(1, NOW + 1), checkpoint(2, NOW + 2)]], NOW)
    assert [one.at - NOW for one in store.find(ALL)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"kinds": ("incident",)}, 1),
        ({"kinds": ("incident", "probe")}, 2),
        ({"node": "n1"}, 7),
        ({"node": "n2"}, 0),
        ({"job": "train.py"}, 4),
        ({"job": "train.py' OR 1=1 --"}, 0),
        ({"job": ""}, 3),
        ({"run": "r1"}, 3),
        ({"uid": 1000}, 4),
        ({"uid": -1}, 3),
        ({"uid": 1000, "kinds": ("attempt", "probe")}, 1),
        ({"since": NOW}, 7),
        ({"since": NOW + 1}, 0),
    ],
)
def test_only_what_fits_is_found(store: FleetStore, wanted: dict[str, Any], count: int) -> None:
    store.add([one_of_each()], NOW)
    assert len(store.find(EventFilter(**wanted))) == count


def test_of_each_subject_the_newest_is_found(store: FleetStore) -> None:
    store.add([many("n1", 3), [fault("n1", NOW - 9), fault("n2", NOW - 9)]], NOW)
    more = [msgspec.structs.replace(fault("n1", NOW - 9), id=f"{each:032}", at=NOW + each) for each in range(3)]  # fmt: skip
    store.add([more], NOW)
    found = store.find(EventFilter(newest=True))
    assert sorted((one.node, one.subject[:6], one.at - NOW) for one in found) == [
        ("n1", "c/0", 0), ("n1", "c/1", 1), ("n1", "c/2", 2), ("n1", "health", 2), ("n2", "health", -9),
    ]  # fmt: skip
    assert max(one.at for one in found if one.subject.startswith("health/")) == NOW + 2
    assert store.find(EventFilter(newest=True, kinds=("hardware_fault",), node="n1"))[0].at == NOW + 2  # fmt: skip


def test_of_too_many_the_newest_are_found(store: FleetStore) -> None:
    store.add([many("n1", 10)], NOW)
    assert [one.at - NOW for one in store.find(EventFilter(limit=3))] == [7, 8, 9]


def test_of_too_many_of_one_node_the_others_are_found_too(store: FleetStore) -> None:
    """The hub looks at the newest 100,000 events: a node that sent so many had made all others unknown."""
    store.add([[fault("n1", NOW - DAY), fault("n2", NOW - DAY), fault("n2", NOW - 2 * DAY)]], NOW)
    store.add([many("bad", 300)], NOW)
    found = store.find(EventFilter(limit=100))
    assert [one.node for one in found if one.node != "bad"] == ["n2", "n1", "n2"]
    assert [one.at - NOW for one in found if one.node == "bad"] == list(range(203, 300))
    each = store.find(EventFilter(limit=100, newest=True, kinds=("hardware_fault", "checkpoint")))
    assert [one.node for one in each if one.node != "bad"] == ["n2", "n1", "n2"]


def test_an_answer_has_so_many_bytes_however_large_the_events_of_one_node_are(
    store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.fleet.hub.selection.MOST_BYTES", 100_000)
    large = [incident(f"i{number}", "bad", at=NOW + number, sentence="x" * 600) for number in range(500)]  # fmt: skip
    store.add([[fault("n1", NOW - DAY)], large], NOW)
    found = store.find(ALL)
    assert [one.node for one in found[:1]] == ["n1"]
    assert 60_000 < sum(len(msgspec.json.encode(one)) for one in found) <= 100_000
    assert found[-1].at == NOW + 499


def test_what_was_added_is_there_after_it_was_opened_again(kind: str, tmp_path: Path) -> None:
    first = open_store(kind, tmp_path)
    first.add([one_of_each()], NOW)
    first.close()
    again = open_store(kind, tmp_path)
    assert again.totals().events == 7
    assert again.add([one_of_each()], NOW) == [0]
    again.close()


def test_old_events_are_pruned_and_newer_ones_are_not(store: FleetStore) -> None:
    store.add([[health("n1", NOW - 9 * DAY), health("n2", NOW - DAY), fault()]], NOW)
    assert store.prune(NOW - 2 * DAY, 1 << 40) == 1
    assert store.totals().events == len(store.find(ALL)) == 2


def test_what_was_removed_may_come_again(store: FleetStore) -> None:
    """An agent that has lost its memory tells what lasts: the hub has to know it then, not to have known it once."""
    old = health("n1", NOW - 20 * DAY)
    assert store.add([[old]], NOW) == [1]
    assert store.prune(NOW - 2 * DAY, 1 << 40) == 1
    assert store.add([[old]], NOW) == [1]


def test_a_flood_of_one_node_does_not_push_out_the_others(store: FleetStore) -> None:
    flood = [incident(f"i{number}", "bad", at=NOW + number, sentence="x" * 600) for number in range(4000)]  # fmt: skip
    quiet = [
        many(f"n{number}", 20, NOW - DAY) for number in range(5)
    ]  # older than all of the flood
    store.add([*quiet, flood], NOW)
    before = store.totals().bytes
    assert (gone := store.prune(0.0, before // 2)) > 1000
    assert store.totals().events == len(store.find(ALL)) == 4100 - gone
    assert store.totals().bytes <= before // 2
    for number in range(5):
        assert len(store.find(EventFilter(node=f"n{number}"))) == 20
    left = [one.at for one in store.find(EventFilter(node="bad"))]
    assert left
    assert max(left) == NOW + 3999  # the oldest went


def test_within_the_size_nothing_is_pruned(store: FleetStore) -> None:
    store.add([many("n1", 50)], NOW)
    assert store.prune(0.0, 1 << 30) == 0


def test_any_thread_may_find_while_one_adds(store: FleetStore) -> None:
    found: list[int] = []
    errors: list[Exception] = []
    done = threading.Event()

    def look() -> None:
        try:
            while not done.is_set():
                found.append(len(store.find(ALL)))
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        store.add([many(f"n{number}", 20)], NOW)
    done.set()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert all(count % 20 == 0 for count in found)  # a batch is there wholly or not at all


def test_every_event_has_an_id_of_its_own() -> None:
    ids = {with_id(event).id for event in one_of_each()}
    assert len(ids) == len({kind_of(event) for event in one_of_each()})


# --- SQLite ----------------------------------------------------------------------------------------


def version(path: Path) -> int:
    with sqlite3.connect(path) as link:
        return int(link.execute("PRAGMA user_version").fetchone()[0])


def test_a_database_is_brought_to_the_newest_schema_and_keeps_its_events(tmp_path: Path) -> None:
    old = opened(tmp_path)
    old.add([one_of_each()], NOW)
    old.close()
    more = (*MIGRATIONS, "CREATE TABLE notes (words TEXT); INSERT INTO notes VALUES ('new')")
    new = opened(tmp_path, more)
    assert version(new.path) == len(MIGRATIONS) + 1
    assert sorted(new.find(ALL), key=kind_of) == sorted(one_of_each(), key=kind_of)
    new.close()
    opened(tmp_path, more).close()  # and once only


def test_a_schema_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    old = opened(tmp_path)
    old.add([one_of_each()], NOW)
    old.close()
    with pytest.raises(UsageError, match="cannot be used"):
        opened(tmp_path, (*MIGRATIONS, "CREATE TABLE notes (words TEXT); SELECT wrong"))
    with sqlite3.connect(old.path) as link:
        assert link.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'notes'").fetchone() == (0,)  # fmt: skip
    again = opened(tmp_path)
    assert again.totals().events == 7
    again.close()


def test_the_database_of_a_newer_mldebug_is_left_alone(tmp_path: Path) -> None:
    opened(tmp_path, (*MIGRATIONS, "SELECT 1")).close()
    before = (tmp_path / "hub.sqlite").read_bytes()
    with pytest.raises(UsageError, match="has schema 3, and this mldebug knows 2"):
        opened(tmp_path)
    assert (tmp_path / "hub.sqlite").read_bytes() == before


def test_events_of_a_database_of_the_first_schema_are_counted(tmp_path: Path) -> None:
    """That schema had no table of nodes."""
    first = opened(tmp_path, MIGRATIONS[:1])
    with sqlite3.connect(first.path) as link:
        link.executemany("INSERT INTO events VALUES (?, ?, 'probe', 's', ?, 0, '', '', -1, '')", [("n1", f"{each}", NOW) for each in range(3)])  # fmt: skip
    first.close()
    new = opened(tmp_path)
    assert new.totals().events == 3
    assert new.prune(NOW + 1, 1 << 40) == 3
    assert new.totals().events == 0
    new.close()


def test_a_file_that_is_no_database_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "hub.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(UsageError, match="cannot be used") as caught:
        opened(tmp_path)
    assert "hub.state_dir" in caught.value.way_out


def test_nobody_else_reads_it(tmp_path: Path) -> None:
    store = opened(tmp_path / "hub")
    assert (
        stat.S_IMODE((tmp_path / "hub").stat().st_mode) == 0o711
    )  # to the socket everybody may pass
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    store.close()
