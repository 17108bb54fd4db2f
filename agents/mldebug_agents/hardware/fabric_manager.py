"""Reads the log of NVIDIA's Fabric Manager where it is installed: its end at first, then what is new.

Its settings, in the package's own folder, say where the log lies. The file counts only where root wrote it and nobody else can: what it
says takes a node out. It is read by the reader child, as a disk below `/var/log` may hang.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from mldebug.core.model import Gap
from mldebug.hardware.kernel_log.fabric_manager import (
    CONFIGS,
    FabricLine,
    fabric_events,
    log_path,
    parse_fabric_line,
    zone_shift,
)
from mldebug.hardware.kernel_log.model import KernelEvent
from mldebug_agents.system.child.job_paths import OPERATOR, Rights
from mldebug_agents.system.reader import FilePiece, Unreadable

EVERY = 10.0  # seconds between two looks
MAX_CONFIG = 64 << 10  # bytes
MAX_PIECE = 256 << 10  # bytes of one look; of an older log only so much of its end
MAX_PARTIAL = 8 << 10  # bytes of a line without an end
PLACES = (
    "",
    "run/nvidia/driver/",
)  # the node itself, and the driver's container of the GPU operator
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class FileReads(Protocol):
    """The part of `Reader` that is needed."""

    def read_file(self, path: str, *, rights: Rights, max_bytes: int, timeout: float = 2.0) -> bytes | Unreadable:  # fmt: skip
        """Read a regular file of at most `max_bytes` bytes; `timeout`: seconds."""

    def read_from(self, path: str, offset: int, *, rights: Rights, max_bytes: int, timeout: float = 2.0) -> FilePiece | Unreadable:  # fmt: skip
        """Bytes of a regular file from an offset on."""


class FabricManagerLog:
    """Reads on from where the last look stopped. Keep one object. For one worker thread."""

    def __init__(
        self,
        root: str,
        reader: FileReads,
        booted_at: Callable[[], float],
        unix: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`root`: the folder below which the node's files lie, "" for `/`. `booted_at`: the unix time at which the node was booted."""
        self._root, self._reader = root.rstrip("/"), reader
        self._booted_at, self._unix, self._monotonic = booted_at, unix, monotonic
        self._due = 0.0
        self._file = (0, 0)  # inode and device of the file that was read last
        self._offset, self._partial = 0, b""
        self._shift = 0.0
        self.gap: Gap | None = None  # why the log cannot be read, though there is one

    def events(self) -> Iterator[KernelEvent]:
        """Yield what is new in the log, at most every `EVERY` seconds; nothing where there is no Fabric Manager."""
        if self._monotonic() < self._due:
            return
        self._due = self._monotonic() + EVERY
        found = self._place()
        if found is None:
            self.gap = None
            return
        lines = tuple(self._lines(found))
        yield from fabric_events(lines, self._shift, self._booted_at(), self._unix())

    def _place(self) -> str | None:
        """The path of the log; None where no Fabric Manager is installed, or it writes none."""
        for place in PLACES:
            for name in CONFIGS:
                config = f"{self._root}/{place}{name}"
                if not os.path.lexists(config):
                    continue
                text = self._reader.read_file(config, rights=OPERATOR, max_bytes=MAX_CONFIG)
                own = log_path(text.decode(errors="replace")) if isinstance(text, bytes) else None
                if own is not None:
                    return f"{self._root}/{place}".rstrip("/") + own
        return None

    def _lines(self, path: str) -> Iterator[FabricLine]:
        """The lines that were added since the last look."""
        piece = self._next(path)
        if not isinstance(piece, FilePiece) or not piece.data:
            return
        self._offset += len(piece.data)
        *texts, rest = (self._partial + piece.data).split(b"\n")
        self._partial = rest[-MAX_PARTIAL:]
        found = [parse_fabric_line(text.decode(errors="replace")) for text in texts]
        lines = [one for one in found if one is not None]
        if lines and self._offset == piece.size:
            self._shift = zone_shift(lines[-1].stamp, piece.mtime)
        yield from lines

    def _next(self, path: str) -> FilePiece | None:
        """The next bytes of the log, or the end of one that is new here; None, and a gap, where it cannot be read or is not believed."""
        piece = self._read(path, self._offset)
        if piece is not None and ((piece.inode, piece.device) != self._file or piece.size < self._offset):  # fmt: skip
            self._file = (piece.inode, piece.device)
            self._offset, self._partial = max(0, piece.size - MAX_PIECE), b""
            piece = self._read(path, self._offset)
        return piece

    def _read(self, path: str, offset: int) -> FilePiece | None:
        piece = self._reader.read_from(path, offset, rights=OPERATOR, max_bytes=MAX_PIECE)
        if isinstance(piece, Unreadable):
            self.gap = None if piece.errno == 2 else _gap(path, piece.reason, "see whether the agent's user can read it")  # fmt: skip
            return None
        if piece.uid != 0 or piece.mode & _OTHERS_WRITE:
            self.gap = _gap(path, "others than root can write into it, so it is not believed", f"chown root {path}; chmod go-w {path}")  # fmt: skip
            return None
        self.gap = None
        return piece


def _gap(path: str, reason: str, way_out: str) -> Gap:
    return Gap(what="log of the Fabric Manager", reason=f"{path}: {reason}", way_out=way_out)
