"""What ranks put down at a store: the highest of all, turn by turn; a store that is silent, ranks that leave, threads that are none."""

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mldebug_training.common import calls, natives
from mldebug_training.common.calls import BackgroundCall, LateError
from mldebug_training.helpers import first
from mldebug_training.helpers.switches import agreement, exchange, meeting, visits
from mldebug_training.helpers.switches.exchange import Exchange, RankAtStore
from mldebug_training.helpers.switches.meeting import Meeting
from shared.system.patience import PATIENCE

dist = pytest.importorskip("torch.distributed")
SIZE = 6


@pytest.fixture(autouse=True)
def no_silent_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_silent", [])


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    """Set when the test is over: what a store of it waits for."""
    event = threading.Event()
    yield event
    event.set()


def places(store: Any, size: int = SIZE) -> list[RankAtStore]:
    return [RankAtStore(store, "here", rank, size) for rank in range(size)]


def begun(places: list[RankAtStore], numbers: list[tuple[int, ...]], before: list[Exchange] | None = None) -> list[Exchange]:  # fmt: skip
    found = [
        Exchange(place, numbers[place.rank], before[place.rank] if before else None)
        for place in places
    ]
    for one in found:
        one.start()
        one.start()  # whoever was interrupted in it asks again: it counts once
    return found


def eventually(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60 * PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["HashStore", "TCPStore"])
def test_each_rank_reads_the_highest_of_all_turn_by_turn(kind: str) -> None:
    store = dist.HashStore() if kind == "HashStore" else dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)  # fmt: skip
    last: list[Exchange] | None = None
    with ThreadPoolExecutor(SIZE) as pool:
        for turn in range(12):
            numbers = [(2**62 + turn, rank, turn % (rank + 1)) for rank in range(SIZE)]
            last = begun(places(store), numbers, last)
            found = set(pool.map(lambda one: one.result(math.inf), last))
            assert found == {(2**62 + turn, SIZE - 1, max(turn % n for n in range(1, SIZE + 1)))}
    assert [one.turn for one in last or ()] == [12] * SIZE


def test_a_rank_that_is_late_is_waited_for_no_longer_than_was_said_and_is_heard_later() -> None:
    store = dist.HashStore()
    here = places(store, 2)
    (early,) = begun(here[:1], [(1,)])
    with pytest.raises(LateError, match="did not poll in time"):
        early.result(0.2)
    (late,) = begun(here[1:], [(0,), (7,)])
    assert late.result(60) == early.result(60) == (7,)


@pytest.mark.parametrize("killed", range(1, SIZE))
def test_what_a_launch_that_was_killed_has_left_is_nobodys_concern(killed: int) -> None:
    """As many of its ranks had come, and all of them long ago."""
    store = dist.HashStore()
    if killed > 1:
        early = begun(places(store), [(9,)] * SIZE)
        assert {one.result(60) for one in early} == {(9,)}
    gone = begun(places(store)[:killed], [(7,)] * killed)
    eventually(lambda: all(one._visits in visits._running for one in gone))
    eventually(lambda: killed == 1 or store.add("here/asked", 0) >= killed - 1)
    for one in gone:
        one._visits.end()
        assert one._call.wait(20)
    for numbers in (range(SIZE), range(1, SIZE + 1)):
        late = begun(places(store), [(one,) for one in numbers])
        assert {one.result(60) for one in late} == {(max(numbers),)}


def test_a_rank_whose_launcher_counts_its_restarts_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    names = set()
    for count in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        agreement._made.clear()
        names.add(agreement.RankAgreement()._name)
    assert names == {"mldebug/switches/all/1"}


def test_who_obeys_nothing_says_so_where_the_others_would_obey(waiting: threading.Event) -> None:
    class Slow(dist.HashStore):  # type: ignore[misc,name-defined]
        def set(self, key: str, value: str) -> None:
            if "/said/" in key:
                waiting.wait(20)
            super().set(key, value)

    store = Slow()
    one, other = begun(places(store, 2), [(1,), (9,)])
    eventually(lambda: one.key)
    one.stay_away("rank 0 gave up")
    waiting.set()
    assert other.result(60) == one.result(60) == (9,)
    assert store.get(f"{one.key}/1/answer") == b"rank 0 gave up"


