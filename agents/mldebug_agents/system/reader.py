"""Reads files that may never answer: paths that a job names, and /proc files of a process that holds its own locks.

One reader child (`child/reader_child.py`) serves all of them, in order, so when no answer comes in
time it is known which path is to blame. That child is left where it is: a blocked read is evidence,
and its return is the only sure sign that the path works again. Until then the path and its folder
are *stuck*: they are refused at once, and a new child reads the rest.
"""

import os
from collections.abc import Sequence
from typing import Self

from mldebug_agents.system.child.job_paths import OPERATOR, Rights
from mldebug_agents.system.child.link import WorkerStarter
from mldebug_agents.system.child.listing import FolderListing, unpack
from mldebug_agents.system.child.reader_child import (
    AROUND,
    HEAD,
    MAX_SOURCE,
    ReadAnswer,
    ReadOperation,
    ReadRequest,
)
from mldebug_agents.system.child.reader_writes import ASKED_FOR, WorkerServerQuestion
from mldebug_agents.system.process.timed_read import TimedRead, parse_timed
from mldebug_agents.system.reader_answers import (
    FilePiece,
    ReaderClient,
    SourceLines,
    Tail,
    Unreadable,
)

__all__ = ["FilePiece", "Reader", "SourceLines", "Tail", "Unreadable"]

TIMEOUT = 2.0  # seconds for one path


