"""Writes into a trace ring from Python: the table of names, and each thread's chunks with their records.

No lock is held while a record is written: each thread has a chunk of its own. The native engine takes names from here and writes
chunks and records itself, in the same way.
"""

from __future__ import annotations

import threading
from _thread import RLock
from time import monotonic_ns

from mldebug_training.common.natives import get_ident
from mldebug_training.tracing import ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mldebug_training.tracing.ring_file import ProcessRing

_MAX_DEPTH, _MAX_STEP = 65535, 2**53
_pack, _word = ring.RECORD.pack_into, ring.WORD


class NameTable:
    """The numbers of files and functions in the ring. Names for which its table is full become "?"."""

    def __init__(self, file: ProcessRing) -> None:
        self._mapping = file.mapping
        self._at, self._end = ring.HEADER_SIZE, ring.HEADER_SIZE + file.names
        self._ids: dict[tuple[int, int, bytes], int] = {}
        self._lock = RLock()
        self.full = False
        self._entry(ring.NO_FILE, 0, b"?\0")
        self._entry(0, 0, b"?")

    def function(self, path: str, module: str, name: str, line: int) -> int:
        """The number of a function in the table, which is added where it is new; 1 (the function "?") where the table is full."""
        with self._lock:
            where = f"{path}\0{module}".encode("utf-8", "replace")
            file = self._entry(ring.NO_FILE, 0, where)
            number = self._entry(max(file, 0), line, name.encode("utf-8", "replace"))
            return number if number >= 0 else 1

    def _entry(self, file: int, line: int, text: bytes) -> int:
        text = text[:4096]
        before = self._ids.get((file, line, text))
        if before is not None:
            return before
        size = (ring.NAME.size + len(text) + 7) // 8 * 8
        if self._at + size > self._end:
            self.full = True
            return -1
        return self._written(file, line, text, size)

    def _written(self, file: int, line: int, text: bytes, size: int) -> int:
        view, at, number = self._mapping.view, self._at, len(self._ids)
        view[at + 16 : at + 16 + len(text)] = text
        ring.NAME.pack_into(view, at, 0, line & 0xFFFFFFFF, file, len(text))
        _word.pack_into(view, at, number + 1)
        ring.LOST.pack_into(view, 184, number + 1)
        self._ids[(file, line, text)] = number
        self._at += size
        return number


class ThreadWriter:
    """The place in the ring where one thread writes its records. Its chunk of the ring is kept for it while this object lives."""

    def __init__(self, writer: RingWriter) -> None:
        self.number, self.ident = threading.get_native_id(), get_ident()
        main = threading.main_thread()
        thread = getattr(threading, "_active", {}).get(self.ident)
        self.main = self.ident == main.ident
        self.name = str(getattr(thread, "name", ""))
        self.depth = self.at = self.end = self.sequence = 0
        self.chunk = -1
        self._writer = writer

    def __del__(self) -> None:
        try:
            self._writer.taken.pop(self.chunk, None)
        except Exception:  # at the end of the interpreter
            pass


class RingWriter:
    """Writes the trace records of all threads of this process into its ring file (layout: `mldebug_training.tracing.ring`)."""

    def __init__(self, file: ProcessRing) -> None:
        self.file, self.names = file, NameTable(file)
        self.mapping = file.mapping
        self.taken: dict[int, int] = {}  # chunk: thread that it is the last one of
        self._sequence, self._next = 0, 0
        self._lock = RLock()
        self._local = threading.local()
        self.on = True

    def thread(self) -> ThreadWriter:
        """The `ThreadWriter` of the calling thread, made at its first call."""
        try:
            own: ThreadWriter = self._local.thread
        except AttributeError:
            own = self._local.thread = ThreadWriter(self)
        return own

    def put(self, own: ThreadWriter, name: int, line: int, kind: int) -> None:
        """Write one record. `own`: the thread's writer, `name`: number of the function, `kind`: what happened (see `ring`)."""
        at = own.at
        if at >= own.end:
            at = self._chunk(own)
        own.at = at + 24
        depth = own.depth
        _pack(
            *(self.mapping.view, at, monotonic_ns(), name, line or 0),
            *(depth if 0 <= depth < _MAX_DEPTH else _MAX_DEPTH, kind, own.sequence),
        )

    def step(self, number: int) -> None:
        """Write into the ring that the calling thread has reached this training step."""
        self.file.step(number)
        if 0 <= number <= _MAX_STEP:
            own = self.thread()
            self.put(own, number & 0xFFFFFFFF, number >> 32, ring.STEP_KIND)

    def _chunk(self, own: ThreadWriter) -> int:
        """Give the thread its next chunk; where it may write then."""
        file, view = self.file, self.mapping.view
        with self._lock:
            place = self._free()
            self._sequence = self._sequence + 1 & 0xFFFFFFFF or 1
            before, sequence = own.sequence, self._sequence
            self.taken.pop(own.chunk, None)
            self.taken[place] = own.number
            own.chunk = place
        at = file.chunks + place * file.chunk_size
        _word.pack_into(view, at, 0)
        step, _ = ring.STEP.unpack_from(view, 144)
        header = ring.CHUNK.pack(
            *(0, own.number, own.ident, step, monotonic_ns(), before, own.main),
            own.name.encode("utf-8", "replace")[:24],
        )
        view[at + 4 : at + ring.CHUNK_HEAD_SIZE] = header[4:]
        _word.pack_into(view, at, sequence)
        own.sequence, own.at = sequence, at + ring.CHUNK_HEAD_SIZE
        own.end = own.at + (file.chunk_size - ring.CHUNK_HEAD_SIZE) // 24 * 24
        return own.at

    def _free(self) -> int:
        """The oldest chunk that is no living thread's last one; any, where there are more threads than chunks."""
        count = self.file.count
        for _ in range(count):
            place, self._next = self._next, (self._next + 1) % count
            if place not in self.taken:
                return place
        place, self._next = self._next, (self._next + 1) % count
        return place
