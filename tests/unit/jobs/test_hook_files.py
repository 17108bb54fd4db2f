"""The hook's own files in a job that closes what it does not know, beside neighbours that sweep, under several threads."""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mldebug.jobs.heartbeat import TornError, parse_record
from mldebug_training.common import shared_files
from mldebug_training.hook import record as written
from unit.training.test_hook import run, site

__all__ = ["site"]
CLOSES = """
    import torch
    from mldebug_training.hook.process import own
    optimizer, record = torch.optim.Optimizer(), own.record
    told, ask = record.signal, record.signal
    os.closerange(3, 256)
    names = [f"job{n}" for n in range(12)]
"""


# --- a job that closes what it does not know -----------------------------------------------------


def test_a_jobs_files_stay_its_own_while_it_steps(site: Path) -> None:
    code = f"""{CLOSES}
    files = [open(name, "wb", buffering=0) for name in names]
    for step in range(200):
        for file in files:
            file.write(b"x" * 1000)
        optimizer.step()
    tell(sizes=[os.path.getsize(name) for name in names], signal=record.signal, fd=record.stacks_fd, asked=told, step=record.step)
    """
    done = run(site, code)
    assert set(done["sizes"]) == {200_000}
    assert (done["signal"], done["fd"]) == (0, -1)
    assert done["asked"] > 0
    assert done["step"] == 200


def test_stacks_are_not_written_into_a_jobs_file(site: Path) -> None:
    code = f"""{CLOSES}
    files = [open(name, "wb", buffering=0) for name in names]
    import time
    answers = record._memory
    for number in (ask, ask - 2):
        os.kill(os.getpid(), number)
    until = time.monotonic() + 60
    while answers[652] == 0 and time.monotonic() < until:
        time.sleep(0.01)
    tell(sizes=[os.path.getsize(name) for name in names], answered=answers[652])
    """
    done = run(site, code)
    assert set(done["sizes"]) == {0}
    assert done["answered"] == 1  # after the stacks, by the same thread


def test_what_a_job_has_not_flushed_survives_the_end_of_the_hook(site: Path) -> None:
    code = f"""{CLOSES}
    files = [open(name, "w") for name in names]
    for file in files:
        file.write("final metrics")
    tell()
    """
    run(site, code)
    assert {(site / f"job{n}").read_text() for n in range(12)} == {"final metrics"}


# --- beside neighbours that sweep ----------------------------------------------------------------


def test_a_living_process_keeps_its_record_without_its_lock(tmp_path: Path) -> None:
    record = written.HookRecord(str(tmp_path))
    os.close(record._file.fd)  # as the job may
    shared_files.sweep(str(tmp_path))
    assert Path(record.path).exists()
    record.close()


@pytest.mark.parametrize("suffix", ["", ".stacks"])
def test_an_earlier_process_of_this_pid_is_swept(tmp_path: Path, suffix: str) -> None:
    start = shared_files.start_ticks() + 1
    left = tmp_path / f"{shared_files.PREFIX}{os.getpid()}-{start}{suffix}"
    left.touch()
    shared_files.sweep(str(tmp_path))
    assert not left.exists()


def trace_of(folder: Path, pid: int, start: int) -> Path:
    """As the hook's process leaves it where it is killed while PyTorch writes."""
    left = folder / f"{shared_files.PREFIX}{pid}-{start}.trace-5f"
    left.mkdir(0o700)
    (left / "trace.json").write_text("[")
    return left


def test_a_trace_that_a_killed_process_was_writing_is_swept(tmp_path: Path) -> None:
    left = trace_of(tmp_path, 2**22, 5)
    elsewhere = tmp_path / "of the job"
    elsewhere.mkdir()
    (elsewhere / "trace.json").touch()
    (tmp_path / f"{shared_files.PREFIX}{2**22}-6.trace-5f").symlink_to(elsewhere)
    shared_files.sweep(str(tmp_path))
    assert not left.exists()
    assert (elsewhere / "trace.json").exists()


def test_a_trace_that_is_being_written_stays(tmp_path: Path) -> None:
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    living = trace_of(tmp_path, os.getppid(), int(stat.rpartition(")")[2].split()[19]))
    hidden = trace_of(tmp_path, 2**22, 5)  # of another pid namespace
    lock = os.open(hidden, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    shared_files.sweep(str(tmp_path))
    assert (living / "trace.json").exists()
    assert (hidden / "trace.json").exists()
    os.close(lock)


def before_the_lock(monkeypatch: pytest.MonkeyPatch, does: Callable[[], None]) -> None:
    """Let a neighbour do something between the first file that is made and its lock."""
    real, once = fcntl.flock, [does]

    def flock(fd: int, how: int) -> None:
        if once:
            once.pop()()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_file_swept_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mldebug-1-1"
    before_the_lock(monkeypatch, path.unlink)
    fd = shared_files.reserve(str(path), 64)
    assert path.stat().st_ino == os.fstat(fd).st_ino
    os.close(fd)


def test_a_file_whose_lock_a_neighbour_has_is_left_to_it_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sweeper, slept = tmp_path / "mldebug-1-1", [-1], []

    def lock() -> None:
        sweeper[0] = os.open(path, os.O_RDWR)
        fcntl.flock(sweeper[0], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            path.unlink()

    before_the_lock(monkeypatch, lock)
    monkeypatch.setattr(shared_files.time, "sleep", sleep)
    fd = shared_files.reserve(str(path), 64)
    assert len(slept) == 2
    assert path.stat().st_ino == os.fstat(fd).st_ino
    os.close(fd)
    os.close(sweeper[0])


# --- several threads -----------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path: Path) -> Iterator[written.HookRecord]:
    one = written.HookRecord(str(tmp_path))
    yield one
    one.close()


def read(record: written.HookRecord) -> Any:
    return parse_record(
        Path(record.path).read_bytes(), os.getpid(), shared_files.start_ticks(), 1e9
    )


class Between:
    """A sequence number at whose writing another thread comes in, once."""

    size = 8

    def __init__(self, at: int, does: Callable[[], None]) -> None:
        self._at, self._does = at, [does]

    def pack(self, number: int) -> bytes:
        return struct.pack("<Q", number)

    def pack_into(self, memory: memoryview, at: int, number: int) -> None:
        struct.pack_into("<Q", memory, at, number)
        if at == self._at and self._does:
            self._does.pop()()


def test_a_write_within_a_write_does_not_end_it(
    record: written.HookRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []

    def other() -> None:
        record.beat(43)
        with pytest.raises(TornError):
            read(record)
        results.append(True)

    monkeypatch.setattr(written, "_SEQUENCE", Between(written._BEGUN_AT, other))
    record.beat(42)
    assert results == [True]
    assert read(record).step == 43


def test_what_comes_during_the_last_moment_of_a_write_is_told(
    record: written.HookRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = Between(written._SEQUENCE_AT, lambda: record.beat(43))
    monkeypatch.setattr(written, "_SEQUENCE", between)
    record.beat(42)
    assert (read(record).step, read(record).beats) == (43, 2)


def test_a_write_that_a_signal_broke_off_does_not_silence_the_record(
    record: written.HookRecord,
) -> None:
    record._writing.acquire()
    for step in range(written.MISSED + 2):
        record.beat(step)
    assert read(record).step == written.MISSED + 1


def test_scalars_that_are_none_leave_the_record_whole(record: written.HookRecord) -> None:
    record.write_scalars({"loss": 0.5})
    wrong: Any = {"loss": 0.1, "bad": "word"}
    with pytest.raises(ValueError, match="word"):
        record.write_scalars(wrong)
    assert read(record).scalars == {"loss": 0.5}
