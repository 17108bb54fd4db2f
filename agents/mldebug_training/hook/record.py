"""The record: 4 KiB of shared memory in which a training process says how far it is. This docstring is the layout.

One file per process, `FOLDER/mldebug-PID-START`: the pid as the process itself sees it, and its start in clock ticks since
boot (field 22 of /proc/PID/stat). Mode 0600; its writer holds a flock(2) on it. A process that gets the lock, and finds no such
process, knows it for abandoned: a job that closes files which it does not know lets go of the lock. Little-endian, offsets in bytes:

      0  8s    magic, b"mldebug" and the version of this layout: 1
      8  u64   sequence: how often it was written; set last
     16  u64   pid
     24  u64   start, in clock ticks
     32  u64   CLOCK_MONOTONIC of the last word, ns
     40  i64   step; -1: none yet
     48  u64   CLOCK_MONOTONIC when that step was reached, ns
     56  u64   beats: how often a step was told
     64  i32   rank; -1: not known
     68  i32   world size; -1: not known
     72  u32   signal that asks for all stacks, in `FOLDER/mldebug-PID-START.stacks`; the one below forces them; 0: none
     76  i32   file descriptor of that file in the process; -1: none
     80  u64   CLOCK_MONOTONIC when the phase began, ns
     88  32s   phase, UTF-8, filled up with NUL; empty: none
    120  u32   number of scalars, at most 16; then four bytes of nothing
    128  16 x (24s name, UTF-8; f64 value)
    640  u64   the main thread, as the stacks call it
    648  u32   signal that asks for the Flight Recorder, in `FOLDER/mldebug-PID-START.flight`; 0: none
    652  u32   how often it was asked and has done what it could; written alone, outside of the sequence
    656  u32   seconds after which PyTorch ends a collective of all ranks that does not end; 0: not known; written alone
    660  u32   CRC-32 of the bytes from 32 up to the end of the last scalar; 0: none
   4088  u64   sequence, set first: where it differs from the other, somebody is writing

A reader copies it from the front to the back, and again where the two sequences differ, or the checksum is another one: a
processor may show the writes of another in another order, and Python has no barrier against that. It takes nothing for
true: it checks the owner, the length, the magic, pid and start.
"""

from __future__ import annotations

import binascii
import os
import struct
import threading
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.natives import allocate_lock
from mldebug_training.common.own_file import OwnFile, shared
from mldebug_training.common.shared_files import FOLDER, PREFIX, remove, reserve, start_ticks

SIZE = 4096
MAGIC = b"mldebug\x01"
MAX_SCALARS = 16
MAX_STEP = 2**53  # a reader believes no higher one
MISSED = 64  # writes that found another one under way, until that is taken for broken off

_HEAD = struct.Struct("<8sQQQ")
_SEQUENCE = struct.Struct("<Q")
_STATE = struct.Struct("<QqQQiiIiQ32s")
_COUNT = struct.Struct("<I4x")
_SCALAR = struct.Struct("<24sd")
_SEQUENCE_AT, _STATE_AT, _BEGUN_AT = 8, 32, SIZE - 8
_MAIN_AT, _FLIGHT_AT, _TIMEOUT_AT, _SUM_AT = 640, 648, 656, 660
_FLIGHT = struct.Struct("<II")
_TIMEOUT = _SUM = struct.Struct("<I")


