"""The record that a training process keeps: what is written is what is read, and a hostile one is not believed."""

import errno
import os
import stat
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.core.model import RankIdentity
from mldebug.jobs.heartbeat import MAGIC, RECORD, SIZE, TornError, parse_record, record_name
from mldebug.stall.heartbeats import HeartbeatProgress, last_step, shortest_timeout
from mldebug_agents.jobs.hook.records import HeartbeatReader, read_hook_summaries
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader_answers import FilePiece, Unreadable
from mldebug_training.common import shared_files
from mldebug_training.hook import record as written

PID = os.getpid()
NOW = 1e9  # of the monotonic clock: later than whatever is written here


@pytest.fixture
def record(tmp_path: Path) -> Iterator[written.HookRecord]:
    one = written.HookRecord(str(tmp_path))
    yield one
    one.close()


def data_of(record: written.HookRecord) -> bytes:
    return Path(record.path).read_bytes()


def read(record: written.HookRecord, now: float = NOW):  # type: ignore[no-untyped-def]
    return parse_record(data_of(record), PID, shared_files.start_ticks(), now)


# --- both sides of one layout --------------------------------------------------------------------


def test_what_is_written_is_what_is_read(record: written.HookRecord) -> None:
    record.rank, record.world_size, record.signal, record.stacks_fd = 3, 8, 63, 17
    record.phase, record.phase_ns = "évaluate".encode(), 2_500_000_000
    record.write_scalars({"loss": 0.25, "lr": 1e-4, "grad": float("inf")})
    record.write_flight(61, 5)
    record.write_timeout(77.9)
    record.beat(41)
    record.beat(42)
    found = read(record)
    assert (found.step, found.beats, found.rank, found.world_size) == (42, 2, 3, 8)
    assert (found.signal, found.stacks_fd) == (63, 17)
    assert (found.flight_signal, found.flight_answers, found.collective_timeout) == (61, 5, 77.0)
    assert (found.phase, found.phase_since) == ("évaluate", 2.5)
    assert found.scalars == {"loss": 0.25, "lr": 1e-4}  # what is not finite says nothing
    assert 0 < found.stepped_at <= found.written_at


@pytest.mark.parametrize("number", [1, 2, 9, 15, 33, 34, 35, 65])
def test_a_signal_that_is_not_the_hooks_is_not_believed(
    record: written.HookRecord, number: int
) -> None:
    """Whoever may write the record would have the agent send it."""
    record.signal = number
    record.write_flight(max(0, number - 2), 1)
    record.beat(1)
    assert (read(record).signal, read(record).flight_signal) == (None, None)
    record.signal = 50
    record.write_flight(15, 1)
    record.beat(2)
    assert (read(record).signal, read(record).flight_signal) == (50, None)


def test_a_new_record_says_nothing_yet(record: written.HookRecord) -> None:
    found = read(record)
    assert (found.step, found.rank, found.signal, found.stacks_fd) == (None, None, None, None)
    assert (found.phase, found.scalars, found.beats) == ("", {}, 0)
    assert found.collective_timeout is None
    assert stat.S_IMODE(os.stat(record.path).st_mode) == 0o600
    assert os.path.basename(record.path) == record_name(PID, shared_files.start_ticks())


def test_scalars_are_bounded_and_their_names_cut_between_characters(
    record: written.HookRecord,
) -> None:
    record.write_scalars({f"{'ä' * 20}{n}": float(n) for n in range(40)})
    record.beat(1)
    assert list(read(record).scalars) == ["ä" * 12]  # 16 of them have the same first 24 bytes


# --- hostile records -----------------------------------------------------------------------------


