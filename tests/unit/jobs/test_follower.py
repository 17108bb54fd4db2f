"""following: a log that grows, rotates, shrinks, or is none at all; real files through the real reader child."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mldebug.core.plugins import create_all
from mldebug.jobs.logs.charts.csv_table import CsvParser
from mldebug.jobs.logs.parser import LogParser
from mldebug.stall.log_progress import LogProgress
from mldebug_agents.jobs.logs import follower as following
from mldebug_agents.jobs.logs.follower import LogFollower, LogUpdate
from mldebug_agents.jobs.logs.locations import LogFile
from mldebug_agents.system.fake_reader import FakeReader
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.system.hung import hung_mount
from shared.system.whose import MINE


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


class Writer:
    """A training script's open log: the descriptor is this process's own."""

    def __init__(self, path: Path, flags: int = os.O_APPEND) -> None:
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags)

    def write(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        while data:
            data = data[os.write(self.fd, data) :]

    def reopen(self) -> None:
        """Write a new file under the same name and the same number."""
        new = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(new, self.fd)
        os.close(new)

    @property
    def place(self) -> LogFile:
        path = f"/proc/{os.getpid()}/fd/{self.fd}"
        return LogFile(
            rights=MINE, path=path, target=os.readlink(path), pid=os.getpid(), kind="stdout"
        )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "train.log")
    yield writer
    os.close(writer.fd)


@pytest.fixture
def follower(reader: Reader) -> LogFollower:
    return LogFollower(reader, LogParser(create_all("logs")))


def steps(news: LogUpdate) -> list[int | None]:
    assert news.gap is None, news.gap
    return [record.step for record in news.records]


def test_knows_the_loop_behind_all_that_another_thread_has_counted_since(
    log: Writer, follower: LogFollower
) -> None:
    log.write("".join(f"step {n} loss {n}.5\n" for n in range(50, 60)))
    log.write("".join(f"gpu util: step {n}: util=0.0\n" for n in range(1000)))
    first, progress = follower.poll(log.place), LogProgress()
    progress.arrive(first.before, 5.0, "log", first.earlier)
    log.write("gpu util: step 1000: util=0.0\n")
    progress.take(follower.poll(log.place).records, 30, 60.0, "log")
    assert (progress.moved_at, progress.step) == (5.0, 59)


def test_starts_at_the_end_but_knows_the_step(log: Writer, follower: LogFollower) -> None:
    log.write("step 1 loss 3\nstep 2 loss 2\n")
    first = follower.poll(log.place)
    assert steps(first) == []
    assert first.before is not None
    assert first.before.step == 2
    assert (first.grew_bytes, first.size) == (0, 28)
    assert first.modified_at == os.stat(log.path).st_mtime
    assert steps(follower.poll(log.place)) == []
    log.write("step 3 loss 2\nchatter\n")
    news = follower.poll(log.place)
    assert (steps(news), news.grew_bytes, news.before) == ([3], 22, None)


def test_a_new_log_has_no_step_before(log: Writer, follower: LogFollower) -> None:
    assert follower.poll(log.place) == LogUpdate(modified_at=os.stat(log.path).st_mtime)
    log.write("step 1 loss 1\n")
    assert steps(follower.poll(log.place)) == [1]


def test_the_first_look_at_a_large_log_reads_its_end_only(
    log: Writer, follower: LogFollower
) -> None:
    log.write("step 1 loss 1\n" * 100_000 + "step 77 loss 1\n")
    first = follower.poll(log.place)
    assert first.before is not None
    assert first.before.step == 77
    assert follower.parser.bytes == following.FIRST_LOOK


NAMES = {
    "csv": ("step,loss,lr", "{},6.5,1e-05"),
    "columns": ("  step        loss        lr", "  {}        6.5       1e-05"),
    "box": ("| step | loss |", "| {} | 6.5 |"),
}


@pytest.mark.parametrize("before", [0, 1000], ids=["at the top", "below a preamble"])
@pytest.mark.parametrize("kind", NAMES)
def test_names_of_columns_are_read_in_the_head_of_a_log_whose_end_has_none(
    kind: str, before: int, log: Writer, follower: LogFollower
) -> None:
    names, row = NAMES[kind]
    log.write("loading a library with many words\n" * before + f"{names}\n")
    log.write("".join(f"{row.format(n)}\n" for n in range(40_000)))
    first = follower.poll(log.place)
    assert first.before is not None
    assert first.before.step == 39_999
    assert follower.parser.bytes <= following.FIRST_LOOK
    log.write(f"{row.format(40_000)}\n")
    assert steps(follower.poll(log.place)) == [40_000]


def test_the_head_of_a_log_tells_no_step(log: Writer, follower: LogFollower) -> None:
    """Its lines are old: the step that counts stands at the end, and where none does nobody knows it."""
    log.write("".join(f"step {n} loss {n}.5\n" for n in range(50)))
    log.write("loading a library with many words\n" * 20_000)
    news = follower.poll(log.place)
    assert (news.before, news.earlier) == (None, ())
    assert follower.parser.records == 0


def test_a_head_that_is_another_table_s_tells_nothing(log: Writer, follower: LogFollower) -> None:
    log.write("name,size,loss_weight\n" + "layer,12,0.5\n" * 30_000)
    assert follower.poll(log.place).before is None


def test_metrics_of_a_large_table_have_the_names_in_its_head(reader: Reader, log: Writer) -> None:
    log.write("step,train_loss\n" + "".join(f"{n},2.0{'0' * 90}\n" for n in range(50_000)))
    follower = LogFollower(reader, CsvParser())
    place = msgspec.structs.replace(log.place, kind="csv")
    first = follower.poll(place)
    assert first.before is not None
    assert first.before.step == 49_999


def test_a_line_in_pieces_counts_once_it_is_whole(log: Writer, follower: LogFollower) -> None:
    follower.poll(log.place)
    log.write("step 1")
    assert steps(follower.poll(log.place)) == []
    log.write("2 lo")
    assert steps(follower.poll(log.place)) == []
    log.write("ss 0.5\nst")
    assert steps(follower.poll(log.place)) == [12]


def test_a_progress_bar_is_news_at_once_and_only_once(log: Writer, follower: LogFollower) -> None:
    follower.poll(log.place)
    for step in (5, 6):
        log.write(f"\r  1%|▏ | {step}/1000 [00:10<01:20, 10.0it/s]")
        assert steps(follower.poll(log.place)) == [step]
        assert steps(follower.poll(log.place)) == []


def test_renaming_does_not_matter_while_the_writer_keeps_its_file(
    log: Writer, follower: LogFollower
) -> None:
    follower.poll(log.place)
    log.path.rename(log.path.with_suffix(".old"))
    log.write("step 1 loss 1\n")
    news = follower.poll(log.place)
    assert (steps(news), news.rotated) == ([1], False)


@pytest.mark.parametrize("number", [1, 2])
def test_rotation_finishes_the_old_file_first(
    log: Writer, follower: LogFollower, number: int
) -> None:
    log.write("step 1 loss 1\n")
    follower.poll(log.place)
    log.write("step 2 loss 1\nstep 3 loss 1\n")
    log.path.rename(log.path.with_name("train.log.1"))
    log.reopen()
    log.write("step 4 loss 1\n" * number)
    news = follower.poll(log.place)
    assert (steps(news), news.rotated, news.truncated) == ([2, 3, *[4] * number], True, False)
    assert news.grew_bytes == 14 * (2 + number)
    log.write("step 5 loss 1\n")
    assert steps(follower.poll(log.place)) == [5]


def test_a_log_with_a_new_name_every_day_is_finished_under_the_old_one(
    log: Writer, follower: LogFollower, tmp_path: Path
) -> None:
    follower.poll(log.place)
    log.write("step 2 loss 1\n")
    log.path = tmp_path / "tomorrow.log"
    log.reopen()
    log.write("step 3 loss 1\n")
    assert steps(follower.poll(log.place)) == [2, 3]


def test_rotation_without_a_trace_of_the_old_file(log: Writer, follower: LogFollower) -> None:
    log.write("step 1 loss 1\nstep")
    follower.poll(log.place)
    log.path.unlink()
    log.reopen()
    log.write(" 9 loss 9\nstep 2 loss 1\n")
    news = follower.poll(log.place)
    assert news.rotated
    assert steps(news)[-1] == 2  # and the rest of the old line was not joined with the new file
    assert 9 not in steps(news)


def test_truncation_starts_again_from_the_top(log: Writer, follower: LogFollower) -> None:
    log.write("step 1 loss 1\n" * 10)
    follower.poll(log.place)
    os.truncate(log.path, 0)
    log.write("step 2 loss 1\n")
    news = follower.poll(log.place)
    assert (steps(news), news.truncated, news.rotated, news.grew_bytes) == ([2], True, False, 14)


def test_truncation_is_seen_even_when_the_log_grew_beyond_its_old_size(
    log: Writer, follower: LogFollower
) -> None:
    log.write("step 1 loss 1\n")
    follower.poll(log.place)
    os.truncate(log.path, 0)
    log.write("step 2 loss 1\nstep 3 loss 1\n")
    news = follower.poll(log.place)
    assert (steps(news), news.truncated) == ([2, 3], True)


def test_copytruncate_under_a_writer_that_does_not_append(
    tmp_path: Path, follower: LogFollower
) -> None:
    """It goes on at its old offset, so the file begins with a hole."""
    log = Writer(tmp_path / "train.log", flags=0)
    log.write("step 1 loss 1\n" * 1000)
    follower.poll(log.place)
    shutil.copy(log.path, tmp_path / "train.log.1")
    os.truncate(log.path, 0)
    log.write("step 2 loss 1\n")
    news = follower.poll(log.place)
    assert (steps(news), news.truncated) == ([2], True)
    os.close(log.fd)


def test_a_flood_is_skipped_to_its_end_and_counted(log: Writer, follower: LogFollower) -> None:
    log.write("step 1 loss 1\n")
    follower.poll(log.place)
    log.write(("y" * 999 + "\n").encode() * 100_000)
    log.write("step 2 loss 1\n")
    news = follower.poll(log.place)
    assert steps(news) == [2]
    assert news.grew_bytes == 100_000_014
    assert news.skipped_bytes == 100_000_014 - following.MAX_NEWS
    assert follower.parser.bytes <= following.MAX_NEWS + 14


def test_a_line_of_100_mb(log: Writer, follower: LogFollower) -> None:
    follower.poll(log.place)
    for _ in range(25):
        log.write(b"z" * (4 << 20))
        assert steps(follower.poll(log.place)) == []
    log.write("\nstep 2 loss 1\n")
    assert steps(follower.poll(log.place)) == [2]
    assert follower.parser.oversized == 1
    assert follower.parser.held == 0


def test_a_binary_log_is_read_past(log: Writer, follower: LogFollower) -> None:
    follower.poll(log.place)
    log.write(bytes(range(256)) * 1000 + b"\nstep 2 loss 1\n")
    assert steps(follower.poll(log.place)) == [2]
    assert follower.parser.binary > 0


def test_a_deleted_log_is_followed_on(log: Writer, follower: LogFollower) -> None:
    follower.poll(log.place)
    log.path.unlink()
    log.write("step 8 loss 1\n")
    assert steps(follower.poll(log.place)) == [8]


def test_a_fifo_is_refused_unopened_and_a_device_too(tmp_path: Path, follower: LogFollower) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), "/dev/zero", "/dev/full"):
        news = follower.poll(LogFile(rights=MINE, path=path, target=path, pid=1, kind="stdout"))
        assert news.gap is not None
        assert news.gap.reason == f"{path}: not a regular file"
        assert not news.stuck
        with pytest.raises(OSError, match="No such device or address"):  # nobody reads the FIFO
            os.open(tmp_path / "fifo", os.O_WRONLY | os.O_NONBLOCK)


def test_a_vanished_descriptor_is_a_gap_and_its_return_is_news(
    log: Writer, follower: LogFollower
) -> None:
    follower.poll(log.place)
    gone = LogFile(
        rights=MINE, path=f"/proc/{os.getpid()}/fd/9999", target="x.log", pid=1, kind="stdout"
    )
    news = follower.poll(gone)
    assert news.gap is not None
    assert "no such file" in news.gap.reason
    log.write("step 4 loss 1\n")
    assert steps(follower.poll(log.place)) == [4]


def test_a_log_on_a_hung_mount_never_blocks(follower: LogFollower, tmp_path: Path) -> None:
    with hung_mount(tmp_path) as mount:
        (mount.source / "train.log").write_text("step 1 loss 1\n")
        path = str(mount.target / "train.log")
        mount.hang()
        news = follower.poll(LogFile(rights=MINE, path=path, target=path, pid=1, kind="stdout"))
        assert news.stuck
        assert news.gap is not None
        assert follower.poll(
            LogFile(rights=MINE, path=path, target=path, pid=1, kind="stdout")
        ).stuck
        mount.recover()


def test_an_event_file_is_only_measured(log: Writer, follower: LogFollower) -> None:
    log.write("step 1 loss 1\n")
    place = LogFile(rights=MINE, path=log.place.path, target="events", pid=1, kind="growth")
    first = follower.poll(place)
    assert (first.before, first.grew_bytes, first.size) == (None, 0, 14)
    log.write("step 2 loss 1\n" * 3)
    news = follower.poll(place)
    assert (steps(news), news.grew_bytes) == ([], 42)
    assert follower.parser.bytes == 0


def test_works_on_the_fake_reader() -> None:
    reader = FakeReader({"/proc/7/fd/1": b"step 1 loss 1\n"})
    follower = LogFollower(reader, LogParser(create_all("logs")))
    place = LogFile(rights=MINE, path="/proc/7/fd/1", target="t.log", pid=7, kind="stdout")
    follower.poll(place)
    reader.files["/proc/7/fd/1"] = b"step 1 loss 1\nstep 2 loss 1\n"
    assert steps(follower.poll(place)) == [2]


def test_read_from_gives_bytes_size_and_identity(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    piece = reader.read_from(str(path), 4, max_bytes=3, rights=MINE)
    facts = path.stat()
    assert isinstance(piece, following.FilePiece)
    assert (piece.data, piece.size) == (b"456", 10)
    assert (piece.inode, piece.device, piece.mtime) == (facts.st_ino, facts.st_dev, facts.st_mtime)
    for offset in (10, 11, 1 << 62):
        beyond = reader.read_from(str(path), offset, max_bytes=3, rights=MINE)
        assert isinstance(beyond, following.FilePiece)
        assert beyond.data == b""
