"""The debug FIFO: real FIFOs and a process that reads them as PyTorch does. It is asked once, and never harmed."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hung import state, wait_until
from mldebug.flight.dump import MAX_DUMP
from mldebug_agents.flights.fifo import OPEN, Asked, Fifo, seconds, whom
from mldebug_agents.flights.files import Found, read_dump
from mldebug_agents.host import Host
from mldebug_agents.reader import Reader
from mldebug_agents.spawn import Spawner
from monitored import RECORDED, Monitored, monitored

DUMP = (RECORDED / "hang-desync" / "flight-recorder-rank0.pickle").read_bytes()


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


def asked(one: Monitored, fifo: Path | None = None) -> Asked:
    root = f"/proc/{one.pid}/root"
    return Asked(one.identity, f"{root}{fifo or one.fifo}", (f"{root}{one.dump}",))


def ask(reader: Reader, one: Monitored, timeout: float = 10.0, **kw: Path) -> Found | str:
    return Fifo(reader).ask([asked(one, **kw)], timeout)[one.identity.rank]


def signals(pid: int) -> tuple[str, int]:
    """What a tool could have left behind in it."""
    found = Host().process_state(pid)
    assert found is not None
    return found.state, found.pending_signals


# --- it answers ----------------------------------------------------------------------------------


def test_one_byte_one_dump_and_the_process_is_as_before(reader: Reader, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        wait_until(lambda: state(one.pid) == "S")
        before = signals(one.pid)
        found = ask(reader, one)
        assert isinstance(found, Found)
        (group,) = found.record.groups
        assert (group.members, group.backend, group.enqueued) == ("0-1", "nccl", 28807)
        wait_until(lambda: state(one.pid) == "S")
        assert signals(one.pid) == before
        assert one.end() == ["dump 1 for 1 bytes"]


def test_the_dump_of_an_earlier_question_is_no_answer(reader: Reader, tmp_path: Path) -> None:
    """It lies there complete; only what is written after the question counts."""
    with monitored(tmp_path, how="mute") as one:
        one.dump.write_bytes(DUMP)
        assert ask(reader, one, 1.0) == "no dump by its debug FIFO in 1 s"
        assert one.end() == ["dump 1 for 1 bytes"]


def test_several_ranks_are_asked_at_once(reader: Reader, tmp_path: Path) -> None:
    with monitored(tmp_path, 0) as first, monitored(tmp_path, 1) as second:
        found = Fifo(reader).ask([asked(first), asked(second)], 10.0)
        ops = [
            one.record.groups[0].calls[-1].op
            for _, one in sorted(found.items())
            if isinstance(one, Found)
        ]
        assert ops == ["all_reduce", "broadcast"]


# --- it does not ---------------------------------------------------------------------------------


def test_nobody_is_asked_again_before_the_answer_is_whole(reader: Reader, tmp_path: Path) -> None:
    with monitored(tmp_path, how="never") as one:
        fifo = Fifo(reader)
        late = {0: "no dump by its debug FIFO in 1 s (it is not complete)"}
        assert fifo.ask([asked(one)], 1.0) == late
        assert fifo.ask([asked(one)], 1.0) == {0: OPEN}
        one.dump.write_bytes(DUMP)  # it comes at last
        assert fifo.ask([asked(one)], 1.0) == late
        assert one.end() == ["dump 1 for 1 bytes", "dump 2 for 1 bytes"]


def test_a_dump_that_never_ends_is_bounded(reader: Reader, tmp_path: Path) -> None:
    with monitored(tmp_path, how="grows") as one:
        started = time.monotonic()
        assert "no dump by its debug FIFO in 1 s" in str(ask(reader, one, 1.0))
        assert time.monotonic() - started < 8
        wait_until(lambda: one.dump.stat().st_size > MAX_DUMP)
        assert "more than" in str(read_dump(reader, str(one.dump), one.identity))
        assert one.process.poll() is None


def test_nobody_reads_it(reader: Reader, tmp_path: Path) -> None:
    with monitored(tmp_path, how="leaves") as one:
        started = time.monotonic()
        assert ask(reader, one) == "nobody reads its debug FIFO"
        assert time.monotonic() - started < 10


def link(path: Path) -> None:
    path.symlink_to(path.with_name("fr_0.pipe"))


BAD = {
    "a symbolic link": link,
    "not a FIFO": lambda path: path.write_bytes(b""),
    "not a FIFO ": lambda path: path.mkdir(),
    "it has made no debug FIFO": lambda path: None,
}


@pytest.mark.parametrize("why", BAD)
def test_it_is_left_alone_because(reader: Reader, tmp_path: Path, why: str) -> None:
    with monitored(tmp_path) as one:
        path = tmp_path / "other"
        BAD[why](path)
        assert why.strip() in str(ask(reader, one, fifo=path))
        assert one.end() == []


def test_a_device_is_left_alone(reader: Reader, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        assert "not a FIFO" in str(ask(reader, one, fifo=Path("/dev/null")))


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
def test_the_fifo_of_another_user_is_left_alone(reader: Reader, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        os.chown(one.fifo, 12345, 12345)
        assert "not of the rank's user" in str(ask(reader, one))
        assert one.end() == []


def test_a_fifo_that_nobody_empties_takes_no_more(reader: Reader, tmp_path: Path) -> None:
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
        told = ask(reader, one, fifo=path)
        assert told == "its debug FIFO is full: nobody reads it"
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
    path.write_bytes(DUMP)
    os.utime(path, (1.0, 1.0))


def open_to_all(path: Path) -> None:
    path.write_bytes(DUMP)
    path.chmod(0o666)


FILES = {
    "": lambda path: None,
    "it is not complete": lambda path: path.write_bytes(DUMP[:-1]),
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
def test_a_file_is_no_dump_because(reader: Reader, tmp_path: Path, why: str) -> None:
    with monitored(tmp_path) as one:
        FILES[why](one.dump)
        told = read_dump(reader, str(one.dump), one.identity)
        assert isinstance(told, str)
        assert why.strip() in told
        assert bool(why) == bool(told)
    assert not Path("/tmp/mldebug-was-here").exists()


def test_a_dump_of_a_larger_job_is_not_this_rank_s(reader: Reader, tmp_path: Path) -> None:
    with monitored(tmp_path) as one:
        one.dump.write_bytes(DUMP.replace(b"[0, 1]", b"[0, 9]"))
        told = read_dump(reader, str(one.dump), one.identity)
        assert told == "it is of a job with more than 2 ranks"


# --- whom, and for how long ----------------------------------------------------------------------


def test_who_lags_is_asked_and_one_of_the_others() -> None:
    assert whom((3,), (0, 1, 2)) == (3, 0)
    assert whom((), (0, 1, 2)) == (0, 1, 2)
    assert whom((), tuple(range(100))) == tuple(range(8))
    assert whom(tuple(range(100)), ()) == tuple(range(8))


def test_a_report_does_not_wait_long_where_stacks_tell_who_lags() -> None:
    assert seconds((3,), 30.0) == 4.0
    assert seconds((), 30.0) == 15.0
    assert seconds((), 3.0) == 0.0
