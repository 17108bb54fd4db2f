"""The rank-safe print among real processes: whole lines, and nobody waits for one that is stopped or does not read."""

import ast
import fcntl
import io
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mldebug_training
from mldebug_training.helpers.rank_print import (
    PIECE,
    _Lines,
    dropped_lines,
    pieces,
    rank_print,
    write_lines,
)
from shared.system.patience import PATIENCE

ROOT = str(Path(mldebug_training.__file__).parents[1])
DEADLINE = 60.0


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("mldebug_training.helpers.rank_print._lines", _Lines())


@pytest.fixture
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    read, write = os.pipe()
    with FileIO(read, "r") as reader, FileIO(write, "w") as writer:
        yield reader, writer


def rank(code: str, number: int, **options: Any) -> subprocess.Popen[str]:
    """A real process that is this rank."""
    env = {**os.environ, "PYTHONPATH": ROOT, "RANK": str(number), "WORLD_SIZE": "8"}
    code = "from mldebug_training import rank_print\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", code], env=env, text=True, **options)


def fill(end: int) -> int:
    """Fill a pipe to its last page. Returns the bytes."""
    again = os.open(f"/proc/self/fd/{end}", os.O_WRONLY | os.O_NONBLOCK)
    count = 0
    try:
        while True:
            count += os.write(again, b"." * PIECE)
    except BlockingIOError:
        return count
    finally:
        os.close(again)


# --- a line of its own ---------------------------------------------------------------------------


def test_it_prints_as_print_does_with_its_rank_before_each_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    rank_print("loss", 0.5, None, sep="=", file=path)
    monkeypatch.setenv("RANK", "3")
    rank_print("two\nlines", file=str(path))
    rank_print(file=path)
    assert path.read_text() == "loss=0.5=None\n[rank 3] two\n[rank 3] lines\n[rank 3] \n"


