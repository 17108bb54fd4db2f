"""Reads of /proc that a process holds up: they are left behind, soon, and nobody else's wait for them."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mldebug_agents.system.host import Host
from mldebug_agents.system.process.held_reads import MOST_OF_ONE, HeldReads
from shared.jobs.proctree import Tree
from shared.system.patience import PATIENCE

HANGING, OTHER = 7, 8


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging reads wait for; open in the end, so that no thread is left."""
    made = threading.Event()
    yield made
    made.set()


def held_by(gate: threading.Event, *pids: int) -> Callable[[int], int]:
    """A read that hangs at these processes, and returns the pid of any other."""

    def read(pid: int) -> int:
        if pid in pids:
            gate.wait(60)
        return pid

    return read


def asleep(_: int) -> bool:
    return True


def test_who_holds_his_read_up_is_left_out_and_the_others_are_read(gate: threading.Event) -> None:
    reads = HeldReads(sleeps=asleep)
    assert reads.many((1, HANGING, OTHER), held_by(gate, HANGING)) == {1: 1, OTHER: OTHER}
    assert reads.held == (HANGING,)


def test_an_earlier_read_that_hangs_is_not_tried_again(gate: threading.Event) -> None:
    reads, tried = HeldReads(sleeps=asleep), []

    def read() -> int:
        tried.append(1)
        return 0 if gate.wait(60) else 1

    assert [reads.one(HANGING, read, -1) for _ in range(3)] == [-1, -1, -1]
    assert tried == [1]


def test_what_has_returned_is_read_again(gate: threading.Event) -> None:
    reads = HeldReads(sleeps=asleep)
    read = held_by(gate, HANGING)
    assert reads.many((HANGING,), read) == {}
    gate.set()
    until = time.monotonic() + 10 * PATIENCE
    while reads.held and time.monotonic() < until:
        time.sleep(0.01)
    assert reads.many((HANGING,), read) == {HANGING: HANGING}


def test_a_slow_machine_is_waited_for(gate: threading.Event) -> None:
    """A thread that gets no processor does not sleep in the kernel."""
    reads = HeldReads(sleeps=lambda _: False)
    threading.Timer(0.6, gate.set).start()
    assert reads.one(HANGING, lambda: gate.wait(60), False)


def test_one_owner_holds_up_no_more_than_a_few_threads(gate: threading.Event) -> None:
    """All of these numbers have one owner: nobody."""
    many = tuple(range(10_000_001, 10_000_101))
    reads, began = HeldReads("/nowhere", sleeps=asleep), time.monotonic()
    assert reads.many((1, *many), held_by(gate, *many)) == {1: 1}
    assert len(reads.held) == MOST_OF_ONE
    assert time.monotonic() - began < 2.0 * PATIENCE


def test_an_exception_is_that_of_who_asked() -> None:
    def broken() -> int:
        raise ValueError("of the read")

    with pytest.raises(ValueError, match="of the read"):
        HeldReads().one(HANGING, broken, 0)


def test_a_process_that_holds_its_stat_up_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    """One that was never read is not there; the others are, at every look."""
    tree = Tree(tmp_path)
    for pid in (HANGING, OTHER):
        tree.add(pid, 1)
    host = Host(str(tmp_path))
    before = host.briefs()
    plain = os.open

    def hung(path: str, *more: int) -> int:
        if f"/{HANGING}/stat" in str(path):
            gate.wait(60)
        return plain(path, *more)

    monkeypatch.setattr("mldebug_agents.system.process.held_reads._sleeps", asleep)
    monkeypatch.setattr("mldebug_agents.system.host.os.open", hung)
    fresh, known = Host(str(tmp_path)), Host(str(tmp_path))
    known._stat_texts = dict(host._stat_texts)
    assert fresh.briefs().keys() == before.keys() - {HANGING}
    assert known.briefs() == before
    assert known.brief(HANGING) == before[HANGING]
    assert fresh.brief(HANGING) is None
    assert fresh.process_state(HANGING) is None


def test_reads_of_one_process_together_are_one_hand_over_and_say_what_each_alone_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    tree.add(OTHER, 1)
    host, handed, many = Host(str(tmp_path)), [], HeldReads.many

    def counted(
        reads: HeldReads, pids: tuple[int, ...], read: Callable[[int], int]
    ) -> dict[int, int]:
        if threading.current_thread() is threading.main_thread():
            handed.append(pids)
        return many(reads, pids, read)

    monkeypatch.setattr(HeldReads, "many", counted)
    alone = host.brief(OTHER), host.text(OTHER, "stat"), host.link(OTHER, "exe")
    assert alone[0] is not None
    assert len(handed) == 3
    assert host.at_once(OTHER, lambda: (host.brief(OTHER), host.text(OTHER, "stat"), host.link(OTHER, "exe"))) == alone  # fmt: skip
    assert len(handed) == 4


def test_together_with_a_read_that_hangs_the_others_are_given_up_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    """What was known before stands for it, as where each is read alone; the hanging file is not opened a second time."""
    tree = Tree(tmp_path)
    tree.add(HANGING, 1)
    monkeypatch.setattr("mldebug_agents.system.process.held_reads._sleeps", asleep)
    host = Host(str(tmp_path))
    before, opened, plain = host.briefs(), [], os.open

    def hung(path: str, *more: int) -> int:
        if str(path).endswith("/io"):
            opened.append(path)
            gate.wait(60)
        return plain(path, *more)

    monkeypatch.setattr("os.open", hung)
    began = time.monotonic()
    both = host.at_once(HANGING, lambda: (host.text(HANGING, "io"), host.brief(HANGING)))
    assert both == ("", before[HANGING])
    assert len(opened) == 1
    assert time.monotonic() - began < 10 * PATIENCE  # and not a minute
