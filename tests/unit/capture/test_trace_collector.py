"""The agent and trace rings: found in living and in dead ranks, believed only where they are the rank's own, told in reports."""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mldebug.capture.trace.line_format import trace_tail
from mldebug.capture.trace.reader import read_whole
from mldebug.core.model import (
    Job,
    NodeCapture,
    ProcessCapture,
    ProcessState,
    RankCapture,
    RankIdentity,
    TraceTail,
)
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.exits.judgement import _capture_of
from mldebug.diagnosis.exits.model import AttemptExit, RankExit
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import report_lines
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.capture.trace.collector import MOST_SECONDS, TraceCollector
from mldebug_agents.capture.trace.ring_file import MAX_CHUNKS, RingReader, default_name, living
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_exporters.metrics.traces import AGE, create
from shared.capture import rings
from shared.incidents import samples

HOST = Host()


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a ring open which lies anywhere, as `--ring FILE` has it."""
    place = tmp_path / "any.name"
    place.write_bytes(bytes(1))
    place.chmod(0o600)
    script = "import sys; f = open(sys.argv[1], 'r+b'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script, str(place)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def identity(pid: int) -> RankIdentity:
    stat = HOST.brief(pid)
    assert stat is not None
    return RankIdentity(
        rank=3, world_size=4, pid=pid, start_ticks=stat.start_ticks, uid=os.getuid()
    )


def its_ring(rank: RankIdentity, **more: object) -> bytes:
    boot = HOST.boot_id().encode()
    facts = {"pid": rank.pid, "start": rank.start_ticks, "boot": boot, "rank": 3} | more
    return rings.ring(
        rings.steps(1, 3),
        (("train_step", "/job/train.py", "train", 40), *rings.FUNCTIONS[1:]),
        **facts,
    )  # type: ignore[arg-type]


def captured(rank: RankIdentity) -> NodeCapture:
    state = HOST.process_state(rank.pid, threads=False)
    process = ProcessCapture(pid=rank.pid, state=state)
    job = Job(id="j", name="train.py", launcher="torchrun", ranks=(rank,))
    return NodeCapture(
        node="n",
        taken_at=time.time(),
        job=job,
        ranks=(RankCapture(identity=rank, process=process),),
    )


def tail_of(some: TraceCollector, rank: RankIdentity) -> TraceTail | None:
    return some.add(captured(rank), lambda: 30.0).ranks[0].trace


def found(rank: RankIdentity) -> Discovery:
    return Discovery(jobs=(captured(rank).job,))


# --- what they may cost ---------------------------------------------------------------------------


def test_a_ring_of_a_million_chunks_is_not_read(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A sparse file, of which each rank of a user may have one: eight seconds and 600 MiB at a capture, and half a second of each look."""
    rank = identity(sleeper.pid)
    for count, is_read in (MAX_CHUNKS, True), (MAX_CHUNKS + 1, False):
        data = bytearray(its_ring(rank))
        struct.pack_into("<QQQQII", data, 16, 1 << 40, 4096, 0, 4096, 512, count)
        (tmp_path / "any.name").write_bytes(data)
        os.truncate(tmp_path / "any.name", 4096 + 512 * count)
        reading = RingReader(reader, living(HOST, rank)[0], rank, HOST.rights.of(rank), "")
        if is_read:
            assert reading.check().chunks == count
            continue
        with pytest.raises(ValueError, match="chunks, and an agent reads"):
            reading.written_ns()
        with pytest.raises(ValueError, match="chunks, and an agent reads"):
            reading.ends(3)


def test_one_owner_s_thousand_rings_take_no_more_of_a_look_than_his_share() -> None:
    """Another's is read in each look, and each of the thousand in turn; until then it has the time of its last read."""
    now, pids = [0.0], []

    class Slow(TraceCollector):
        def _written(self, rank: RankIdentity) -> float | None:
            now[0] += 0.1
            pids.append(rank.pid)
            return now[0]

    def job(uid: int, first: int, count: int) -> Job:
        ranks = tuple(
            RankIdentity(rank=n, world_size=count, pid=first + n, start_ticks=1, uid=uid)
            for n in range(count)
        )
        return Job(id=str(uid), name="train.py", launcher="torchrun", ranks=ranks, uid=uid)

    traces = Slow(HOST, None, clock=lambda: now[0])  # type: ignore[arg-type]
    found = Discovery(jobs=(job(1, 1000, 30), job(2, 5000, 1)))
    first = traces.update(found)
    assert now[0] < 2 * MOST_SECONDS + 0.2
    assert 5000 in first
    for _ in range(12):
        after = traces.update(found)
    assert pids.count(5000) == 13
    assert set(after) == {*range(1000, 1030), 5000}
    assert max(map(pids.count, range(1000, 1030))) <= 2


# --- where they are --------------------------------------------------------------------------------