class HookRecord:
    """The record file of this process in shared memory; the module's docstring is its layout. Raises OSError where it cannot be
    made.
    """

    def __init__(self, folder: str = FOLDER) -> None:
        start = start_ticks()
        self.pid = os.getpid()
        self.path = os.path.join(folder, f"{PREFIX}{self.pid}-{start}")
        self._file = OwnFile(reserve(self.path, SIZE))  # for its lock
        self._memory, self._over = self._shared(), False
        self._writing, self._missed = allocate_lock(), 0
        self._sequence, self._begun = 0, b"nothing yet"  # what no file ends with, a cut one neither
        self._is_news, self._scalars = False, _COUNT.pack(0)
        self.step, self.stepped_ns, self.beats = -1, 0, 0
        self.rank = self.world_size = -1
        self.signal, self.stacks_fd = 0, -1
        self.phase, self.phase_ns = b"", 0
        _HEAD.pack_into(self._memory, 0, MAGIC, 0, self.pid, start)
        _SEQUENCE.pack_into(self._memory, _MAIN_AT, threading.main_thread().ident or 0)
        self.write()

    def beat(self, step: int) -> None:
        """Record that this step was reached. Raises ValueError for a number that cannot be a step."""
        self.step, self.stepped_ns, self.beats = possible(step), time.monotonic_ns(), self.beats + 1
        self.write()

    def identify(self, rank: int, world_size: int) -> None:
        """Note which rank this is, -1 for unknown; written with the next `write`."""
        self.rank, self.world_size = rank, world_size

    def set_stack_signal(self, signal: int, stacks_fd: int = -1) -> None:
        """Note the signal that this process answers with its stacks (0: none), and the descriptor that it writes them to;
        `write` records it.
        """
        self.signal, self.stacks_fd = signal, stacks_fd

    def enter(self, phase: bytes, since_ns: int) -> None:
        """Note the phase that the process is in and since when (CLOCK_MONOTONIC, ns); written with the next `write`."""
        self.phase, self.phase_ns = phase, since_ns

    def correct(self, step: int) -> None:
        """Replace the number of the step that was recorded last by `step`. Raises ValueError where `step` is negative or does not fit into 64 bits."""
        self.step = possible(step)
        self.write()

    def write(self) -> None:
        """Write the whole record. Never waits: while another thread writes, that thread writes this content too."""
        self._is_news = True
        while self._is_news:
            writing = self._writing
            if not writing.acquire(blocking=False):
                self._missed += 1
                if self._missed > MISSED:  # an exception between two bytecodes of it, by a signal
                    self._missed, self._writing = 0, allocate_lock()
                return
            try:
                self._is_news = False
                self._write()
            finally:
                writing.release()

    def write_scalars(self, scalars: dict[str, float]) -> None:
        """Replace the scalars; those beyond `MAX_SCALARS` are dropped. To be called before `beat` of the step that they
        belong to.
        """
        first_scalars = list(scalars.items())[:MAX_SCALARS]
        each = [_SCALAR.pack(short(name, 24), float(value)) for name, value in first_scalars]
        self._scalars = _COUNT.pack(len(each)) + b"".join(each)
        self.write()

    def _write(self) -> None:
        state = _STATE.pack(
            time.monotonic_ns(), self.step, self.stepped_ns, self.beats,
            self.rank, self.world_size, self.signal, self.stacks_fd, self.phase_ns, self.phase,
        ) + self._scalars  # fmt: skip
        memory = self._whole()
        self._sequence, self._missed = self._sequence + 1, 0
        self._begun = _SEQUENCE.pack(self._sequence)
        _SEQUENCE.pack_into(memory, _BEGUN_AT, self._sequence)
        memory[_STATE_AT : _STATE_AT + len(state)] = state
        _SUM.pack_into(memory, _SUM_AT, binascii.crc32(state))
        _SEQUENCE.pack_into(memory, _SEQUENCE_AT, self._sequence)

    def write_flight(self, signal: int, answers: int) -> None:
        """Record which signal requests the Flight Recorder, and how often it was answered. Thread-safe."""
        _FLIGHT.pack_into(self._whole(), _FLIGHT_AT, signal, answers & 0xFFFFFFFF)

    def write_timeout(self, seconds: float) -> None:
        """Record after how many seconds a collective of all ranks times out."""
        _TIMEOUT.pack_into(self._whole(), _TIMEOUT_AT, min(max(int(seconds), 0), 0xFFFFFFFF))

    def close(self, *, unlink: bool = True) -> None:
        """Close the record; later writes have no effect. `unlink`: also remove the file, unless it belongs to this
        process's parent.
        """
        self._let_go()
        if unlink and os.getpid() == self.pid:
            remove(self.path)
        self._file.close()

    def _whole(self) -> memoryview:
        """The memory to write to; nobody's, where somebody has cut the file: who touches what is gone ends by SIGBUS.

        That it ends as written costs a third of an fstat to read. Of another file that proves nothing, but none of the job's
        ends with our last word.
        """
        if self._over:
            return self._memory
        try:
            if os.pread(self._file.fd, 8, _BEGUN_AT) == self._begun:
                return self._memory
        except OSError as error:  # closed, or a pipe by now
            pass_on(error)
        return self._looked_at()

    def _looked_at(self) -> memoryview:
        size = self._file.size()
        if size < SIZE and (size >= 0 or _size(self.path) < SIZE):  # the job may have closed it
            self._let_go()
        return self._memory

    def _let_go(self) -> None:
        self._memory, self._over = memoryview(bytearray(SIZE)), True

    def _shared(self) -> memoryview:
        try:
            return shared(self._file.fd, SIZE)
        except Exception:
            remove(self.path)
            self._file.close()
            raise


def possible(step: int) -> int:
    """The step itself. Raises ValueError for a number too large for the record, which no training reaches."""
    if not 0 <= step <= MAX_STEP:
        raise ValueError("no training reaches this step")
    return step


def short(text: str, size: int) -> bytes:
    """The text as at most `size` bytes of UTF-8, without cutting a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode()


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError as error:
        pass_on(error)
        return -1
