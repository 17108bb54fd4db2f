"""The logs of one job from look to look: searched for seldom, followed wherever they go, bounded, counted, named."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from mldebug.core.model import Job, ProcessState, RankIdentity
from mldebug.core.plugins import create_all
from mldebug.jobs.logs.parser import LogParser
from mldebug.stall.log_progress import LogProgress
from mldebug_agents.jobs.logs import follower, job_logs
from mldebug_agents.jobs.logs.job_logs import HungMounts, JobLogs, LogSharing
from mldebug_agents.jobs.logs.locations import LogFinder
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.system.hung import hung_mount
from shared.system.patience import PATIENCE

ME = os.getpid()
MIB = 1 << 20


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


class Ours(Host):
    """This test plays the rank: of its many descriptors only `shown` are seen, under the numbers given there.

    The numbers are those of real descriptors; `role` says which of them counts as stdout.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[int] = []
        self.searches = 0

    def process_state(
        self, pid: int, *, threads: bool = True, files: bool = False, kernel_stacks: bool = False
    ) -> ProcessState | None:
        self.searches += 1
        process = super().process_state(pid, threads=False, files=True)
        assert process is not None
        files_ = tuple(file for file in process.files if file.fd in self.shown)
        return ProcessState(
            pid=pid, ppid=process.ppid, name=process.name, state="S", uid=process.uid,
            start_ticks=process.start_ticks, files=files_,
        )  # fmt: skip


class Watched:
    """One job of one rank: this process, with files named like logs."""

    def __init__(
        self, reader: Reader, hung: HungMounts | None = None, writers: LogSharing | None = None
    ) -> None:
        self.host = Ours()
        self.reader = reader
        self.progress = LogProgress()
        self.hung = hung or HungMounts(self.host, reader)
        self.writers = writers or LogSharing()
        self.logs = JobLogs(self.host, reader, self.hung, self.parser, self.progress, self.writers)
        self.now = 1000.0
        brief = self.host.brief(ME)
        assert brief is not None
        rank = RankIdentity(
            rank=0, world_size=1, pid=ME, start_ticks=brief.start_ticks, started_at=0.0, node="n"
        )
        self.job = Job(
            id="j",
            name="j",
            launcher="single",
            attempt=0,
            world_size=1,
            ranks=(rank,),
            nodes=("n",),
        )

    def parser(self) -> LogParser:
        """Built-in formats."""
        return LogParser(create_all("logs"))

    def look(self, seconds: float = 1.0) -> int | None:
        """Look, some seconds later; return the step."""
        self.now += seconds
        self.logs.look(self.job, LogFinder(self.host), self.now)
        return self.progress.step


class Log:
    """An open file of this process."""

    def __init__(self, watched: Watched, path: Path, flags: int = os.O_APPEND) -> None:
        self.watched = watched
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
        watched.host.shown.append(self.fd)

    def write(self, data: str | bytes) -> None:
        """Append."""
        left = data.encode() if isinstance(data, str) else data
        while left:
            left = left[os.write(self.fd, left) :]

    def close(self) -> None:
        """And show it no more."""
        with suppress(OSError):
            os.close(self.fd)
        self.watched.host.shown.remove(self.fd)


@pytest.fixture
def watched(reader: Reader) -> Watched:
    return Watched(reader)


@pytest.fixture
def log(watched: Watched, tmp_path: Path) -> Iterator[Log]:
    it = Log(watched, tmp_path / "train.log")
    yield it
    it.close()


# --- searching seldom -----------------------------------------------------------------------------


def test_descriptors_are_searched_once_a_minute_while_nothing_moves(
    watched: Watched, log: Log
) -> None:
    log.write("step 1 loss 1\n")
    assert watched.look() == 1
    searches = watched.host.searches
    for step in range(2, 12):
        log.write(f"step {step} loss 1\n")
        assert watched.look(5.0) == step
    assert watched.host.searches == searches
    watched.look(job_logs.SEARCH_EVERY)
    assert watched.host.searches > searches


def test_a_log_that_comes_later_is_found_soon(watched: Watched, tmp_path: Path) -> None:
    assert watched.look() is None
    assert watched.logs.sentence.startswith("no log found: ")
    late = Log(watched, tmp_path / "late.log")
    late.write("step 4 loss 1\n")
    assert watched.look(job_logs.SEARCH_AGAIN) == 4
    assert watched.logs.sentence == str(late.path)
    late.close()