def test_an_open_ring_is_found_wherever_it_lies(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    rank = identity(sleeper.pid)
    (tmp_path / "any.name").write_bytes(its_ring(rank))
    some = TraceCollector(HOST, reader)
    tail = tail_of(some, rank)
    assert tail is not None
    assert tail.last == "line 9 of data:7 load"
    assert tail.lines[-1].startswith("0:00:00.0")
    assert tail.step == 3
    written = some.update(found(rank))
    assert written.keys() == {rank.pid}
    assert written[rank.pid] == pytest.approx(rings.WALL / 1e9, abs=1.0)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_stopped_and_a_killed_rank_tell_their_last_line(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    rank = identity(sleeper.pid)
    (tmp_path / "any.name").write_bytes(its_ring(rank))
    some = TraceCollector(HOST, reader)
    some.update(found(rank))
    sleeper.send_signal(number)
    if number is signal.SIGKILL:
        sleeper.wait(30)
        result = some.left_behind([rank])
        assert result[3].last == "line 9 of data:7 load"
    tail = tail_of(some, rank)
    assert tail is not None
    assert tail.last == "line 9 of data:7 load"


def test_of_a_rank_whose_ring_was_never_met_the_default_place_is_looked_into(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    rank = identity(sleeper.pid)
    HOST.rights.of(rank)  # while it lives: of a stranger nothing is read
    sleeper.kill()
    sleeper.wait(30)
    place = tmp_path / default_name(rank)
    place.write_bytes(its_ring(rank))
    place.chmod(0o600)
    assert TraceCollector(HOST, reader).left_behind([rank]) == {}
    assert TraceCollector(HOST, reader, [str(tmp_path)]).left_behind([rank])[3].step == 3


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "of before an exec"])
def test_a_ring_that_is_not_open_counts_while_it_is_mapped(reader: Reader, mapped: bool) -> None:
    """A job may close what it does not know; an exec keeps pid, start and the file, and not the mapping."""
    script = "import os, sys; exec(sys.stdin.readline()); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        rank = identity(child.pid)
        place = Path("/dev/shm") / default_name(rank)
        try:
            place.write_bytes(its_ring(rank))
            place.chmod(0o600)
            line = f"import mmap; fd = os.open({str(place)!r}, 2); kept = mmap.mmap(fd, 0, mmap.MAP_SHARED); "
            line += "" if mapped else "kept.close(); "
            child.stdin.write(f"{line}os.closerange(3, 999); print(flush=True)\n".encode())
            child.stdin.flush()
            assert child.stdout.readline() == b"\n"
            some = TraceCollector(HOST, reader)
            assert (tail_of(some, rank) is not None) is mapped
            assert bool(some.update(found(rank))) is mapped
        finally:
            place.unlink()
            child.kill()


# --- whose they are --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [{"pid": 1}, {"start": 1}, {"boot": b"another-boot"}], ids=["pid", "start", "boot"]
)
def test_the_ring_of_another_process_is_nobodys(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path, more: dict[str, object]
) -> None:
    rank = identity(sleeper.pid)
    (tmp_path / "any.name").write_bytes(its_ring(rank, **more))
    some = TraceCollector(HOST, reader)
    assert tail_of(some, rank) is None
    assert some.update(found(rank)) == {}