def damaged(record: written.HookRecord, at: int, what: bytes) -> bytes:
    data = bytearray(data_of(record))
    data[at : at + len(what)] = what
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "what", "why"),
    [
        (0, b"MLDEBUG\x01", "begin"),
        (7, b"\x02", "begin"),
        (16, struct.pack("<Q", PID + 1), "record of pid"),
        (24, struct.pack("<Q", 1), "started at 1"),
    ],
    ids=["magic", "layout", "pid", "start"],
)
def test_a_record_of_somebody_else_is_refused(
    record: written.HookRecord, at: int, what: bytes, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        parse_record(damaged(record, at, what), PID, shared_files.start_ticks(), NOW)


@pytest.mark.parametrize("size", [0, 1, 128, SIZE - 1, SIZE + 1])
def test_a_record_of_another_length_is_refused(record: written.HookRecord, size: int) -> None:
    data = (data_of(record) * 2)[:size]
    with pytest.raises(ValueError, match="bytes and not 4096"):
        parse_record(data, PID, shared_files.start_ticks(), NOW)


def test_a_record_that_is_being_written_is_read_again(record: written.HookRecord) -> None:
    torn = damaged(record, SIZE - 8, struct.pack("<Q", 99))
    with pytest.raises(TornError):
        parse_record(torn, PID, shared_files.start_ticks(), NOW)


def test_a_record_whose_checksum_is_another_one_is_read_again(record: written.HookRecord) -> None:
    record.write_scalars({"loss": 0.5})
    record.beat(4)
    torn = damaged(record, 40, struct.pack("<q", 5))
    with pytest.raises(TornError, match="checksum"):
        parse_record(torn, PID, shared_files.start_ticks(), NOW)
    without = torn[:660] + bytes(4) + torn[664:]
    assert parse_record(without, PID, shared_files.start_ticks(), NOW).step == 5


def test_absurd_numbers_are_unknown_and_no_time_lies_ahead(record: written.HookRecord) -> None:
    state = struct.pack(
        "<QqQQiiIiQ32s", 2**64 - 1, 2**62, 2**64 - 1, 2**64 - 1, -5, -1, 4000, -7, 2**63,
        b"\xff\xfe\x1b[31mred\x00junk",
    )  # fmt: skip
    data = damaged(record, 32, state)
    data = data[:660] + bytes(4) + data[664:]
    found = parse_record(data, PID, shared_files.start_ticks(), 77.0)
    assert (found.step, found.rank, found.world_size) == (None, None, None)
    assert (found.signal, found.stacks_fd) == (None, None)
    assert found.written_at == found.phase_since == 77.0
    assert "\x1b" not in found.phase
    assert found.phase.endswith("red")


@given(st.binary(min_size=SIZE - 16, max_size=SIZE - 16))
def test_any_bytes_are_read_or_refused(rest: bytes) -> None:
    head = struct.pack("<8sQQQ", MAGIC, 7, PID, 5)
    data = (head + rest)[:660] + bytes(4) + rest[632 : SIZE - 40] + struct.pack("<Q", 7)
    found = parse_record(data, PID, 5, 10.0)
    assert found.written_at <= 10.0
    assert found.step is None or 0 <= found.step <= 2**53
    assert len(found.scalars) <= 16


# --- where the agent looks -----------------------------------------------------------------------


class OneFile:
    """A reader that has one file, or none."""

    def __init__(self, answer: FilePiece | Unreadable) -> None:
        self.answer = answer
        self.requests: list[str] = []

    def read_from(self, path: str, offset: int, **_: object) -> FilePiece | Unreadable:
        self.requests.append(path)
        return self.answer


def rank(**more: object) -> RankIdentity:
    facts = {
        "rank": 2, "world_size": 4, "pid": 900, "start_ticks": shared_files.start_ticks(), "uid": 1000,
        "node": "n", "started_at": 0.0, "namespace_pid": PID,
    }  # fmt: skip
    return RankIdentity(**{**facts, **more})  # type: ignore[arg-type]


def piece(record: written.HookRecord, uid: int = 1000, mode: int = 0o100600) -> FilePiece:
    data = data_of(record)
    return FilePiece(data=data, size=len(data), mtime=0, inode=1, device=1, mode=mode, uid=uid)


def source(reader: OneFile, now: float = NOW) -> HeartbeatReader:
    return HeartbeatReader(Host(clock=lambda: 1000.0), reader, lambda: now)  # type: ignore[arg-type]


def test_the_record_is_looked_for_by_what_the_process_sees(record: written.HookRecord) -> None:
    record.beat(5)
    reader = OneFile(piece(record))
    assert source(reader).read([rank()])[2].step == 5
    name = record_name(PID, shared_files.start_ticks())
    assert reader.requests == [f"/proc/900/root/dev/shm/{name}"]


@pytest.mark.parametrize(
    ("uid", "mode", "why"),
    [
        (1001, 0o100600, "belongs to user 1001"),
        (1000, 0o100620, "others"),
        (1000, 0o100602, "others"),
    ],
)
def test_a_record_that_others_could_have_written_is_not_believed(
    record: written.HookRecord, uid: int, mode: int, why: str
) -> None:
    heartbeats = source(OneFile(piece(record, uid, mode)))
    assert heartbeats.read([rank()]) == {}
    assert why in heartbeats.refused[900]


def test_in_a_report_it_is_what_the_rank_said_or_a_gap(record: written.HookRecord) -> None:
    record.beat(5)
    host, own, other = Host(clock=lambda: 1000.0), OneFile(piece(record)), OneFile(piece(record, 1))
    summaries, gaps = read_hook_summaries(host, own, [rank()])  # type: ignore[arg-type]
    assert (summaries[2].step, gaps) == (5, ())
    assert 0 <= summaries[2].step_age < 60
    summaries, (gap,) = read_hook_summaries(host, other, [rank()])  # type: ignore[arg-type]
    assert summaries == {}
    assert (gap.rank, gap.pid) == (2, 900)
    assert "belongs to user 1 " in gap.reason


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Unreadable("permission denied", errno=errno.EACCES), "permission denied"),
        (Unreadable("no answer within 2 s", stuck=True), "no answer"),
        (Unreadable("no such file", errno=errno.ENOENT), None),
        (Unreadable("no such process", errno=errno.ESRCH), None),
    ],
)
def test_a_record_that_cannot_be_read_is_a_gap_and_none_is_not(
    answer: Unreadable, why: str | None
) -> None:
    summaries, gaps = read_hook_summaries(Host(clock=lambda: 1000.0), OneFile(answer), [rank()])  # type: ignore[arg-type]
    assert summaries == {}
    assert [(gap.what, why is not None and why in gap.reason) for gap in gaps] == (
        [(RECORD, True)] if why else []
    )


