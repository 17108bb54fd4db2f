"""The trace ring: what one process did last, in one memory-mapped file of fixed size. This docstring is the layout, version 1.

In the default place it is `/dev/shm/mldebug_trace-PID-START` (pid as the process sees it; start in clock ticks since boot, field 22 of
/proc/PID/stat); elsewhere any name. Mode 0600. The writer keeps it open under flock(2) while it lives, so a process that gets the
lock, and finds no such process, has the ring of a dead one; /proc/PID/fd finds one that lies elsewhere. All is little-endian,
offsets in bytes, -1 and 0 are "not known" in signed and unsigned fields, texts are UTF-8 filled up with NUL, times are ns.

Header, 4096 bytes:

      0  8s    magic: b"mltrace" and the version of this layout: 1; written last when the ring is made
      8  u32   size of the header: 4096        12  u32  size of a record: 24
     16  u64   size of the file
     24  u64   offset of the names             32  u64  their size
     40  u64   offset of the chunks            48  u32  size of a chunk       52  u32  number of chunks
     56  u64   pid                             64  u64  start of the process, clock ticks
     72  40s   boot id, as /proc/sys/kernel/random/boot_id has it
    112  i32   rank     116  i32  world size   120  i32  local rank           124  u32  1: a child of a traced process, or a worker
    128  u64   CLOCK_REALTIME   136  u64  CLOCK_MONOTONIC   both at one moment: when the ring was made
    144  i64   step reached last; -1: none     152  u64  CLOCK_MONOTONIC when it was
    160  u64   events that found no room
    168  u32   state: 1 tracing, 2 not begun (waits for its function), 3 stepped aside, 4 ended
    172  u32   what is traced: 1 calls, 2 lines, 3 both
    176  u64   CLOCK_MONOTONIC of the last change of state
    184  u64   code objects that were interned
    192  64s   engine: "monitoring, native", "profile, python" and so on: what CPython gives, and what our side is written in
    256  32s   Python: "CPython 3.11.7"
    288  64s   node
    352  256s  why the state is what it is, one sentence; empty: nothing to say
    608  512s  what is followed, as it was told: "include=mypkg exclude=- start=train_step"
   1120  1024s command line

Names: entries one after the other, each 8-byte aligned; the first has id 0. They never move and are never taken back.

      0  u32   its id + 1; written last: another number ends the walk
      4  u32   first line of the function; 0 in a file's entry
      8  u32   id of its file's entry, which stands before it; 0xFFFFFFFF: this entry is a file
     12  u32   length of the text
     16        text: the function's qualified name; of a file: path, NUL, module (either may be empty)

Entry 0 is the file "?" and entry 1 the function "?" of it, for what the table has no room for.

Chunks: each belongs to one thread at a time, and its last one is not taken from a living thread while others can be had: a
busy thread never pushes out what a stuck one did last. Head of a chunk, 64 bytes:

      0  u32   sequence of the chunk, counted over the process from 1; 0: empty, or being given to a thread; written last
      4  u32   thread as the kernel numbers it (gettid)
      8  u64   thread as Python numbers it (threading.get_ident)
     16  i64   step when the chunk began
     24  u64   CLOCK_MONOTONIC when it began
     32  u32   the sequence of the same thread's chunk before it; 0: none
     36  u32   1: the main thread
     40  24s   name of the thread

Then (size of a chunk - 64) // 24 records:

      0  u64   CLOCK_MONOTONIC
      8  u32   name: id of the function's entry
     12  u32   line
     16  u16   depth: how many traced functions of this thread are open around it; 65535 stands for more, too
     18  u8    kind: 1 call, 2 return, 3 line, 4 left by an exception, 5 yield, 6 resume, 7 step
     19  u8    zero
     20  u32   sequence of its chunk; written last

A record counts where its last word is the sequence of its chunk; a reader looks at all of them, for a signal handler may
have left one out, and reads the sequence of the chunk again afterwards: another one, and the chunk is somebody else's by now.
In a record of kind 7 name and line are the lower and upper half of the step. A generator before Python 3.12 yields by kind 2.
Records of one thread are in order of chunk sequence and place; those of several are joined by time. Whatever a reader
finds it checks: nothing here is more than a process's word.
"""

from __future__ import annotations

import struct

VERSION = 1
MAGIC = b"mltrace" + bytes([VERSION])
PREFIX = "mldebug_trace-"
HEADER_SIZE, CHUNK_HEAD_SIZE = 4096, 64

LAYOUT = struct.Struct("<IIQQQQII")  # from the size of the header on, at 8
WHO = struct.Struct("<QQ40siiiI")  # at 56
CLOCKS = struct.Struct("<QQ")  # at 128
STEP = struct.Struct("<qQ")  # at 144
LOST = struct.Struct("<Q")  # at 160
STATE = struct.Struct("<II")  # at 168
CHANGED = struct.Struct("<QQ")  # at 176
TEXTS = ((192, 64), (256, 32), (288, 64), (352, 256), (608, 512), (1120, 1024))
NAME = struct.Struct("<IIII")
CHUNK = struct.Struct("<IIQqQII24s")
RECORD = struct.Struct("<QIIHBxI")
WORD = struct.Struct("<I")

NO_FILE = 0xFFFFFFFF
CALL, RETURN, LINE, UNWIND, YIELD, RESUME, STEP_KIND = range(1, 8)
TRACING, NOT_BEGUN, ASIDE, ENDED = range(1, 5)
CALLS, LINES = 1, 2

MIN_SIZE, MAX_SIZE = 256 * 1024, 1 << 36
SMALLEST_CHUNK, BIGGEST_CHUNK = 4096, 65536


def division(size: int) -> tuple[int, int, int, int]:
    """How a file of this size is divided: (size of the names, offset of the chunks, size of a chunk, number of chunks).

    Raises ValueError where it is too small or too large.
    """
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ValueError(f"a ring has between {MIN_SIZE} and {MAX_SIZE} bytes, not {size}")
    names = min(max(size // 16, 65536), 16 << 20) // 4096 * 4096
    chunk = SMALLEST_CHUNK
    while chunk < BIGGEST_CHUNK and chunk * 256 < size:
        chunk *= 2
    at = HEADER_SIZE + names
    return names, at, chunk, (size - at) // chunk
