"""Prints of many ranks that share one terminal, pipe or file: lines stay whole, and no rank waits for another.

There is no lock: if the rank that held it were stopped, all others would wait. Instead a text is written in pieces of whole lines
of at most PIPE_BUF bytes, which the kernel does not mix with other writes to a pipe. If a reader stops reading, a rank waits for it
once, until a deadline; then lines are dropped and counted.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.writing import write_all
from mldebug_training.hook.ranks import rank_and_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PIECE = select.PIPE_BUF  # bytes: 4096 on Linux
WAIT = 1.0  # seconds


def own_rank() -> int | None:
    """This process's global rank, from torch.distributed or else the environment; None where neither has one."""
    try:
        there = sys.modules["torch.distributed"]
        if there.is_available() and there.is_initialized():
            return int(there.get_rank())
    except Exception as error:
        pass_on(error)
    rank = rank_and_size()[0]
    return rank if rank >= 0 else None


def rank_print(
    *values: object,
    sep: str = " ",
    file: Any = None,
    only: int | tuple[int, ...] | list[int] | None = None,
    wait: float = WAIT,
) -> bool:
    """Print as `print` does, with `[rank 3] ` before each line. Returns whether all of it was written; never raises.

    `file`: an open file, a descriptor, or a path that is appended to; None: sys.stdout. `only`: the rank or ranks that print;
    the others do nothing and return True. `wait`: seconds to wait at most for a slow reader. A process without a rank prints
    without a prefix, whatever `only` is.
    """
    try:
        rank = own_rank()
        chosen = only if isinstance(only, (tuple, list)) else (only,)
        if only is not None and rank is not None and rank not in chosen:
            return True
        return write_lines(sep.join(map(_text, values)), rank=rank, file=file, wait=wait)
    except Exception as error:
        pass_on(error)
        return False


def write_lines(text: str, *, rank: int | None, file: Any = None, wait: float = WAIT) -> bool:
    """Write the text with `[rank N] ` before each line, or without where `rank` is None. Returns whether all of it was written.

    `file`: as in `rank_print`. `wait`: seconds to wait at most for a slow reader. Never raises: lines that could not be written
    are counted by `dropped_lines`.
    """
    prefix = "" if rank is None else f"[rank {rank}] "
    try:
        return _lines.write(text, prefix, sys.stdout if file is None else file, wait)
    except Exception as error:
        pass_on(error)
        _lines.dropped += text.count("\n") + 1
        return False


def dropped_lines() -> int:
    """How many lines this process could not write so far."""
    return _lines.dropped


def pieces(text: str, prefix: str) -> Iterator[bytes]:
    """Cut the text into writes of at most PIPE_BUF bytes, with `prefix` before each line.

    Each piece holds whole lines; only a line longer than PIPE_BUF is cut, and each part of it is a line with a prefix.
    """
    piece = b""
    for line in text.removesuffix("\n").split("\n"):
        for part in _parts(line.encode("utf-8", "backslashreplace"), prefix.encode()):
            if piece and len(piece) + len(part) > PIECE:
                yield piece
                piece = b""
            piece += part
    yield piece


def _parts(line: bytes, prefix: bytes) -> Iterator[bytes]:
    room, begin = PIECE - len(prefix) - 1, 0
    while len(line) - begin > room:
        cut = begin + room
        while line[cut] & 0xC0 == 0x80:  # inside a character
            cut -= 1
        yield prefix + line[begin:cut] + b"\n"
        begin = cut
    yield prefix + line[begin:] + b"\n"


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        pass_on(error)
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"


def _descriptor(file: Any) -> int:
    """The number below an open file; -1: there is none, as in a notebook."""
    try:
        return int(file.fileno())
    except Exception as error:
        pass_on(error)
        return -1


class _Lines:
    """What is known of those who read."""

    def __init__(self) -> None:
        self.dropped = 0
        self._unreported = 0  # of them: nobody has been told yet
        self._behind: set[tuple[int, int]] = set()  # files that nobody read: not waited for again

    def write(self, text: str, prefix: str, file: Any, wait: float) -> bool:
        if isinstance(file, (str, os.PathLike)):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(file, flags, 0o644)
            try:
                return self._to_descriptor(fd, text, prefix, wait)
            finally:
                os.close(fd)
        fd = file if isinstance(file, int) else _descriptor(file)
        if fd < 0:
            file.write(b"".join(pieces(text, prefix)).decode())
            file.flush()
            return True
        if fd is not file and stat.S_ISREG(os.fstat(fd).st_mode):
            file.flush()  # what was printed before stays before
        return self._to_descriptor(fd, text, prefix, wait)

    def _to_descriptor(self, fd: int, text: str, prefix: str, wait: float) -> bool:
        about = os.fstat(fd)
        key = about.st_dev, about.st_ino
        until = time.monotonic() + (0.0 if key in self._behind else wait)
        todo = list(pieces(text, prefix))
        if self._unreported:
            todo.insert(
                0, next(pieces(f"({self._unreported} lines before this one were dropped)", prefix))
            )
        out = write_all(fd, todo, until)
        if self._unreported and out:
            self._unreported = 0
        return self._judge(key, todo[out:] if out else list(pieces(text, prefix)))

    def _judge(self, key: tuple[int, int], left: list[bytes]) -> bool:
        if not left:
            self._behind.discard(key)
            return True
        self._behind.add(key)
        lines = sum(piece.count(b"\n") for piece in left)
        self.dropped += lines
        self._unreported += lines
        return False


_lines = _Lines()
