"""The line that says that a command is still at work."""

import io
import signal
import time

import pytest

from mldebug.core import progress
from mldebug.core.progress import ERASE, progress_line


class Terminal(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def until_shown(stream: Terminal, words: str) -> None:
    """Wait for words; a signal interrupts no sleep, so look often."""
    deadline = time.monotonic() + 20
    while words not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.01)


def test_a_long_command_says_what_it_does_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "LATE", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.05)
    stream = Terminal()
    with progress_line("looking at all ranks", stream=stream):
        until_shown(stream, "looking at all ranks … 0 s")
    assert stream.getvalue().endswith(ERASE)


def test_a_short_command_shows_nothing() -> None:
    stream = Terminal()
    with progress_line("looking", stream=stream):
        pass
    assert stream.getvalue() == ""


def test_a_file_or_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LATE", 0.01)
    stream = io.StringIO()
    with progress_line("looking", stream=stream):
        time.sleep(0.1)
    assert stream.getvalue() == ""


def test_the_timer_and_the_signal_are_as_before_also_after_an_error() -> None:
    before, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with pytest.raises(ValueError, match="bad"), progress_line("looking", stream=Terminal()):
        raise ValueError("bad")
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == pytest.approx(timer[0], abs=60)


def test_results_have_the_terminal_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LATE", 0.05)
    monkeypatch.setattr(progress, "EVERY", 3600)
    stream = Terminal()
    with progress_line("measuring", stream=stream) as line:
        until_shown(stream, "measuring … 0 s")
        line.now("writing")
        line.before(stream.write)("a row\n")
        assert stream.getvalue().endswith(f"0 s{ERASE}a row\n")
        line.show()
    assert stream.getvalue().endswith(f"writing … 0 s{ERASE}")


def test_a_line_inside_another_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LATE", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.05)
    stream = Terminal()
    with progress_line("outer", stream=stream):
        with progress_line("inner", stream=stream):
            until_shown(stream, "inner …")
        stream.truncate(0)
        until_shown(stream, "outer …")
