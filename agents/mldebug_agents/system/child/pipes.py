"""What the main process keeps of a child that the helper forked: its status pipe and its output pipes.

All reads are non-blocking; who waits does so with poll and a deadline.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Self

from mldebug_agents.system.child.helper import NEWS
from mldebug_agents.system.procfs import parse_stat

_CHUNK = 1 << 16


class ChildProcess:
    """One child, as its status pipe reports it: `pid` once forked, `errno` if the exec failed,
    `wait_status` once it has ended and was reaped.
    """

    def __init__(
        self,
        number: int,
        fd: int,
        argv: tuple[str, ...],
        owner: object = None,
        *,
        leaves: bool = False,
    ) -> None:
        """`owner`: of the process that it looks at; None: of nobody's. `leaves`: it has something to take back before it ends."""
        self.number = number
        self.fd = fd
        self.argv = argv
        self.pid: int | None = None
        self.errno = 0
        self.wait_status: int | None = None
        self.over = False  # it ended, or nobody is left to say more
        self.start_ticks = 0
        self.owner = owner
        self.leaves = leaves
        self._lock = threading.Lock()  # the pipe is not closed while another thread reads it

    def describe(self, words: str) -> None:
        """Set the words under which this child is listed if it cannot be ended."""
        self.argv = (words,)

    @property
    def returncode(self) -> int | None:
        """The exit code (negative: the signal), as `subprocess` has it.

        None where the child never ran or still runs.
        """
        if self.wait_status is None or self.errno:
            return None
        return os.waitstatus_to_exitcode(self.wait_status)

    def update(self) -> None:
        """Read what the child's status pipe holds now, without waiting. Any thread may call."""
        with self._lock:
            while not self.over:
                try:
                    news = os.read(self.fd, NEWS.size * 8)
                except BlockingIOError:
                    return
                self.over = not news
                for kind, value in NEWS.iter_unpack(
                    news
                ):  # records are written whole: they are shorter than PIPE_BUF
                    self._note(kind, value)

    def note_start(self) -> None:
        """Read the child's start time, which with its pid identifies it even after the pid is used again."""
        with contextlib.suppress(OSError):  # it has ended, and was reaped
            stat = parse_stat(Path(f"/proc/{self.pid}/stat").read_text(errors="replace"))
            self.start_ticks = stat.start_ticks if stat else 0

    def close(self) -> None:
        """Close the child's status pipe. Any thread may call."""
        with self._lock:
            self.over = True
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    def _note(self, kind: bytes, value: int) -> None:
        if kind == b"P":
            self.pid = value
        elif kind == b"E":
            self.errno = value
        else:
            self.wait_status = value
            self.over = True


class OutputPipe:
    """A pipe to which a program writes, read up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.fd, self.inlet = os.pipe()
        os.set_blocking(self.fd, False)
        self._limit = limit
        self.ended = False
        self.flooded = False
        self._data = bytearray()
        self._reported = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        self.close_inlet()

    def close_inlet(self) -> None:
        """Close our copy of the writing end; else the end of the data is never seen."""
        if self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1

    def read(self) -> bool:
        """Read one chunk. False where nothing is there now, or the program has closed its end."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        self.ended = not chunk
        space = self._limit - len(self._data)
        self.flooded = self.flooded or len(chunk) > space
        self._data += chunk[:space]
        return not self.ended

    def news(self) -> bytes:
        """The bytes of the pipe that `read` has added since the last call of `news`."""
        fresh = bytes(self._data[self._reported :])
        self._reported = len(self._data)
        return fresh

    def drain(self) -> bytes:
        """Read what is in the pipe now, and return everything that has arrived, at most `limit` bytes."""
        while not self.flooded and self.read():
            pass
        return bytes(self._data)
