"""Who writes: readings of two moments compared, and a real process that writes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.storage.filesystems.state import StorageAlert
from mldebug.storage.write_rates import (
    IoCounters,
    OpenOutput,
    RankWriter,
    RankWrites,
    by_mount,
    compare,
    who_fills,
    writer_line,
)
from mldebug_agents.storage.filesystems.collector import _with as with_writer
from mldebug_agents.storage.write_rates.collector import (
    WriteReader,
    appends,
    calls_of,
    family,
    net_bytes,
    position,
)
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.system.spawn import Spawner

WRITES = """
import os, sys
out = open(sys.argv[1], "wb", buffering=0)
for line in sys.stdin:
    out.write(b"x" * 1_000_000)
    os.fsync(out.fileno())
    print("done", flush=True)
"""
READS = """
import sys
data, log = open(sys.argv[1], "r+b", buffering=0), open(sys.argv[2], "wb", buffering=0)
for line in sys.stdin:
    data.read(1_000_000)
    log.write(b"x" * 1000)
    print("done", flush=True)
"""


def reading(at: float, written: int, position: int, start: int = 1) -> RankWrites:
    out = OpenOutput(
        pid=7,
        start_ticks=start,
        fd=3,
        path="/data/a.pt",
        position=position,
        mount="/data",
        device="8:1",
    )
    return RankWrites(job="j", rank=3, at=at, bytes={(7, start): written}, files=(out,))


def test_rates_come_from_two_readings() -> None:
    writer = compare(reading(10.0, 1000, 0), reading(20.0, 11_000, 50_000), 5)
    assert (writer.rate, writer.total) == (1000.0, 10_005)
    assert by_mount(writer) == {"/data": 5000.0}
    text = "rank 3 of gpt writes 4.88 KiB/s to it, most to /data/a.pt"
    assert who_fills([writer], "8:1", {"j": "gpt"}) == text
    assert who_fills([writer], "8:2", {"j": "gpt"}) == ""
    assert "grows by 4.88 KiB/s" in writer_line(writer, "gpt")


def test_cancelled_bytes_and_another_process_of_the_same_pid_make_no_negative_rate() -> None:
    assert compare(reading(10.0, 9000, 9000), reading(20.0, 100, 50), 0).rate == 0
    reborn = compare(reading(10.0, 9000, 9000, start=1), reading(20.0, 500, 40, start=2), 0)
    assert (reborn.rate, by_mount(reborn)) == (50.0, {"/data": 4.0})


def test_an_inherited_file_counts_once_and_a_log_that_is_appended_to_is_not_its_whole_size() -> (
    None
):
    before, now = reading(10.0, 0, 5_000_000), reading(20.0, 0, 5_010_000)
    [mine] = now.files
    child = msgspec.structs.replace(mine, pid=8)  # a worker that was forked in between
    log = msgspec.structs.replace(mine, fd=9, path="/data/log", position=9_000_000, appends=True)
    writer = compare(before, msgspec.structs.replace(now, files=(mine, child, log)), 0)
    assert [(one.path, one.rate) for one in writer.growing] == [("/data/a.pt", 1000.0)]


def test_texts_of_the_kernel() -> None:
    assert net_bytes(b"rchar: 1\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n") == 4096
    assert net_bytes(b"") == 0
    assert calls_of(b"rchar: 5\nwchar: 7\nwrite_bytes: 9\n") == IoCounters(5, 7, 9)
    assert calls_of(b"rchar: 5\n") is None
    assert position("pos:\t77\nflags:\t0100001\n") == 77
    assert position("") == 0
    assert appends("pos:\t77\nflags:\t0102001\nmnt_id:\t29\n")
    assert not appends("pos:\t77\nflags:\t0100001\n")
    assert not appends("flags:\t9x\n")
    assert not appends("")
    assert family(1, {1: [2, 3], 3: [4], 4: [1]}) == [1, 2, 3, 4]


def two_looks(job: list[str]) -> RankWriter:
    """What is told of a real process that does its work once before each look."""
    with (
        Spawner() as spawner,
        Reader(spawner) as reader,
        subprocess.Popen(job, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writing,
    ):
        assert writing.stdin
        assert writing.stdout
        rank = RankIdentity(rank=0, world_size=1, pid=writing.pid)
        jobs = [Job(id="j", name="gpt", launcher="single", ranks=(rank,))]
        readings = WriteReader(Host(), reader)
        try:
            looks = []
            for _ in range(2):
                writing.stdin.write(b"\n")
                writing.stdin.flush()
                writing.stdout.readline()
                [look] = readings.read(jobs)
                looks.append(look)
        finally:
            writing.kill()
    return compare(looks[0], looks[1], 0)


def test_a_real_process_is_seen_to_write_and_where(tmp_path: Path) -> None:
    target = tmp_path / "two\nlines.pt"
    writer = two_looks([sys.executable, "-c", WRITES, str(target)])
    [growing] = writer.growing
    assert (growing.path, growing.size) == (str(target), 2_000_000)
    device = os.stat(tmp_path).st_dev
    assert growing.device == f"{os.major(device)}:{os.minor(device)}"
    assert os.path.ismount(growing.mount)


def test_whoever_reads_a_file_that_is_open_for_both_does_not_fill_a_filesystem(
    tmp_path: Path,
) -> None:
    data, log = tmp_path / "data.bin", tmp_path / "log"
    data.write_bytes(bytes(4_000_000))
    writer = two_looks([sys.executable, "-c", READS, str(data), str(log)])
    assert [one.path for one in writer.growing] == [str(log)]


def test_whoever_has_the_pid_of_a_rank_that_ended_is_not_that_rank() -> None:
    host = Host()
    brief = host.brief(os.getpid())
    assert brief is not None
    other = RankIdentity(rank=0, world_size=1, pid=os.getpid(), start_ticks=brief.start_ticks - 1)
    same = msgspec.structs.replace(other, start_ticks=brief.start_ticks)
    with Spawner() as spawner, Reader(spawner) as reader:
        readings = WriteReader(host, reader)
        for rank, value in ((other, False), (same, True)):
            [content] = readings.read([Job(id="j", name="gpt", launcher="single", ranks=(rank,))])
            assert bool(content.bytes) is value


def test_all_ranks_of_a_job_are_read_by_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    with Spawner() as spawner, Reader(spawner) as reader, ExitStack() as stack:
        sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
        for one in sleepers:
            stack.enter_context(one)
            stack.callback(one.kill)
        ranks = tuple(
            RankIdentity(rank=rank, world_size=3, pid=one.pid) for rank, one in enumerate(sleepers)
        )
        questions: list[int] = []
        read_many = reader.read_many

        def noted(paths: Sequence[str], *, max_bytes: int) -> dict[str, bytes | Unreadable]:
            questions.append(len(paths))
            return read_many(paths, max_bytes=max_bytes)

        monkeypatch.setattr(reader, "read_many", noted)
        job = Job(id="j", name="gpt", launcher="single", ranks=ranks)
        assert [len(one.bytes) for one in WriteReader(Host(), reader).read([job])] == [1, 1, 1]
        assert questions == [3]


def test_the_mode_of_a_link_tells_what_is_open_for_writing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    host, pid = Host(), os.getpid()
    with (tmp_path / "a").open("rb") as read, (tmp_path / "a").open("r+b") as both:
        assert not host.writes_to(pid, read.fileno())
        assert host.writes_to(pid, both.fileno())
    with (tmp_path / "a").open("ab") as added:
        assert host.writes_to(pid, added.fileno())
    assert host.writes_to(pid, 1 << 20)  # nobody knows


def test_the_mode_of_a_link_tells_what_is_open_for_reading() -> None:
    host, pid = Host(), os.getpid()
    read, write = os.pipe()
    assert host.reads_from(pid, read)
    assert not host.reads_from(pid, write)
    os.close(read)
    os.close(write)
    assert host.reads_from(pid, 1 << 20)  # nobody knows


def test_an_offset_counts_as_far_as_the_process_has_written() -> None:
    def look(at: float, position: int, calls: IoCounters, *, reads: bool = False) -> RankWrites:
        one = reading(at, 0, position)
        [file] = one.files
        files = (msgspec.structs.replace(file, reads=reads),)
        return msgspec.structs.replace(one, files=files, calls={(7, 1): calls})

    none = look(10.0, 0, IoCounters(0, 0))
    sought = compare(none, look(20.0, 9_000_000, IoCounters(0, 1000)), 0)
    assert by_mount(sought) == {"/data": 100.0}
    both = look(10.0, 0, IoCounters(0, 0), reads=True)
    written = compare(both, look(20.0, 5000, IoCounters(2000, 9000), reads=True), 0)
    assert by_mount(written) == {"/data": 300.0}
    assert not compare(both, look(20.0, 5000, IoCounters(5000, 9000), reads=True), 0).growing
    changed = msgspec.structs.replace(look(20.0, 5000, IoCounters(0, 0), reads=True), calls={})
    assert not compare(both, changed, 0).growing


def test_an_alarm_about_space_says_who_writes_and_one_about_inodes_does_not() -> None:
    full = StorageAlert(kind="too_full", subject="/data", sentence="/data is 91.0% full")
    assert with_writer(full, "rank 3 writes").whole == "/data is 91.0% full; rank 3 writes"
    assert with_writer(full, "") is full
    inodes = StorageAlert(
        kind="inodes", subject="/data", sentence="/data has used 90.0% of its inodes"
    )
    assert with_writer(inodes, "rank 3 writes") is inodes