def test_rotation_to_another_descriptor_is_seen_at_the_next_look(
    watched: Watched, log: Log, tmp_path: Path
) -> None:
    log.write("step 1 loss 1\n")
    watched.look()
    log.path.rename(tmp_path / "train.log.1")
    held = os.open(os.devnull, os.O_RDONLY)
    new = Log(watched, log.path)
    os.close(held)
    os.dup2(os.open(os.devnull, os.O_WRONLY), log.fd)
    watched.host.shown.remove(log.fd)
    new.write("step 2 loss 1\n")
    assert watched.look() == 2
    watched.host.shown.append(log.fd)
    new.close()


def test_rotation_at_the_same_descriptor_reads_old_and_new(watched: Watched, log: Log) -> None:
    """Rename and create, as logrotate with a reopening writer does: no record is lost in between."""
    log.write("step 1 loss 1\n")
    watched.look()
    moves = watched.progress.signals()[0].value
    log.write("step 2 loss 1\n")
    log.path.rename(log.path.with_name("train.log.1"))
    new = os.open(log.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(new, log.fd)
    os.close(new)
    log.write("step 3 loss 1\n")
    assert watched.look() == 3
    assert watched.progress.signals()[0].value == moves + 2
    assert watched.logs.counts.rotations == 1


def test_a_thousand_rotations_leave_one_follower(watched: Watched, log: Log) -> None:
    for step in range(30):
        log.path.unlink()
        new = os.open(log.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(new, log.fd)
        os.close(new)
        log.write(f"step {step} loss 1\n")
        assert watched.look() == step
    assert len(watched.logs._followers) == 1
    assert watched.logs.counts.records == 30


def test_first_and_last_rank_are_asked_first() -> None:
    ranks = [
        RankIdentity(rank=n, world_size=99, pid=n, start_ticks=0, started_at=0.0, node="n")
        for n in range(99)
    ]
    found = [rank.rank for rank in job_logs._to_ask(ranks)]
    assert found[:3] == [0, 98, 1]
    assert len(found) == job_logs.MAX_RANKS
    assert [rank.rank for rank in job_logs._to_ask(ranks[:1])] == [0]
    assert [rank.rank for rank in job_logs._to_ask(ranks[:2])] == [0, 1]


# --- late looks -----------------------------------------------------------------------------------


def moved_at(watched: Watched) -> float:
    """When the last record was written, by the clock of the looks."""
    assert watched.progress.moved_at is not None
    return watched.progress.moved_at


def test_a_look_that_comes_late_takes_the_time_from_the_file(watched: Watched, log: Log) -> None:
    """A flood of another user's processes made looks nine seconds long, and each stall began with the look that saw its last step."""
    log.write("step 1 loss 1\n")
    watched.look()
    log.write("step 2 loss 1\n")
    written = time.time() - 8.0
    os.utime(log.path, (written, written))
    assert watched.look(12.0) == 2
    assert watched.now - 8.0 - PATIENCE < moved_at(watched) <= watched.now - 8.0
    log.write("step 3 loss 1\n")
    watched.look(1.0)  # in time: as before
    assert moved_at(watched) == watched.now


@pytest.mark.parametrize("age", [86_400.0, 15.0, -86_400.0])
def test_a_file_s_time_counts_only_between_two_looks(
    watched: Watched, log: Log, age: float
) -> None:
    """Clocks of servers differ, wall clocks are set, and the job may give its file any time."""
    log.write("step 1 loss 1\n")
    watched.look()
    log.write("step 2 loss 1\n")
    os.utime(log.path, (time.time() - age, time.time() - age))
    watched.look(12.0)
    assert moved_at(watched) == watched.now


@pytest.mark.parametrize("behind", [1.0, 4.0, 60.0])
def test_the_first_record_of_a_file_whose_clock_is_behind_is_progress(watched: Watched, log: Log, behind: float) -> None:  # fmt: skip
    """It counted as of the look before, and so as one that had stood there already."""
    log.write("starting\n")
    watched.look(5.0)
    before = watched.now
    for step in range(3):
        log.write(f"step {step + 1} loss 1\n")
        os.utime(log.path, (time.time() - behind, time.time() - behind))
        watched.look(5.0)
        assert before < moved_at(watched) <= watched.now
        before = watched.now


def test_a_file_that_once_had_another_clock_is_not_asked_again(watched: Watched, log: Log) -> None:
    """Of a clock that is 4 s behind every second look would tell another time: the gaps of a steady run would be uneven."""
    log.write("step 1 loss 1\n")
    watched.look()
    for step, age in ((2, 60.0), (3, 4.0)):
        log.write(f"step {step} loss 1\n")
        os.utime(log.path, (time.time() - age, time.time() - age))
        watched.look(5.0)
        assert moved_at(watched) == watched.now


# --- bad input -----------------------------------------------------------------------------------


def test_100_mb_on_one_line_are_left_out_counted_and_named(watched: Watched, log: Log) -> None:
    log.write("step 1 loss 1\n")
    watched.look()
    before, children = _rss(ME), sum(map(_rss, _reader_children()))
    for _ in range(25):
        log.write(b"z" * (4 * MIB))
        began = time.monotonic()
        watched.look()
        assert time.monotonic() - began < 2.0 * PATIENCE
    log.write("\nstep 2 loss 1\n")
    assert watched.look() == 2
    assert watched.logs.counts.oversized == 1
    assert "1 lines too long to read" in watched.logs.sentence
    assert _rss(ME) - before < 24 * MIB
    assert sum(map(_rss, _reader_children())) - children < 24 * MIB


def test_100_mb_at_once_are_skipped_counted_and_named(watched: Watched, log: Log) -> None:
    watched.look()
    log.write(b"z" * (100 * MIB) + b"\nstep 2 loss 1\n")
    assert watched.look() == 2
    assert watched.logs.counts.skipped_bytes == 100 * MIB + 15 - follower.MAX_NEWS
    assert watched.logs.sentence == f"{log.path} (101 MB skipped)"


def test_a_binary_log(watched: Watched, log: Log) -> None:
    watched.look()
    log.write(os.urandom(MIB) + b"\0" * MIB + b"\xff\xfe\n" * 100 + b"\nstep 2 loss 1\n")
    assert watched.look() == 2
    assert watched.logs.counts.binary > 100
    assert "lines of binary data" in watched.logs.sentence


def test_a_sparse_log_of_a_terabyte(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "sparse.log"
    with path.open("wb") as file:
        try:
            file.truncate(1 << 40)
        except OSError:
            file.truncate(1 << 34)
    log = Log(watched, path)
    began = time.monotonic()
    assert watched.look() is None
    log.write("\nstep 5 loss 1\n")
    assert watched.look() == 5
    os.truncate(path, path.stat().st_size + (1 << 34))  # and it grows by a hole
    log.write("\nstep 6 loss 1\n")
    assert watched.look() == 6
    assert time.monotonic() - began < 5.0 * PATIENCE
    assert watched.logs.counts.bytes < 8 * MIB
    log.close()


def test_truncated_to_nothing_and_grown_beyond_its_old_size(watched: Watched, log: Log) -> None:
    log.write("step 1 loss 1\n" * 5)
    watched.look()
    os.truncate(log.path, 0)
    log.write("step 2 loss 1\n" * 50)
    assert watched.look() == 2
    assert watched.logs.counts.truncations == 1
    assert watched.logs.counts.records == 5 + 50


def test_a_fifo_with_a_name_is_refused_unopened_and_named(watched: Watched, tmp_path: Path) -> None:
    fifo = tmp_path / "my.log"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    watched.host.shown.append(end)
    assert watched.look() is None
    assert watched.logs.sentence == f"no log can be read: {fifo}: not a regular file"
    assert [gap.what for gap in watched.logs.gaps] == ["log"]
    assert watched.logs.counts.failures == 1
    os.close(end)


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null", "/dev/ptmx"])
def test_devices_are_named_and_not_opened(watched: Watched, device: str) -> None:
    """As stdout; a child plays the rank."""
    flags = os.O_RDWR if device == "/dev/ptmx" else os.O_WRONLY
    end = os.open(device, flags | os.O_NOCTTY)
    sentence = _of_child(watched, end)
    os.close(end)
    assert sentence.startswith(
        f"no log found: stdout is {'a terminal (' if 'pt' in device else ''}/dev/"
    )


def test_a_socket_is_named(watched: Watched) -> None:
    one, other = socket.socketpair()
    sentence = _of_child(watched, one.fileno())
    one.close()
    other.close()
    assert sentence.startswith("no log found: stdout is a socket (socket:[")


def test_a_log_that_became_a_folder_is_still_followed(watched: Watched, log: Log) -> None:
    log.write("step 1 loss 1\n")
    watched.look()
    log.path.unlink()
    log.path.mkdir()
    log.write("step 2 loss 1\n")
    assert watched.look() == 2


def test_a_closed_log_is_named(watched: Watched, log: Log) -> None:
    log.write("step 1 loss 1\n")
    watched.look()
    os.close(log.fd)
    assert watched.look() == 1  # it told so before
    assert watched.logs.sentence.startswith("no log found: ")


# --- what is slow, or hangs ----------------------------------------------------------------------


def test_one_mount_that_hangs_costs_one_reader_and_one_deadline(
    reader: Reader, tmp_path: Path
) -> None:
    with hung_mount(tmp_path) as mount:
        (mount.source / "sub").mkdir()
        one = Watched(reader)
        two = Watched(reader, one.hung)
        logs = [Log(one, mount.target / "a.log"), Log(two, mount.target / "sub/b.log")]
        good = Log(one, tmp_path / "good.log")
        logs += [Log(two, mount.target / "c.log")]
        for each in (*logs, good):
            each.write("step 3 loss 1\n")
        mount.hang()
        began = time.monotonic()
        assert one.look() == 3
        assert two.look() is None
        assert time.monotonic() - began < (2 * 2.0 + 1.0) * PATIENCE
        spans = []
        for step in (4, 5, 6):
            began = time.monotonic()
            good.write(f"step {step} loss 1\n")
            assert one.look() == step
            spans.append(time.monotonic() - began)
        assert min(spans) < 1.9  # who waits for the mount again waits each time
        assert len(reader.stuck) == 1
        assert one.logs.sentence == str(good.path)
        assert (len(one.logs.gaps), len(two.logs.gaps)) == (1, 2)
        assert two.logs.sentence.startswith("no log can be read: ")
        mount.recover()
        deadline = time.monotonic() + 20 * PATIENCE
        while two.look() != 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert two.progress.step == 3
        for each in (*logs, good):
            each.close()


def test_what_there_is_no_time_for_is_named_and_comes_first_next_time(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "BUDGET", 0.0)
    logs = [Log(watched, tmp_path / f"{name}.log") for name in "ab"]
    watched.look()
    reasons = [gap.reason for gap in watched.logs.gaps]
    assert reasons == [
        f"{log.path}: not read this time: the other logs took too long" for log in logs
    ]
    monkeypatch.setattr(job_logs, "BUDGET", 2.0)
    logs[1].write("step 8 loss 1\n")
    assert watched.look() == 8
    for log in logs:
        log.close()


def _of_child(watched: Watched, stdout: int) -> str:
    """What is said of a rank with that stdout."""
    rank = subprocess.Popen(["sleep", "600"], stdout=stdout, stderr=subprocess.DEVNULL)
    try:
        host = Host()
        state = host.process_state(rank.pid, files=True)
        assert state is not None
        identity = RankIdentity(
            rank=0, world_size=1, pid=rank.pid, start_ticks=state.start_ticks, started_at=0.0, node="n"
        )  # fmt: skip
        job = Job(
            id="j", name="j", launcher="single", attempt=0, world_size=1, ranks=(identity,), nodes=("n",)
        )  # fmt: skip
        logs = JobLogs(
            host, watched.reader, watched.hung, watched.parser, watched.progress, LogSharing()
        )
        logs.look(job, LogFinder(host), 1.0)
        return logs.sentence
    finally:
        rank.kill()
        rank.wait()


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _reader_children() -> list[int]:
    """The helper and all that it has forked."""
    found = []
    for pid in _children(ME):
        found += [pid, *_children(pid)]
    return found


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- whose log it is ------------------------------------------------------------------------------


def test_a_log_that_two_runs_write_tells_of_neither(reader: Reader, tmp_path: Path) -> None:
    writers = LogSharing()
    one, two = Watched(reader, writers=writers), Watched(reader, writers=writers)
    first = Log(one, tmp_path / "all.log")
    first.write("step 7 loss 1\n")
    assert one.look() == 7
    second = Log(two, tmp_path / "all.log")
    second.write("step 483 loss 1\n")
    assert two.look() is None
    assert one.look() is None
    for job in (one, two):
        assert job.logs.sentence.endswith("all.log (not read: another run writes it too)")
        assert job.progress.signals() == ()


def nccl_line(pid: int, text: str = "NCCL INFO Using network Socket") -> str:
    """A line of NCCL's, as a process of a container with another name writes it."""
    return f"box:{pid}:{pid} [0] {text}\n"


def test_what_nccl_says_is_heard_of_the_ranks_of_the_job_alone(watched: Watched, log: Log) -> None:
    log.write(nccl_line(ME) + nccl_line(ME + 1, "NCCL INFO Using network IB") + "step 3 loss 1\n")
    assert watched.look() == 3
    assert watched.logs.nccl.facts().networks == ("Socket",)
    assert watched.logs.nccl.strange == 1


def test_what_nccl_says_in_a_log_of_two_runs_is_heard_of_neither(
    reader: Reader, tmp_path: Path
) -> None:
    writers = LogSharing()
    one, two = Watched(reader, writers=writers), Watched(reader, writers=writers)
    first = Log(one, tmp_path / "all.log")
    first.write(nccl_line(ME))
    one.look()
    assert one.logs.nccl.facts().networks == ("Socket",)
    Log(two, tmp_path / "all.log").write(nccl_line(ME))
    for job in (two, one):
        job.look()
        assert job.logs.nccl.facts().networks == ()


def test_what_nccl_said_to_an_earlier_launch_is_forgotten(watched: Watched, log: Log) -> None:
    log.write(nccl_line(ME))
    watched.look()
    other = msgspec.structs.replace(watched.job.ranks[0], pid=os.getppid(), start_ticks=0)
    watched.job = msgspec.structs.replace(watched.job, ranks=(other,))
    watched.look()
    assert watched.logs.nccl.facts().networks == ()


def test_a_log_is_read_again_when_the_other_run_is_gone(
    reader: Reader, watched: Watched, log: Log
) -> None:
    other = Watched(reader, writers=watched.writers)
    theirs = Log(other, log.path)
    other.look()
    watched.look()
    assert watched.look() is None
    theirs.close()
    watched.writers.keep([watched.logs])
    log.write("step 8 loss 1\n")
    assert watched.look() == 8


def test_a_lone_helper_does_not_spoil_the_log_of_a_launched_run(
    reader: Reader, watched: Watched, log: Log
) -> None:
    watched.job = msgspec.structs.replace(watched.job, launcher="torchrun")
    helper = Watched(reader, writers=watched.writers)
    Log(helper, log.path)
    helper.look()
    log.write("step 8 loss 1\n")
    assert watched.look() == 8
    helper.look()
    assert helper.logs.sentence.endswith("(not read: another run writes it too)")


def test_two_ranks_of_one_run_share_their_log(watched: Watched, log: Log) -> None:
    again = Log(watched, log.path)
    log.write("step 3 loss 1\n")
    again.write("step 4 loss 1\n")
    assert watched.look() == 4


def test_new_processes_may_say_the_old_steps_again(watched: Watched, log: Log) -> None:
    log.write("step 1 loss 1\nstep 2 loss 1\nstep 3 loss 1\n")
    watched.look()
    watched.logs._note_ranks(
        msgspec.structs.replace(
            watched.job, ranks=(msgspec.structs.replace(watched.job.ranks[0], pid=ME + 1),)
        )
    )
    log.write("step 2 loss 1\n")
    watched.look()
    assert watched.progress.moved_at == watched.now


# --- a log that another launch goes on with -------------------------------------------------------


def launched_again(watched: Watched) -> tuple[float, float]:
    """Another run finds the log that an earlier one has left: what its last record counts as written, and when it came; unix seconds."""
    came = watched.host.clock()
    watched.writers.keep(())
    again = Watched(watched.reader, writers=watched.writers)
    again.host.shown = watched.host.shown
    again.look()
    assert again.progress.moved_at is not None
    return again.host.clock() - (again.now - again.progress.moved_at), came


def read_and_waited(watched: Watched) -> None:
    watched.look()
    time.sleep(0.1)


def test_a_record_of_the_launch_before_is_no_younger_for_what_was_printed_after_it(watched: Watched, log: Log) -> None:  # fmt: skip
    log.write("step 209 loss 1\nstep 210 loss 1\n")
    read_and_waited(watched)
    log.write("[Gloo] Rank 0 is connected to 1 peer ranks.\n")
    written, came = launched_again(watched)
    assert written < came - 0.05


@pytest.mark.parametrize("cut", [False, True])
def test_a_record_of_this_launch_is_as_young_as_the_file(
    watched: Watched, log: Log, cut: bool
) -> None:
    log.write("step 209 loss 1\nstep 210 loss 1\n")
    read_and_waited(watched)
    if cut:  # and as long as before, with other records
        os.ftruncate(log.fd, 0)
        log.write("step 109 loss 1\nstep 110 loss 1\n")
    else:
        log.write("step 211 loss 1\n")
    written, came = launched_again(watched)
    assert written == pytest.approx(came, abs=0.05)


def test_the_ends_of_the_last_logs_alone_are_remembered() -> None:
    sharing = LogSharing()
    for inode in range(1000):
        sharing.note_end((1, inode), follower.KnownEnd(inode, 0.0, b""))
    assert sharing.end_of((1, 0)) is None
    assert sharing.end_of((1, 999)) == follower.KnownEnd(999, 0.0, b"")
    assert len(sharing._ends) == job_logs.MAX_ENDS


def test_a_log_without_one_record_is_named(watched: Watched, log: Log) -> None:
    log.write("all is well\n" * 60)
    watched.look()
    watched.look()
    assert watched.logs.sentence.endswith("train.log (no line of it understood)")