def test_the_rank_of_the_process_group_goes_before_the_environments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setenv("RANK", "3")
    rank_print("x", file=tmp_path / "out")
    group.get_rank = lambda: 1 / 0
    rank_print("y", file=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "[rank 5] x\n[rank 3] y\n"


@pytest.mark.parametrize(
    ("only", "printed"), [(0, "0"), (2, ""), ((1, 0), "01"), ([1], "1"), ((), ""), (None, "01")]
)
def test_only_some_ranks_print(
    only: Any, printed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for one in "01":
        monkeypatch.setenv("RANK", one)
        assert rank_print("x", only=only, file=tmp_path / "out")
    text = (tmp_path / "out").read_text() if printed else ""
    assert text == "".join(f"[rank {one}] x\n" for one in printed)


def test_without_a_rank_everybody_prints_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert rank_print("plain", only=0)
    assert capsys.readouterr().out == "plain\n"


def test_what_cannot_be_made_into_text_is_named() -> None:
    class Odd:
        def __str__(self) -> str:
            raise KeyError

    out = io.StringIO()
    assert rank_print(Odd(), "\ud800", file=out)
    assert out.getvalue() == "<Odd that cannot be printed: KeyError> \\ud800\n"


@pytest.mark.parametrize(
    "text", ["", "\n\n", "a" * 20_000, "é" * 9_000, "a" + "é" * 9_000, "x\n" * 5_000, "a" * 4086]
)
def test_every_piece_is_whole_lines_that_a_pipe_keeps_together(text: str) -> None:
    found = list(pieces(text, "[rank 3] "))
    assert all(0 < len(one) <= PIECE for one in found)
    lines = b"".join(found).decode().split("\n")
    assert lines.pop() == ""
    assert all(line.startswith("[rank 3] ") for line in lines)
    bodies = [line.removeprefix("[rank 3] ") for line in lines]
    assert "".join(bodies) == text.replace("\n", "")
    if len(text) < PIECE:
        assert "\n".join(bodies) == text.removesuffix("\n")


# --- among others --------------------------------------------------------------------------------

TALK = """
    import time
    for turn in range(400):
        rank_print(f"{turn:04d} " + "{RANK}" * (20 + turn * 7 % 3000), wait=60)
"""


def test_lines_of_four_ranks_stay_whole(pipe: tuple[FileIO, FileIO]) -> None:
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(rank(TALK.replace("{RANK}", str(one)), one, stdout=pipe[1]))
            for one in range(4)
        ]
        pipe[1].close()
        with os.fdopen(os.dup(pipe[0].fileno())) as file:
            lines = file.read().splitlines()
        assert [one.wait(DEADLINE) for one in ranks] == [0] * 4
    for number in range(4):
        mine = [line for line in lines if line.startswith(f"[rank {number}] ")]
        turns = [int(line.split()[2]) for line in mine]
        assert turns == list(range(400))
        for turn, line in zip(turns, mine, strict=True):
            assert line.split()[3] == str(number) * (20 + turn * 7 % 3000)
    assert len(lines) == 1600


def test_a_stopped_rank_that_holds_what_it_can_hold_stops_nobody(
    pipe: tuple[FileIO, FileIO], tmp_path: Path
) -> None:
    """It is stopped in the middle of printing, with locks on the pipe, the module's file and its folder."""
    hold = f"""
        import fcntl, os
        import mldebug_training.helpers.rank_print as module
        files = [open(module.__file__), open({str(tmp_path / "out")!r}, "a")]
        for one in (*files, os.open(os.path.dirname(module.__file__), os.O_RDONLY)):
            fcntl.flock(one, fcntl.LOCK_EX)
        while True:
            rank_print("held " * 500, file={str(tmp_path / "out")!r})
            rank_print("held " * 500)
    """
    speak = f"""
        for turn in range(200):
            assert rank_print(turn, file={str(tmp_path / "out")!r})
            assert rank_print(turn, wait=60)
    """
    taken: list[bytes] = []
    reader = threading.Thread(
        target=lambda: taken.extend(iter(lambda: os.read(pipe[0].fileno(), 1 << 16), b""))
    )
    reader.start()
    stopped = rank(hold, 0, stdout=pipe[1])
    try:
        until = time.monotonic() + DEADLINE * PATIENCE
        while not any(b"held" in one for one in taken) and time.monotonic() < until:
            time.sleep(0.01)
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        with (
            open(mldebug_training.helpers.rank_print.__file__) as file,
            pytest.raises(BlockingIOError),
        ):  # type: ignore[attr-defined]
            fcntl.flock(
                file, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # the seeds' lock: they would wait here
        others = [rank(speak, one, stdout=pipe[1]) for one in (1, 2, 3)]
        assert [one.wait(DEADLINE) for one in others] == [0, 0, 0]
    finally:
        stopped.kill()
        stopped.wait(DEADLINE)
        pipe[1].close()
        reader.join(DEADLINE)
    for text in (b"".join(taken).decode(), (tmp_path / "out").read_text()):
        for one in (1, 2, 3):
            mine = re.findall(rf"^\[rank {one}\] (\d+)$", text, re.MULTILINE)
            assert [int(turn) for turn in mine] == list(range(200))


# --- nobody reads --------------------------------------------------------------------------------


def test_a_full_pipe_is_waited_for_once_and_then_counted(pipe: tuple[FileIO, FileIO]) -> None:
    size = fill(pipe[1].fileno())
    began = time.monotonic()
    assert not rank_print("one\ntwo", file=pipe[1], wait=0.3)
    assert 0.3 <= time.monotonic() - began < 20 * PATIENCE
    began = time.monotonic()
    for _ in range(20):
        assert not rank_print("more", file=pipe[1], wait=5)
    assert time.monotonic() - began < 5 * PATIENCE  # the deadline was not waited for again
    assert dropped_lines() == 22
    assert len(os.read(pipe[0].fileno(), 1 << 20)) == size
    assert rank_print("later", file=pipe[1])
    assert rank_print("again", file=pipe[1])
    text = os.read(pipe[0].fileno(), 1 << 20).decode()
    assert text == "(22 lines before this one were dropped)\nlater\nagain\n"


def test_a_reader_that_comes_back_in_time_loses_nothing(pipe: tuple[FileIO, FileIO]) -> None:
    size = fill(pipe[1].fileno())
    got: list[bytes] = []

    def read() -> None:
        while b"end" not in b"".join(got):
            got.append(os.read(pipe[0].fileno(), 1 << 16))

    threading.Timer(0.2, read).start()
    assert rank_print("x" * 100_000 + "end", file=pipe[1], wait=DEADLINE)
    until = time.monotonic() + DEADLINE * PATIENCE
    while b"end" not in b"".join(got) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(b"".join(got)[size:].replace(b"\n", b"")) == 100_003


def test_a_print_does_not_make_the_jobs_own_prints_non_blocking(
    pipe: tuple[FileIO, FileIO],
) -> None:
    rank_print("x", file=pipe[1])
    assert not fcntl.fcntl(pipe[1].fileno(), fcntl.F_GETFL) & os.O_NONBLOCK


@pytest.mark.parametrize("action", ["SIG_IGN", "SIG_DFL"])
def test_a_pipe_that_nobody_has_open_ends_no_training(
    action: str, pipe: tuple[FileIO, FileIO]
) -> None:
    pipe[0].close()
    code = f"""
        import signal, sys
        from mldebug_training.helpers.rank_print import dropped_lines
        signal.signal(signal.SIGPIPE, signal.{action})
        told = [rank_print("x"), rank_print("y"), dropped_lines()]
        assert signal.getsignal(signal.SIGPIPE) == signal.{action}
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        print(told, file=sys.stderr)
    """
    process = rank(code, 0, stdout=pipe[1], stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, errors) == (0, "[False, False, 2]\n")


@pytest.mark.parametrize("how", ["sys.stdout.close()", "sys.stdout = None", "os.close(1)"])
def test_no_stdout_at_all_ends_no_training(how: str) -> None:
    code = f"""
        import os, sys
        {how}
        sys.stderr.write(str(rank_print("x")))
        os._exit(0)
    """
    process = rank(code, 0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, errors) == (0, "False")


def test_a_full_disk_is_counted() -> None:
    assert not rank_print("x", file="/dev/full")
    assert dropped_lines() == 1


def test_a_socket_that_nobody_reads_is_left_behind() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert rank_print("x", file=ours)
        assert theirs.recv(100) == b"x\n"
        began = time.monotonic()
        assert not rank_print("y" * 2_000_000, file=ours, wait=0.2)
        assert not rank_print("z", file=ours, wait=DEADLINE)
        assert time.monotonic() - began < DEADLINE / 2 * PATIENCE
    until = time.monotonic() + DEADLINE * PATIENCE
    while "mldebug-print" in [one.name for one in threading.enumerate()]:
        assert time.monotonic() < until  # its thread ended with the socket
        time.sleep(0.01)


def test_a_terminal_is_written_to() -> None:
    ours, theirs = pty.openpty()
    try:
        assert rank_print("x", file=theirs)
        assert os.read(ours, 100) == b"x\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


def test_what_was_printed_to_a_file_before_stays_before(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        print("first", file=file)
        rank_print("second", file=file)
        print("third", file=file)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"


def test_a_print_to_nowhere_is_counted_and_never_raises(tmp_path: Path) -> None:
    assert not rank_print("x", file=tmp_path / "no" / "such")
    assert not rank_print("x\ny", file=object())
    assert not write_lines("x", rank=1, file=99_999)
    assert dropped_lines() == 4


def test_a_fifo_without_a_reader_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert not rank_print("x", file=tmp_path / "fifo")
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


# --- every Python --------------------------------------------------------------------------------

SOURCES = sorted(Path(mldebug_training.__file__).parent.rglob("*.py"))
OTHERS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_training_side_is_written_for_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_the_helpers_work_in_every_python(version: str) -> None:
    found = [one for one in OTHERS if one.parts[-3].startswith(f"{version}.")]
    if not found:
        pytest.skip(f"there is no Python {version} here")
    code = """
        import mldebug_training, sys
        assert not {"mldebug_training.helpers.rank_print", "signal", "threading"} & set(sys.modules)
        for name in mldebug_training.__all__:
            getattr(mldebug_training, name)
        try:
            mldebug_training.nothing
        except AttributeError:
            mldebug_training.rank_print("x", mldebug_training.MemoryGuard(2**60).check() is not None)
    """
    done = subprocess.run(
        [found[0], "-W", "error", "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": ROOT, "RANK": "1"}, capture_output=True, text=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[rank 1] x True\n", "")
