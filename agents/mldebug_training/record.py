"""The record: 4 KiB of shared memory in which a training process says how far it is. This docstring is the layout.

One file per process, `FOLDER/mldebug-PID-START`: the pid as the process itself sees it, and its start in clock ticks since
boot (field 22 of /proc/PID/stat). Mode 0600; its writer holds a flock(2) on it, so that whoever gets the lock knows it for
abandoned. Little-endian, offsets in bytes:

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
   4088  u64   sequence, set first: where it differs from the other, somebody is writing

A reader copies it from the front to the back, and again where the two sequences differ. It takes nothing for true: it
checks the owner, the length, the magic, pid and start.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time

FOLDER = "/dev/shm"  # noqa: S108 - created exclusively, never followed
PREFIX = "mldebug-"
SIZE = 4096
MAGIC = b"mldebug\x01"
MAX_SCALARS = 16
MAX_STALE = 1024  # files of dead processes that are looked at

_HEAD = struct.Struct("<8sQQQ")
_SEQUENCE = struct.Struct("<Q")
_STATE = struct.Struct("<QqQQiiIiQ32s")
_COUNT = struct.Struct("<I4x")
_SCALAR = struct.Struct("<24sd")
_SEQUENCE_AT, _STATE_AT, _COUNT_AT, _SCALARS_AT, _BEGUN_AT = 8, 32, 120, 128, SIZE - 8
_MAIN_AT, _FLIGHT_AT = 640, 648
_FLIGHT = struct.Struct("<II")


class Record:
    """The record of this process. Raises OSError where there is no room for it, or no right to it."""

    def __init__(self, folder: str = FOLDER) -> None:
        start = start_ticks()
        self.pid = os.getpid()
        self.path = os.path.join(folder, f"{PREFIX}{self.pid}-{start}")
        self._fd = reserve(self.path, SIZE)
        self._memory = mmap.mmap(self._fd, SIZE)
        self._sequence = 0
        self.step, self.stepped_ns, self.beats = -1, 0, 0
        self.rank = self.world_size = -1
        self.signal, self.stacks_fd = 0, -1
        self.phase, self.phase_ns = b"", 0
        _HEAD.pack_into(self._memory, 0, MAGIC, 0, self.pid, start)
        _SEQUENCE.pack_into(self._memory, _MAIN_AT, threading.main_thread().ident or 0)
        self.write()

    def beat(self, step: int) -> None:
        """Say that this step was reached."""
        self.step, self.stepped_ns, self.beats = step, time.monotonic_ns(), self.beats + 1
        self.write()

    def write(self) -> None:
        """Write all that is known, but for the scalars."""
        memory = self._memory
        self._sequence += 1
        _SEQUENCE.pack_into(memory, _BEGUN_AT, self._sequence)
        _STATE.pack_into(
            memory, _STATE_AT, time.monotonic_ns(), self.step, self.stepped_ns, self.beats,
            self.rank, self.world_size, self.signal, self.stacks_fd, self.phase_ns, self.phase,
        )  # fmt: skip
        _SEQUENCE.pack_into(memory, _SEQUENCE_AT, self._sequence)

    def write_scalars(self, scalars: dict[str, float]) -> None:
        """Replace the scalars; what is too many is left out. They are written before the step that they belong to."""
        told = list(scalars.items())[:MAX_SCALARS]
        self._sequence += 1
        _SEQUENCE.pack_into(self._memory, _BEGUN_AT, self._sequence)
        _COUNT.pack_into(self._memory, _COUNT_AT, len(told))
        for place, (name, value) in enumerate(told):
            at = _SCALARS_AT + place * _SCALAR.size
            _SCALAR.pack_into(self._memory, at, short(name, 24), float(value))
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, self._sequence)

    def write_flight(self, signal: int, answers: int) -> None:
        """Say which signal asks for the Flight Recorder, and how often that was answered. Any thread may call it."""
        _FLIGHT.pack_into(self._memory, _FLIGHT_AT, signal, answers & 0xFFFFFFFF)

    def close(self, *, unlink: bool = True) -> None:
        """Let go of it; a forked child does so without taking its parent's away."""
        self._memory.close()
        os.close(self._fd)
        if unlink and os.getpid() == self.pid:
            _remove(self.path)


def reserve(path: str, size: int) -> int:
    """Create a file that nobody else has, with room for all of it: a full /dev/shm says so here, not by SIGBUS later."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        _remove(path)
        raise
    return fd


def sweep(folder: str = FOLDER) -> None:
    """Remove what processes of this user have left that were killed; never raises."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(PREFIX)][:MAX_STALE]
    except OSError:
        return
    for name in names:
        _sweep(os.path.join(folder, name))


def start_ticks() -> int:
    """When this process started, as /proc tells it."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def short(text: str, size: int) -> bytes:
    """At most so many bytes of UTF-8, no character cut."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode()


def _sweep(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # another user's
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_uid == os.getuid():
            _remove(path)
    except OSError:  # it lives
        pass
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
