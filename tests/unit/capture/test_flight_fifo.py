"""The debug FIFO: real FIFOs and a process that reads them as PyTorch does. It is asked once, and never harmed."""

import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from mldebug.capture.flight_recorder.dump import MAX_DUMP, MAX_LIVING
from mldebug.capture.flight_recorder.entries import MAX_CALLS
from mldebug.core.model import RankIdentity
from mldebug_agents.capture.flight_recorder.fifo import (
    INHERITED,
    LONGEST,
    OPEN,
    TRIES,
    Fifo,
    FifoTarget,
    patience,
    ranks_to_ask,
)
from mldebug_agents.capture.flight_recorder.files import FoundDump, HangAwareReader, read_dump
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.fake_reader import FakeReader
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece, Unreadable
from mldebug_agents.system.spawn import Spawner
from shared.capture.monitored import RECORDED, Monitored, monitored, recording
from shared.system.hung import state, wait_until
from shared.system.patience import PATIENCE
from shared.system.whose import MINE

OLD = (RECORDED / "hang-desync" / "flight-recorder-rank0.pickle").read_bytes()


@pytest.fixture
def reader() -> Iterator[HangAwareReader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield HangAwareReader(it)


def target_of(one: Monitored, fifo: Path | None = None) -> FifoTarget:
    root = f"/proc/{one.pid}/root"
    return FifoTarget(one.identity, f"{root}{fifo or one.fifo}", (f"{root}{one.dump}",), MINE)


def ask(
    reader: HangAwareReader, one: Monitored, timeout: float = 10.0, **kw: Path
) -> FoundDump | str:
    return Fifo().ask(reader, [target_of(one, **kw)], timeout)[one.identity.rank]


def signals(pid: int) -> tuple[str, int]:
    """What a tool could have left behind in it."""
    found = Host().process_state(pid)
    assert found is not None
    return found.state, found.pending_signals


# --- it answers ----------------------------------------------------------------------------------


def test_one_byte_one_dump_and_the_process_is_as_before(
    reader: HangAwareReader, tmp_path: Path
) -> None:
    with monitored(tmp_path) as one:
        wait_until(lambda: state(one.pid) == "S")
        before = signals(one.pid)
        found = ask(reader, one)
        assert isinstance(found, FoundDump)
        (group,) = found.record.groups
        assert (group.members, group.backend, group.enqueued) == ("0-1", "nccl", 28807)
        wait_until(lambda: signals(one.pid) == before)
        assert one.end() == ["dump 1 for 1 bytes"]


def test_the_dump_of_an_earlier_question_is_no_answer(
    reader: HangAwareReader, tmp_path: Path
) -> None:
    """It lies there complete; only what is written after the question counts."""
    with monitored(tmp_path, how="mute") as one:
        one.dump.write_bytes(recording(0))
        late = f"no dump by its debug FIFO in 1 s; it may still come, into {one.dump}"
        assert ask(reader, one, 1.0) == late
        assert one.end() == ["dump 1 for 1 bytes"]


def test_several_ranks_are_asked_at_once(reader: HangAwareReader, tmp_path: Path) -> None:
    with monitored(tmp_path, 0) as first, monitored(tmp_path, 1) as second:
        found = Fifo().ask(reader, [target_of(first), target_of(second)], 10.0)
        ops = [
            one.record.groups[0].calls[-1].op
            for _, one in sorted(found.items())
            if isinstance(one, FoundDump)
        ]
        assert ops == ["all_reduce", "broadcast"]


# --- it does not ---------------------------------------------------------------------------------


def test_nobody_is_asked_again_before_the_answer_is_whole(
    reader: HangAwareReader, tmp_path: Path
) -> None:
    with monitored(tmp_path, how="never") as one:
        fifo = Fifo()
        comes = f"; it may still come, into {one.dump}"
        late = {0: f"no dump by its debug FIFO in 1 s (it is not complete){comes}"}
        assert fifo.ask(reader, [target_of(one)], 1.0) == late
        assert fifo.ask(reader, [target_of(one)], 1.0) == {0: f"{OPEN}{comes}"}
        one.dump.write_bytes(recording(0))  # it comes at last
        assert fifo.ask(reader, [target_of(one)], 1.0) == late
        assert one.end() == ["dump 1 for 1 bytes", "dump 2 for 1 bytes"]


def test_what_comes_late_is_the_answer_while_the_job_still_stands(
    reader: HangAwareReader, tmp_path: Path
) -> None:
    """The first dump takes a minute on a real GPU. Where the job has moved since, it tells nothing of this stall."""
    with monitored(tmp_path, how="never") as one:
        fifo, began = Fifo(), time.time()
        fifo.ask(reader, [target_of(one)], 1.0)
        assert OPEN in str(fifo.ask(reader, [target_of(one)], 1.0, began)[0])
        one.dump.write_bytes(recording(0))
        assert isinstance(fifo.ask(reader, [target_of(one)], 1.0, began)[0], FoundDump)
        fifo.ask(reader, [target_of(one)], 1.0, began)
        one.dump.write_bytes(recording(0))
        assert "no dump" in str(fifo.ask(reader, [target_of(one)], 1.0, time.time() + 60)[0])
        assert one.end() == [f"dump {n} for 1 bytes" for n in (1, 2, 3)]


def test_who_may_have_been_asked_by_an_earlier_agent_is_not_asked_again(
    reader: HangAwareReader, tmp_path: Path
) -> None:
    """One byte is one dump, which may hold a rank up for a minute: a restart of the agent must not double it."""
    with monitored(tmp_path, how="never") as one:
        began = time.time()
        Fifo().ask(reader, [target_of(one)], 0.5)
        fifo = Fifo()
        answer = fifo.ask(reader, [target_of(one)], 1.0, began, resumed=True)
        assert answer == {0: f"{INHERITED}; it may still come, into {one.dump}"}
        assert fifo.owes(target_of(one))
        one.dump.write_bytes(recording(0))
        for later in (fifo, Fifo(), fifo):
            assert isinstance(
                later.ask(reader, [target_of(one)], 1.0, began, resumed=True)[0], FoundDump
            )
        assert not fifo.owes(target_of(one))
        assert one.end() == ["dump 1 for 1 bytes"]


def test_a_dump_older_than_the_stall_is_no_answer_to_an_earlier_agent(
    reader: HangAwareReader, tmp_path: Path
) -> None:
    with monitored(tmp_path, how="never") as one:
        one.dump.write_bytes(recording(0))
        fifo, stood = Fifo(), time.time() + 60
        for _ in range(2):
            answer = fifo.ask(reader, [target_of(one)], 1.0, stood, resumed=True)
            assert "not asked again" in str(answer[0])
        assert one.end() == []


def test_what_earlier_agents_may_have_asked_is_bounded(
    reader: HangAwareReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.capture.flight_recorder.fifo.MAX_OPEN", 3)
    fifo = Fifo()
    ranks = [
        FifoTarget(
            RankIdentity(rank=number, world_size=9, pid=number + 2, start_ticks=1), "/x", (), MINE
        )
        for number in range(9)
    ]
    fifo.ask(reader, ranks, 0.0, time.time(), resumed=True)
    assert [one.identity.rank for one in ranks if fifo.owes(one)] == [6, 7, 8]


def test_two_captures_at_once_put_one_question(tmp_path: Path) -> None:
    """The agent captures several jobs at a time, and one job twice where an order was late: each in a thread of its own."""
    together = threading.Barrier(2)

    class Meets(HangAwareReader):
        def write_byte(self, path: str, *, rights: Rights) -> Unreadable | None:
            with suppress(threading.BrokenBarrierError):
                together.wait(1.0)
            return super().write_byte(path, rights=rights)

    with Spawner() as spawner, Reader(spawner) as plain, monitored(tmp_path, how="mute") as one:
        fifo, reader = Fifo(), Meets(plain)
        with ThreadPoolExecutor(2) as pool:
            items = list(pool.map(lambda _: fifo.ask(reader, [target_of(one)], 3.0)[0], range(2)))
        comes = f"; it may still come, into {one.dump}"
        assert sorted(map(str, items)) == [
            f"{OPEN}{comes}", f"no dump by its debug FIFO in 2.5 s{comes}"
        ]  # fmt: skip
        assert one.end() == ["dump 1 for 1 bytes"]


def test_a_dump_that_never_ends_is_bounded(reader: HangAwareReader, tmp_path: Path) -> None:
    with monitored(tmp_path, how="grows") as one:
        started = time.monotonic()
        assert "no dump by its debug FIFO in 1 s" in str(ask(reader, one, 1.0))
        assert time.monotonic() - started < 8 * PATIENCE
        wait_until(lambda: one.dump.stat().st_size > MAX_DUMP)
        assert "more than" in str(read_dump(reader, str(one.dump), one.identity, MINE))
        assert one.process.poll() is None


def test_nobody_reads_it(reader: HangAwareReader, tmp_path: Path) -> None:
    with monitored(tmp_path, how="leaves") as one:
        started = time.monotonic()
        assert ask(reader, one) == "nobody reads its debug FIFO"
        assert time.monotonic() - started < 10 * PATIENCE


def link(path: Path) -> None:
    path.symlink_to(path.with_name("fr_0.pipe"))


BAD = {
    "a symbolic link": link,
    "not a FIFO": lambda path: path.write_bytes(b""),
    "not a FIFO ": lambda path: path.mkdir(),
    "it has made no debug FIFO": lambda path: None,
}


@pytest.mark.parametrize("why", BAD)
def test_it_is_left_alone_because(reader: HangAwareReader, tmp_path: Path, why: str) -> None:
    with monitored(tmp_path) as one:
        path = tmp_path / "other"
        BAD[why](path)
        assert why.strip() in str(ask(reader, one, fifo=path))
        assert one.end() == []


def test_a_device_is_left_alone(reader: HangAwareReader, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        assert "not a FIFO" in str(ask(reader, one, fifo=Path("/dev/null")))


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
def test_the_fifo_of_another_user_is_left_alone(reader: HangAwareReader, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        os.chown(one.fifo, 12345, 12345)
        assert "not of the rank's user" in str(ask(reader, one))
        assert one.end() == []


def test_a_fifo_that_nobody_empties_takes_no_more(reader: HangAwareReader, tmp_path: Path) -> None:
    """A monitor that hangs keeps its end open: the pipe fills, and writing must not wait."""
    path = tmp_path / "full"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with monitored(tmp_path) as one:
        into = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        while True:
            try:
                os.write(into, bytes(65536))
            except BlockingIOError:
                break
        answer = ask(reader, one, fifo=path)
        assert answer == "its debug FIFO is full: nobody reads it"
    os.close(end)
    os.close(into)


# --- files that are no dump ----------------------------------------------------------------------


def write_pickle(path: Path) -> None:
    """Would run a program where classes were loaded."""
    path.write_bytes(b"\x80\x02cos\nsystem\n(X\x1b\x00\x00\x00touch /tmp/mldebug-was-heretR.")


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def make_old(path: Path) -> None:
    path.write_bytes(recording(0))
    os.utime(path, (1.0, 1.0))


def open_to_all(path: Path) -> None:
    path.write_bytes(recording(0))
    path.chmod(0o666)


FILES = {
    "": lambda path: None,
    "it is not complete": lambda path: path.write_bytes(recording(0)[:-1]),
    "is not complete": lambda path: path.write_bytes(b""),
    "it is not believed: it is neither a pickle nor JSON": lambda path: path.write_bytes(
        b"no pickle."
    ),
    "it is not believed: it asks for a class": write_pickle,
    "it has 1073741824 bytes, more than": make_sparse,
    "it is older than the rank": make_old,
    "everybody may write it": open_to_all,
    "a symbolic link": lambda path: path.symlink_to("/etc/passwd"),
    "not a regular file": lambda path: path.mkdir(),
    " not a regular file": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("why", FILES)
def test_a_file_is_no_dump_because(reader: HangAwareReader, tmp_path: Path, why: str) -> None:
    with monitored(tmp_path) as one:
        FILES[why](one.dump)
        dump = read_dump(reader, str(one.dump), one.identity, MINE)
        assert isinstance(dump, str)
        assert why.strip() in dump
        assert bool(why) == bool(dump)
    assert not Path("/tmp/mldebug-was-here").exists()


def test_a_dump_of_a_larger_job_is_not_this_rank_s(reader: HangAwareReader, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        one.dump.write_bytes(recording(0).replace(b"[0, 1]", b"[0, 9]"))
        dump = read_dump(reader, str(one.dump), one.identity, MINE)
        assert dump == "it is not believed: it is of a job with more than 2 ranks"


def test_a_dump_of_another_run_is_not_this_rank_s(reader: HangAwareReader, tmp_path: Path) -> None:
    """Written just now, by a job on another node with the same home, or copied there: no call in it is of this run."""
    with monitored(tmp_path) as one:
        one.dump.write_bytes(OLD)
        dump = read_dump(reader, str(one.dump), one.identity, MINE)
        assert dump == "it is of another run: nothing in it was called since the rank began"


def test_a_dump_of_a_job_that_lives_is_small_in_every_way(
    reader: HangAwareReader, tmp_path: Path
) -> None:
    """It stays in the agent's memory and goes to its disk: as many calls as the hook tells, and not too many values."""
    with monitored(tmp_path) as one:
        one.dump.write_bytes(recording(0))
        found = read_dump(reader, str(one.dump), one.identity, MINE)
        assert isinstance(found, FoundDump)
        assert [len(group.calls) for group in found.record.groups] == [
            MAX_CALLS // 2
        ]  # none is pending but the last
        one.dump.write_bytes(
            pickle.dumps({"entries": [[]] * 3 + [[] for _ in range(MAX_LIVING)]}, 2)
        )
        assert f"more than {MAX_LIVING:,} values" in str(
            read_dump(reader, str(one.dump), one.identity, MINE)
        )


class Counting(HangAwareReader):
    """Counts how often a file was read whole."""

    whole = 0

    def read_from(
        self, path: str, offset: int, *, rights: Rights, max_bytes: int
    ) -> FilePiece | Unreadable:
        self.whole += max_bytes > 1
        return super().read_from(path, offset, rights=rights, max_bytes=max_bytes)


def test_a_file_that_is_wrong_is_read_twice_at_most(tmp_path: Path) -> None:
    """What answers is whole and no dump, over and over: reading it again and again helps nobody."""
    with Spawner() as spawner, Reader(spawner) as plain, monitored(tmp_path, how="mute") as one:
        reader, turns = Counting(plain), 0

        def writes(_: float) -> None:
            nonlocal turns
            turns += 1
            if turns % 2:  # and stays so for one look
                one.dump.write_bytes(b"\x80\x02" + b"N" * turns + b".")

        answer = Fifo(sleep=writes).ask(reader, [target_of(one)], 15.0)
        assert "it is not believed" in str(answer[0])
        assert (reader.whole, turns) == (TRIES, 2 * TRIES)


def test_after_one_path_that_does_not_answer_no_other_is_tried() -> None:
    """A hung home costs a capture two seconds, and not two for each rank."""

    class Hangs(FakeReader):
        requests = 0

        def _ask(self, operation, paths, **more):  # type: ignore[no-untyped-def]
            self.requests += len(paths)
            return super()._ask(operation, paths, **more)

    hung = {f"/proc/{pid}/root/home/t_0": Unreadable("timed out", stuck=True) for pid in (7, 8)}
    reader = Hangs(hung)
    careful = HangAwareReader(reader)
    results = [
        read_dump(careful, path, RankIdentity(rank=0, world_size=1, pid=7), MINE) for path in hung
    ]
    assert results == ["timed out", "not read: a path of this job did not answer just before"]
    assert reader.requests == 1


# --- whom, and for how long ----------------------------------------------------------------------


def test_one_waiter_is_asked_where_stacks_tell_who_lags() -> None:
    assert ranks_to_ask(True, (0, 1, 2)) == (0,)
    assert ranks_to_ask(False, (0, 1, 2)) == (0, 1, 2)
    assert ranks_to_ask(False, tuple(range(100))) == tuple(range(8))
    assert ranks_to_ask(True, ()) == ()


def test_a_report_does_not_wait_long() -> None:
    assert patience(30.0) == LONGEST <= 3.0
    assert patience(3.0) == 0.0