def test_a_store_that_is_silent_is_told_from_a_rank_that_is(waiting: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(exchange, "QUICK", 0.1)

    class Stopped(dist.HashStore):  # type: ignore[misc,name-defined]
        def set(self, key: str, value: str) -> None:
            waiting.wait(20)

    (one,) = begun(places(Stopped(), 1), [(1,)])
    with pytest.raises(LateError, match="store does not answer"):
        one.result(0.5)


def test_the_end_of_the_process_is_not_kept() -> None:
    (one,) = begun(places(dist.HashStore(), 2)[:1], [(1,)])
    eventually(lambda: one._visits in visits._running)
    visits._end()
    assert one._call.wait(20)
    with pytest.raises(LateError, match="this rank ends"):
        one.result(0.0)


def test_a_store_is_kept_by_nobody_once_it_has_answered() -> None:
    """Rank 0 keeps its port open for as long as it lives: a job that makes its groups anew needs that."""

    class Store(dist.HashStore):  # type: ignore[misc,name-defined]
        """One that can be watched as it goes."""

    store = Store()
    known = weakref.ref(store)
    assert {one.result(60) for one in begun(places(store, 2), [(1,), (2,)])} == {(2,)}
    del store
    eventually(lambda: gc.collect() >= 0 and known() is None)


# --- where all meet --------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "ANSWERING", 0.2)
    monkeypatch.setattr(meeting, "LOOK", 0.05)


def met(store: Any, rank: int = 0, size: int = 2) -> Meeting:
    return Meeting(store, "here", size, is_host=rank == 0)


def test_who_could_not_say_that_it_is_there_may_go_and_the_others_hear_it(hasty: None, waiting: threading.Event) -> None:  # fmt: skip
    class Held(dist.HashStore):  # type: ignore[misc,name-defined]
        """By a thread of the job, which waits there."""

        def check(self, keys: list[str]) -> bool:
            if threading.current_thread() is not threading.main_thread() and not waiting.is_set():
                waiting.wait(20)
            return bool(super().check(keys))

    store = Held()
    first, second = met(store), met(store, 1)
    with pytest.raises(LateError, match="does not answer"):
        first.come(20.0, 0.01)
    first.stay_away("rank 0 gave up")
    meeting._silent.clear()  # the other one is another process
    waiting.set()
    with pytest.raises(LateError, match="rank 0 gave up"):
        second.come(20.0, 0.01)


def test_who_was_counted_waits_for_a_silent_store_as_long_as_for_the_others(hasty: None, waiting: threading.Event) -> None:  # fmt: skip
    """All the others have come, and obey."""

    class Late(dist.HashStore):  # type: ignore[misc,name-defined]
        def compare_set(self, key: str, expected: str, value: str) -> Any:
            result = super().compare_set(key, expected, value)
            waiting.wait(20)
            return result

    store = Late()
    one = met(store, size=1)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(one.come, 20.0, 0.01)
        eventually(lambda: store.check(["here/answer"]))
        time.sleep(1.0)  # five times what a silent store is given
        assert not outcome.done()
        waiting.set()
        assert len(outcome.result(60)) == 16


def test_a_rank_without_a_thread_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    store = dist.HashStore()
    with monkeypatch.context() as patch:
        patch.setattr(natives, "start_new_thread", none_left)
        with pytest.raises(LateError, match="a rank has no thread left"):
            met(store, 1).come(20.0, 0.01)
    with pytest.raises(LateError, match="a rank has no thread left"):
        met(store).come(20.0, 0.01)


# --- calls -----------------------------------------------------------------------------------------


def test_all_who_wait_for_a_call_are_told(waiting: threading.Event) -> None:
    call = BackgroundCall(lambda: waiting.wait(20)).start()
    with ThreadPoolExecutor(3) as pool:
        results = [pool.submit(call.wait, 15.0) for _ in range(3)]
        time.sleep(0.1)
        waiting.set()
        assert [one.result(60) for one in results] == [True] * 3


def test_a_thread_that_has_not_come_so_far_is_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    threads: list[Any] = []
    monkeypatch.setattr(natives, "start_new_thread", lambda call, args: threads.append(call))
    call = BackgroundCall(lambda: 5).start()
    assert call in calls._running
    threads[0]()
    assert call.result(0.0) == 5
    assert call not in calls._running


def test_main_process_first_does_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(natives, "start_new_thread", none_left)
    assert first._begun(BackgroundCall(lambda: 5)).result(0.0) == 5
    leader = first.MainProcessFirst(5.0)
    leader._store, leader._size, leader._key = dist.HashStore(), 2, "here"
    with pytest.raises(first.MainProcessError, match="has no thread to tell the others with"):
        leader._lead("rank 0")  # it would wait for them itself