@pytest.mark.parametrize(
    ("pid", "why"), [(PID, "being written"), (2**22 + 1, "has ended")], ids=["lives", "is gone"]
)
def test_a_record_that_stays_torn_says_so(record: written.HookRecord, pid: int, why: str) -> None:
    record.beat(5)
    torn = msgspec.structs.replace(piece(record), data=damaged(record, SIZE - 8, bytes(8)))
    reader = OneFile(torn)
    heartbeats = source(reader)
    assert heartbeats.read([rank(pid=pid)]) == {}
    assert why in heartbeats.refused[pid]
    reader.answer = piece(record)  # who was writing may be done at the next look
    assert bool(heartbeats.read([rank(pid=pid)])) == (pid == PID)


WRITER = """
    import ctypes, sys, time
    from mldebug_training.hook.record import HookRecord
    record = HookRecord(sys.argv[1])
    memory = record._memory
    class InPieces(ctypes.c_char * 4096):
        def __setitem__(self, where, data):
            for at in range(0, len(data), 8):
                memory[where.start + at : where.start + at + 8] = data[at : at + 8]
    if sys.argv[2] == "in pieces":
        record._memory = InPieces.from_buffer(memory)
    print(record.path, record.pid, flush=True)
    until, step = time.monotonic() + 60, 0
    while time.monotonic() < until:
        step += 1
        record.write_scalars({"a": step, "b": -step})
        record.beat(step)
"""


@pytest.mark.parametrize("how", ["at once", "in pieces"])
def test_who_reads_while_another_writes_as_fast_as_it_can_reads_no_mixture(
    tmp_path: Path, how: str
) -> None:
    argv = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path), how]
    steps, torn = [], 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        path, pid = writer.stdout.readline().split()
        start, until = int(path.rpartition("-")[2]), time.monotonic() + 1.5
        while time.monotonic() < until or len(set(steps)) < 100:
            try:
                found = parse_record(Path(path).read_bytes(), int(pid), start, NOW)
            except TornError:
                torn += 1
                continue
            if found.scalars and found.step is not None:
                steps.append(found.step)
                assert found.beats == found.step
                assert found.scalars["b"] == -found.scalars["a"]
                assert found.scalars["a"] - found.step in (0, 1)
        writer.kill()
    assert steps == sorted(steps)
    assert torn < len(steps) * (1 if how == "at once" else 20)  # a few tries are enough


def test_who_has_no_record_is_asked_ever_more_rarely() -> None:
    reader, now = OneFile(Unreadable("no such file", errno=errno.ENOENT)), [0.0]
    heartbeats = HeartbeatReader(Host(clock=lambda: 1000.0), reader, lambda: now[0])  # type: ignore[arg-type]
    for second in range(120):
        now[0] = float(second)
        assert heartbeats.read([rank(started_at=0.0)]) == {}
    assert len(reader.requests) == 2  # it is old: once a minute
    young = source(reader)
    young.read([rank(started_at=990.0)])
    assert len(reader.requests) == 3


# --- as a sign of progress -----------------------------------------------------------------------


def test_a_step_of_any_rank_is_movement(record: written.HookRecord) -> None:
    progress = HeartbeatProgress()
    assert progress.signals({}) == ()
    assert progress.signals({0: read(record)}) == ()  # no step yet
    assert last_step({0: read(record)}) is None
    record.beat(1)
    first = {0: read(record), 1: read(record)}
    (one,) = progress.signals(first)
    for step in (2, 3, 4):
        record.beat(step)
    (two,) = progress.signals({**first, 1: read(record)})
    assert (one.kind, one.value, two.value) == ("heartbeat", 2, 5)
    assert two.events == 3
    assert two.at > one.at
    assert last_step({0: first[0], 1: read(record)}) == 4


def test_of_collective_timeouts_the_shortest_counts(record: written.HookRecord) -> None:
    content = read(record)
    record.write_timeout(600)
    long = read(record)
    record.write_timeout(90)
    assert shortest_timeout({0: long, 1: read(record), 2: content}) == 90
    assert shortest_timeout({0: content}) is None


# --- files ---------------------------------------------------------------------------------------


def test_what_a_killed_process_left_is_swept_away_and_what_lives_is_not(tmp_path: Path) -> None:
    living = written.HookRecord(str(tmp_path))
    for name in ("mldebug-1-1", "mldebug-1-1.stacks", "other"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "mldebug-9-9").symlink_to(tmp_path / "other")
    shared_files.sweep(str(tmp_path))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([os.path.basename(living.path), "mldebug-9-9", "other"])
    living.close()
    assert not os.path.exists(living.path)


def test_a_name_that_is_taken_is_not_written_to(tmp_path: Path) -> None:
    theirs = tmp_path / record_name(PID, shared_files.start_ticks())
    theirs.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        written.HookRecord(str(tmp_path))
    assert theirs.read_bytes() == b"mine"
