"""The terminal of a full-screen command: keys come one by one, lines are drawn where they changed, and at the end all is as before,
also after a signal or an error.
"""

import contextlib
import os
import select
import signal
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Self

from rich.color import ColorSystem
from rich.style import Style

from mldebug.core.errors import UsageError
from mldebug.status.top.screen import TopLine

ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"  # another screen, no cursor; back
KEYS = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
    "\r": "enter", "\n": "enter", "\x1b": "esc", "k": "up", "j": "down", " ": "pagedown",
}  # fmt: skip
NEWS, GONE = "news", "gone"  # in place of keys: something changed, the terminal was closed
SMALLEST = (80, 24)  # of a terminal that does not tell its size


def check_terminal(environ: dict[str, str]) -> None:
    """Raise UsageError where no cursor can be moved: in a pipe, or on a terminal that is said to be dumb."""
    way_out = "`mldebug top --once` prints one screen, `mldebug status` all there is"
    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError(
            "top needs a terminal: it reads keys and draws on the whole screen", way_out
        )
    if environ.get("TERM", "") in ("", "dumb", "unknown"):
        kind = f"TERM={environ['TERM']}" if environ.get("TERM") else "TERM is not set"
        raise UsageError(f"this terminal cannot move its cursor ({kind}), so top cannot draw on it", way_out)  # fmt: skip


class FullScreen:
    """The whole terminal. `color`: whether lines may have colours. `with FullScreen(…) as screen:` gives it back at the end."""

    def __init__(self, *, color: bool, stdin: int = 0, stdout: int = 1) -> None:
        self._in, self._out, self._color = stdin, stdout, color
        self._shown: list[str] = []
        self._size = (0, 0)
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._in)
        for number, handler in ((signal.SIGWINCH, self._resized), (signal.SIGTSTP, self._stopped)):
            self._handlers[number] = signal.signal(number, handler)
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _begin(self) -> None:
        tty.setcbreak(self._in)
        self._write(ENTER)
        self._shown, self._size = [], (0, 0)

    def _end(self) -> None:
        """A terminal that is gone keeps nothing."""
        with contextlib.suppress(OSError):
            self._write(LEAVE)
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self.wake()

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets the terminal as it was, until `fg`."""
        self._end()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})  # it stops here
        signal.signal(signal.SIGTSTP, self._stopped)
        self._begin()
        self.wake()

    def wake(self) -> None:
        """Have `keys` return: something is to be drawn. From any thread and from signal handlers."""
        with contextlib.suppress(OSError):  # full, or closed: it wakes anyway
            os.write(self._wake_out, b"w")

    def size(self) -> tuple[int, int]:
        """The size of the terminal in columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            return SMALLEST
        return (columns or SMALLEST[0], lines or SMALLEST[1])

    def keys(self, seconds: float) -> Iterator[str]:
        """The keys that are pressed within so many seconds; returns earlier with `NEWS` after `wake`, with `GONE` where there is no
        terminal any more.
        """
        ready, _, _ = select.select([self._in, self._wake_in], [], [], max(0.0, seconds))
        if self._wake_in in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_in, 4096)
            yield NEWS
        if self._in in ready:
            try:
                data = os.read(self._in, 1024)
            except OSError:
                data = b""
            yield from keys_of(data.decode(errors="replace")) if data else (GONE,)

    def draw(self, lines: Sequence[TopLine]) -> None:
        """Show these lines: only those that differ from what is shown are written."""
        if self.size() != self._size:
            self._size, self._shown = self.size(), []
            self._write(b"\x1b[2J")
        painted = [self._styled(line) for line in lines]
        parts = [
            f"\x1b[{number + 1};1H{text}\x1b[K"
            for number, text in enumerate(painted)
            if number >= len(self._shown) or self._shown[number] != text
        ]
        self._shown = painted
        self._write("".join(parts).encode(errors="replace"))

    def _styled(self, line: TopLine) -> str:
        if not line.style:
            return line.text
        style = Style.parse(line.style)
        if not self._color:
            style = style.without_color
        return style.render(line.text, color_system=ColorSystem.STANDARD)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]


def keys_of(text: str) -> Iterator[str]:
    """The names of the keys in what a terminal has sent; sequences that are not known are left out."""
    while text:
        if text[0] == "\x1b" and len(text) > 1 and text[1] in "[O":
            end = next((n for n in range(2, len(text)) if "@" <= text[n] <= "~"), len(text) - 1)
            sequence, text = text[: end + 1], text[end + 1 :]
            if key := KEYS.get(sequence):
                yield key
            continue
        key, text = text[0], text[1:]
        yield KEYS.get(key, key)