class Reader:
    """Reads paths through the reader child, and returns `Unreadable` instead of raising. Any thread
    may call; calls take turns.

    Paths are absolute. Below `/proc/PID/root/` links resolve inside that root; a final link is
    refused. `timeout`: seconds for each path. `rights`: with whose rights a path is opened
    (`host.rights` knows those of a rank); without them nothing that belongs to a process is opened.
    `place`: the first part of the path, which the agent itself found out; no link below it is
    followed.
    """

    def __init__(self, spawner: WorkerStarter) -> None:
        self._spawner = spawner
        self._client = ReaderClient(spawner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the reader child, and earlier ones that hang."""
        self._client.close()

    @property
    def stuck(self) -> tuple[str, ...]:
        """The paths at which a reader child still hangs, because reading them has not returned."""
        return self._client.stuck

    def read_many(
        self, paths: Sequence[str], *, max_bytes: int, timeout: float = TIMEOUT
    ) -> dict[str, bytes | Unreadable]:
        """Read the first `max_bytes` of each kernel file (/proc, /sys). Every path has an entry in the result.

        Paths for which there was no time (`TOTAL`), no room (`MAX_TOGETHER`) or no reader child
        have errno EAGAIN: try again later.
        """
        answers = self._ask(
            ReadRequest(ReadOperation.KERNEL, (), max_bytes), paths, timeout=timeout
        )
        return {path: _data(answer) for path, answer in answers.items()}

    def read_file(
        self, path: str, *, rights: Rights, max_bytes: int, timeout: float = TIMEOUT
    ) -> bytes | Unreadable:
        """Read all of a regular file, in `timeout` seconds at most; a file larger than `max_bytes` is refused."""
        return _data(
            self._ask_one(ReadOperation.FILE, path, rights=rights, limit=max_bytes, timeout=timeout)
        )

    def read_tail(
        self, path: str, *, rights: Rights, max_bytes: int, timeout: float = TIMEOUT
    ) -> Tail | Unreadable:
        """Read the last `max_bytes` of a regular file, in `timeout` seconds at most. `/proc/PID/fd/N` stands for the open
        file, even if it was deleted.
        """
        answer = self._ask_one(
            ReadOperation.TAIL, path, rights=rights, limit=max_bytes, timeout=timeout
        )
        return (
            answer
            if isinstance(answer, Unreadable)
            else Tail(answer.data, answer.size, answer.mtime)
        )

    def read_from(
        self,
        path: str,
        offset: int,
        *,
        rights: Rights,
        place: str = "",
        max_bytes: int,
        timeout: float = TIMEOUT,
    ) -> FilePiece | Unreadable:
        """Read at most `max_bytes` of a regular file from `offset` (bytes) on, in `timeout` seconds at most; no data where
        the file ends before that.
        """
        answer = self._ask_one(
            ReadOperation.FROM,
            path,
            rights=rights,
            place=place,
            limit=max_bytes,
            line=max(0, offset),
            timeout=timeout,
        )
        if isinstance(answer, Unreadable):
            return answer
        return FilePiece(answer.data, answer.size, answer.mtime, *(answer.file_id or (0, 0)))

    def read_heads(
        self,
        path: str,
        start: int,
        stride: int,
        *,
        rights: Rights,
        count: int,
        timeout: float = TIMEOUT,
    ) -> bytes | Unreadable:
        """Read the 64 bytes at offset `start` of a regular file and every `stride` bytes from there, at most `count` times
        and in `timeout` seconds. Returns them joined.
        """
        place = (start & 0xFFFFFFFF) | (stride & 0xFFFFFFFF) << 32
        limit = HEAD * count
        answer = self._ask_one(
            ReadOperation.HEADS, path, rights=rights, limit=limit, line=place, timeout=timeout
        )
        return _data(answer)

    def read_lines(
        self, path: str, line: int, *, rights: Rights, timeout: float = TIMEOUT
    ) -> SourceLines | Unreadable:
        """Read one line (the first is 1) of a source file of at most 4 MiB, and two before and after it, each cut after 400
        characters, in `timeout` seconds at most.
        """
        data = _data(
            self._ask_one(
                ReadOperation.LINES,
                path,
                rights=rights,
                limit=MAX_SOURCE,
                line=max(0, line),
                timeout=timeout,
            )
        )
        if not isinstance(data, bytes):
            return data
        lines = tuple(data.decode(errors="replace").split("\n"))
        return SourceLines(max(1, line - AROUND), lines)

    def read_memory(
        self, pid: int, address: int, *, max_bytes: int, timeout: float = TIMEOUT
    ) -> bytes | Unreadable:
        """Read a process's memory from `address` on, in `timeout` seconds at most; less than `max_bytes` where the mapping
        ends.
        """
        if not 0 < address < 1 << 63:
            return Unreadable("not an address")
        path = f"/proc/{pid}/mem"
        return _data(
            self._ask_one(
                ReadOperation.MEMORY, path, limit=max_bytes, line=address, timeout=timeout
            )
        )

    def list_folder(
        self,
        path: str,
        *,
        rights: Rights,
        place: str = "",
        depth: int,
        most: int,
        timeout: float = TIMEOUT,
    ) -> FolderListing | Unreadable:
        """List what lies below a folder: at most `most` entries, `depth` levels deep, in `timeout` seconds. No link is
        followed, no other file system is entered.
        """
        data = _data(
            self._ask_one(
                ReadOperation.LIST,
                path,
                rights=rights,
                place=place,
                limit=most,
                line=depth,
                timeout=timeout,
            )
        )
        return data if isinstance(data, Unreadable) else unpack(data)

    def time_read(
        self, path: str, block: int, *, rights: Rights, size: int, timeout: float = TIMEOUT
    ) -> TimedRead | Unreadable:
        """How long it takes to find and open a regular file and to read `size` bytes of it past the kernel's caches: its `block`th
        block of that size, modulo how many it has. The bytes are thrown away. Where the filesystem knows no such reads (O_DIRECT)
        the errno is EINVAL.
        """
        data = _data(
            self._ask_one(
                ReadOperation.TIMED, path, rights=rights, limit=size, line=block, timeout=timeout
            )
        )
        return data if isinstance(data, Unreadable) else parse_timed(data)

    def is_link(self, path: str, *, rights: Rights, timeout: float = TIMEOUT) -> bool | Unreadable:
        """Whether the path itself is a symbolic link, also a broken one; False where nothing is there. `timeout`: seconds."""
        return _truth(self._ask_one(ReadOperation.LINK, path, rights=rights, timeout=timeout))

    def write_byte(
        self, path: str, *, rights: Rights, timeout: float = TIMEOUT
    ) -> Unreadable | None:
        """Write one byte into a FIFO that belongs to the user of these rights.

        None on success; it fails at once where nobody reads the FIFO.
        """
        answer = self._ask_one(
            ReadOperation.POKE, path, rights=rights, line=rights.uid, timeout=timeout
        )
        return answer if isinstance(answer, Unreadable) else None

    def another(self) -> "Reader":
        """A second reader with a child process and a lock of its own, for a question that may take long.

        Close it with `take_back`.
        """
        return Reader(self._spawner)

    def take_back(self, other: "Reader") -> None:
        """Close a reader that `another` returned.

        Paths at which its child hangs count as stuck for this reader, too, until that child is
        gone.
        """
        self._client.take_back(other._client)

    def ask_server(
        self,
        place: str,
        question: WorkerServerQuestion,
        *,
        rights: Rights,
        max_bytes: int,
        timeout: float = ASKED_FOR,
    ) -> bytes | Unreadable:
        """Ask PyTorch's worker server of a rank one question; returns its answer.

        `place`: the path of its socket below `/proc/PID/root`, or `tcp:PORT:PID:ADDRESS` on the
        loopback interface.
        """
        return _data(
            self._ask_one(
                ReadOperation.ASK,
                place,
                rights=rights,
                limit=max_bytes,
                line=int(question),
                timeout=timeout,
            )
        )

    def _ask_one(
        self,
        operation: ReadOperation,
        path: str,
        *,
        rights: Rights = OPERATOR,
        place: str = "",
        limit: int = 0,
        line: int = 0,
        timeout: float,
    ) -> ReadAnswer | Unreadable:
        """Where no rights are named the reader child opens no path of a job."""
        known = len(os.fsencode(place)) if place and path.startswith(place) else 0
        request = ReadRequest(operation, (), limit, line, rights, known)
        return self._ask(request, [path], timeout=timeout)[path]

    def _ask(
        self, wanted: ReadRequest, paths: Sequence[str], *, timeout: float
    ) -> dict[str, ReadAnswer | Unreadable]:
        return self._client.ask(wanted, paths, timeout=timeout)


def _data(answer: ReadAnswer | Unreadable) -> bytes | Unreadable:
    return answer if isinstance(answer, Unreadable) else answer.data


def _truth(answer: ReadAnswer | Unreadable) -> bool | Unreadable:
    return answer if isinstance(answer, Unreadable) else bool(answer.data)