def test_a_ring_that_others_may_write_is_not_believed(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    rank = identity(sleeper.pid)
    place = tmp_path / "any.name"
    place.write_bytes(its_ring(rank))
    place.chmod(0o622)
    assert tail_of(TraceCollector(HOST, reader), rank) is None
    place.chmod(0o600)
    other = msgspec.structs.replace(rank, uid=rank.uid + 1)
    assert tail_of(TraceCollector(HOST, reader), other) is None


def test_a_ring_that_breaks_after_it_was_met_is_a_gap(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    rank = identity(sleeper.pid)
    (tmp_path / "any.name").write_bytes(its_ring(rank))
    some = TraceCollector(HOST, reader)
    some.update(found(rank))
    (tmp_path / "any.name").write_bytes(bytes(8192))
    taken = some.add(captured(rank), lambda: 30.0)
    assert taken.ranks[0].trace is None
    assert [(gap.what, gap.rank) for gap in taken.gaps] == [("trace ring", 3)]


def test_an_untraced_process_is_asked_seldom(
    reader: Reader, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = identity(sleeper.pid)
    now = [0.0]
    some = TraceCollector(HOST, reader, clock=lambda: now[0])
    looks: list[int] = []
    monkeypatch.setattr(
        "mldebug_agents.capture.trace.collector.living", lambda *_: looks.append(1) or []
    )
    for now[0] in (0.0, 1.0, 4.0, 6.0, 20.0, 65.0, 67.0):
        some.update(found(rank))
    assert 2 <= len(looks) <= 4


def test_what_an_untraced_process_has_mapped_is_not_read(
    reader: Reader, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes of text for a real rank, which holds the lock of its memory meanwhile."""
    lines: list[str] = []
    read_from = reader.read_from

    def noted(path: str, *arguments: int, **more: int) -> object:
        lines.append(path)
        return read_from(path, *arguments, **more)

    monkeypatch.setattr(reader, "read_from", noted)
    assert TraceCollector(HOST, reader).update(found(identity(sleeper.pid))) == {}
    assert lines
    assert not [path for path in lines if path.endswith("/maps")]


# --- source text -----------------------------------------------------------------------------------


def test_source_text_is_read_where_the_rank_sees_it_and_hides_secrets(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    code = tmp_path / "train.py"
    code.write_text("\n" * 8 + "password = 'hunter2secret'\n")
    (tmp_path / "shadow").write_text("\n" * 8 + "root:hash\n")
    for path, shown in ((code, "password"), (tmp_path / "shadow", "")):
        rank = identity(sleeper.pid)
        functions = ((("f", str(path), "m", 1)), ("load", str(path), "data", 7), rings.FUNCTIONS[2])
        data = rings.ring(
            rings.steps(1, 1), functions,
            pid=rank.pid, start=rank.start_ticks, boot=HOST.boot_id().encode(),
        )  # fmt: skip
        (tmp_path / "any.name").write_bytes(data)
        tail = tail_of(TraceCollector(HOST, reader), rank)
        assert tail is not None
        assert shown in tail.lines[-1]
        assert "hunter2secret" not in "".join(tail.lines)
        assert "root:hash" not in "".join(tail.lines)


# --- reports ---------------------------------------------------------------------------------------


def traced(last: str, age: float) -> TraceTail:
    return TraceTail(
        lines=(f"        {last}", "0:00:01 train.py:    41:     loss = model(x)"),
        last=last,
        age=age,
        step=41,
    )


def test_a_report_tells_the_culprit_in_full_and_the_others_in_a_line() -> None:
    report = samples.report(samples.traced())
    culprits = [one for one in report.ranks if one.culprit]
    assert all(one.trace for one in culprits)
    assert (
        sum(bool(one.trace) for one in report.ranks) == 2
    )  # the culprit, and one of those who wait
    assert all(one.last_call for one in report.ranks)
    text = "\n".join(report_lines(report, 100))
    page = render_html(report)
    for words in ("Last calls of rank", "Last calls, as the tracers saw them", "time.sleep(3600)"):
        assert words in text
        assert words in page


def test_a_rank_that_ended_brings_its_last_calls_into_the_report() -> None:
    rank = RankIdentity(rank=1, world_size=2, pid=10)
    ending = AttemptExit(
        job=Job(id="j", name="n", launcher="torchrun"),
        identities=(rank,),
        exits=(RankExit(rank=1, pid=10, status=9),),
        traces={1: traced("line 7 of train:7 slow", 1.0)},
    )
    kept = _capture_of(rank, None, None, ending)
    assert kept is not None
    assert kept.trace is not None
    assert kept.trace.step == 41


def test_an_empty_ring_has_no_tail() -> None:
    empty = rings.ring([None, None])
    ring = read_whole(lambda at, size: empty[at : at + size])
    assert trace_tail(ring, 0.0, "/x", lambda *_: "") is None


@pytest.mark.parametrize(
    ("state", "why", "text"),
    [
        (1, b"", ""),
        (4, b"", ""),  # with its process
        (4, b"step:3 was reached", " (and then tracing ended: step:3 was reached)"),
        (3, b"a profiler", " (and then tracing stepped aside: a profiler)"),
    ],
)
def test_a_rank_that_went_on_untraced_is_not_said_to_be_at_its_last_record(
    state: int, why: bytes, text: str
) -> None:
    data = bytearray(rings.ring(rings.steps(1, 3)))
    struct.pack_into("<I", data, 168, state)
    struct.pack_into("256s", data, 352, why)
    tail = trace_tail(read_whole(lambda at, size: data[at : at + size]), 0.0, "/x", lambda *_: "")
    assert tail is not None
    assert tail.last == "line 9 of data:7 load" + text


def test_the_age_of_each_ring_is_exported() -> None:
    run = RunState(id="r", name="n", launcher="torchrun", traced={0: 90.0, 3: 100.5})
    snapshot = Snapshot(node="n", at=100.0, started_at=0.0, runs=(run,))
    items = list(create(NoOptions()).samples(snapshot))
    assert [(one.family, one.labels, one.value) for one in items] == [
        (AGE, ("r", "0"), 10.0),
        (AGE, ("r", "3"), 0.0),
    ]


def test_a_zombie_is_read_as_a_dead_one(
    reader: Reader, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    rank = identity(sleeper.pid)
    (tmp_path / "any.name").write_bytes(its_ring(rank))
    some = TraceCollector(HOST, reader)
    some.update(found(rank))
    capture = captured(rank)
    gone = ProcessCapture(pid=rank.pid, state=ProcessState(pid=rank.pid, state="Z"))
    ranks = (msgspec.structs.replace(capture.ranks[0], process=gone),)
    sleeper.kill()
    sleeper.wait(30)
    taken = some.add(msgspec.structs.replace(capture, ranks=ranks), lambda: 30.0)
    assert taken.ranks[0].trace is not None
