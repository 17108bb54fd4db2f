"""The bytes of a trace ring, parsed: header, names, heads of chunks, records. Pure; every value is checked.

The layout stands in `mldebug_training.tracing.ring`, and a test holds both sides to it. A process that can write the file can put anything
into it: every offset and length is checked before it is used, every count has a limit, and each walk goes forward only.
"""

import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from mldebug.capture.trace.records import RingHeader, TracedFunction, TraceEventKind
from mldebug.core.redact import clean, safe_line

MAGIC, VERSION = b"mltrace", 1
PREFIX = "mldebug_trace-"
HEADER_SIZE, HEAD_SIZE, RECORD_SIZE = 4096, 64, 24
MIN_CHUNK, MAX_CHUNK = 512, 1 << 20
MAX_CHUNKS, MAX_NAMES = 1 << 20, 1 << 18
MAX_NAMES_SIZE = 64 << 20  # bytes
MAX_TEXT = 4096  # bytes of a name that are read
MAX_LINE, MAX_STEP = 10_000_000, 2**53
MAX_NS = 1 << 62
STATES = {1: "tracing", 2: "not begun", 3: "stepped aside", 4: "ended"}
TRACED = {1: "calls", 2: "lines", 3: "calls and lines"}
KINDS = {
    1: TraceEventKind.CALL,
    2: TraceEventKind.RETURN,
    3: TraceEventKind.LINE,
    4: TraceEventKind.UNWIND,
    5: TraceEventKind.YIELD,
    6: TraceEventKind.RESUME,
}
STEP = 7
NO_FILE = 0xFFFFFFFF
UNKNOWN = TracedFunction("?")

_DIVISION = struct.Struct("<IIQQQQII")  # at 8
_WHO = struct.Struct("<QQ40siiiI")  # at 56
_FACTS = struct.Struct("<QQqQQIIQQ")  # at 128: clocks, step, lost, state, its moment, code objects
_TEXTS = {"engine": (192, 64), "python": (256, 32), "node": (288, 64), "why": (352, 256)}
_LONG = {"followed": (608, 512), "command": (1120, 1024)}
_NAME = struct.Struct("<IIII")
_HEAD = struct.Struct("<IIQqQII24s")
_RECORD = struct.Struct("<QIIHBBI")
_OWNER = struct.Struct("<II56x")  # of a head: sequence, thread


class ChunkHead(NamedTuple):
    """The head of one chunk (a block of records of one thread); `number` is the chunk's place in the file."""

    number: int
    sequence: int
    thread: int
    step: int | None
    began: int
    before: int  # sequence of the same thread's chunk before it; 0: none
    main: bool
    name: str


class TraceRecord(NamedTuple):
    """One record of a chunk. For a record that marks a training step, `kind` is None and `line` holds the step."""

    at: int
    name: int
    line: int
    depth: int
    kind: TraceEventKind | None  # None: a step was reached


# --- header ----------------------------------------------------------------------------------------


def parse_header(data: bytes) -> RingHeader:
    """Parse the header of a ring file (call trace), its first 4096 bytes. Raises ValueError with the reason where they are
    none.
    """
    if len(data) < HEADER_SIZE:
        raise ValueError(f"it is no trace ring: it has {len(data)} bytes")
    if data[:8] == bytes(8):
        raise ValueError("it is no trace ring, or one that is only being made")
    if data[:7] != MAGIC:
        raise ValueError("it is no trace ring: it does not begin as one does")
    if data[7] != VERSION:
        raise ValueError(
            f"its layout is version {data[7]}, and this mldebug reads version {VERSION}"
        )
    size, names_at, names_size, chunks_at, chunk_size, chunks = _division(data)
    pid, start, boot, rank, world, _, child = _WHO.unpack_from(data, 56)
    wall, now, step, step_at, lost, state, traced, _, _ = _FACTS.unpack_from(data, 128)
    texts = {name: _text(data, *where) for name, where in _TEXTS.items()}
    long = {name: safe_line(_raw(data, *where), 1024) for name, where in _LONG.items()}
    return RingHeader(
        size=size,
        names_at=names_at,
        names_size=names_size,
        chunks_at=chunks_at,
        chunk_size=chunk_size,
        chunks=chunks,
        pid=pid,
        start_ticks=start,
        boot_id=clean(boot.partition(b"\0")[0].decode("utf-8", "replace"), 40),
        rank=rank if rank >= 0 else None,
        world_size=world if world > 0 else None,
        child=child == 1,
        wall_ns=min(wall, MAX_NS),
        monotonic_ns=min(now, MAX_NS),
        step=_step(step),
        step_at=min(step_at, MAX_NS),
        dropped=lost,
        state=STATES.get(state, ""),
        traced=TRACED.get(traced, ""),
        **texts,
        **long,
    )


def _division(data: bytes) -> tuple[int, int, int, int, int, int]:
    """Raises ValueError where the parts do not lie in the file one after the other."""
    fields = _DIVISION.unpack_from(data, 8)
    header, record, size, names_at, names_size, chunks_at, chunk_size, chunks = fields
    if (header, record) != (HEADER_SIZE, RECORD_SIZE):
        raise ValueError(f"its header has {header} bytes and its records {record}")
    names = names_at >= HEADER_SIZE and names_size <= MAX_NAMES_SIZE
    rest = names_at + names_size <= chunks_at and MIN_CHUNK <= chunk_size <= MAX_CHUNK
    if not (names and rest and chunks <= MAX_CHUNKS and chunks_at + chunks * chunk_size <= size):
        raise ValueError("its parts do not fit into it")
    return size, names_at, names_size, chunks_at, chunk_size, chunks


def _step(number: int) -> int | None:
    return number if 0 <= number <= MAX_STEP else None


def _raw(data: bytes, at: int, size: int) -> str:
    return data[at : at + size].partition(b"\0")[0].decode("utf-8", "replace")


def _text(data: bytes, at: int, size: int) -> str:
    return clean(_raw(data, at, size), size).strip()


# --- names -----------------------------------------------------------------------------------------


def parse_names(data: bytes) -> tuple[dict[int, TracedFunction], str]:
    """The traced functions by number, from the table of names in a ring file (call trace); and in words why the table could not be
    read to its end, "" where it could.
    """
    files: dict[int, tuple[str, str]] = {}
    found: dict[int, TracedFunction] = {}
    at = number = 0
    while at + _NAME.size <= len(data):
        mark, line, file, length = _NAME.unpack_from(data, at)
        if mark != number + 1:
            return found, "" if mark == 0 else "the table of names is broken"
        end = at + _NAME.size + length
        if end > len(data) or number >= MAX_NAMES:
            return found, "the table of names is broken"
        text = data[at + _NAME.size : min(end, at + _NAME.size + MAX_TEXT)]
        if file == NO_FILE:
            parts = text.partition(b"\0")
            files[number] = _word(parts[0]), _word(parts[2])
        else:
            path, module = files.get(file, ("", ""))
            found[number] = TracedFunction(_word(text) or "?", path, min(line, MAX_LINE), module)
        number, at = number + 1, (end + 7) & ~7
    return found, ""


def _word(text: bytes) -> str:
    return clean(text.decode("utf-8", "replace"), MAX_TEXT)


# --- chunks ----------------------------------------------------------------------------------------


def parse_head(data: bytes, number: int) -> ChunkHead | None:
    """The head of the chunk with this number, from its first 64 bytes; None where the chunk is not in use yet."""
    if len(data) < HEAD_SIZE:
        return None
    sequence, thread, _, step, began, before, main, name = _HEAD.unpack_from(data)
    if not sequence:
        return None
    called = clean(name.partition(b"\0")[0].decode("utf-8", "replace"), 24).strip()
    before = before if before < sequence else 0
    return ChunkHead(
        *(number, sequence, thread, _step(step), min(began, MAX_NS), before, main == 1, called)
    )


def last_chunks(heads: bytes) -> list[tuple[int, int]]:
    """The last chunk of each thread as (chunk number, sequence number), the newest first. `heads`: the heads of all chunks in a
    row, as bytes.
    """
    found: dict[int, tuple[int, int]] = {}
    whole = len(heads) // HEAD_SIZE * HEAD_SIZE
    for number, (sequence, thread) in enumerate(_OWNER.iter_unpack(heads[:whole])):
        if sequence > found.get(thread, (0, 0))[0]:
            found[thread] = sequence, number
    return [(number, sequence) for sequence, number in sorted(found.values(), reverse=True)]


def newest_time(data: bytes, sequence: int) -> int | None:
    """When the newest record of a chunk was written, in nanoseconds of the writer's monotonic clock; None where it has none.

    `data`: the whole chunk. `sequence`: its sequence number; records with another one are left from an earlier use and ignored.
    """
    whole = HEAD_SIZE + (len(data) - HEAD_SIZE) // RECORD_SIZE * RECORD_SIZE
    if whole <= HEAD_SIZE:
        return None
    view = memoryview(data)[HEAD_SIZE:whole]
    times, marks = view.cast("Q")[::3].tolist(), view.cast("I")[5::6].tolist()
    if sys.byteorder != "little":
        return max((one.at for one in parse_records(data, sequence)), default=None)
    mine = (at for at, mark in zip(times, marks, strict=True) if mark == sequence and at <= MAX_NS)
    return max(mine, default=None)


def count_events(data: bytes, sequence: int) -> int:
    """The number of events in this chunk, without records of steps and leftovers of an earlier use. Faster than parsing them."""
    if sys.byteorder != "little":
        return sum(one.kind is not None for one in parse_records(data, sequence))
    whole = max(0, len(data) - HEAD_SIZE) // RECORD_SIZE * RECORD_SIZE
    view = memoryview(data)[HEAD_SIZE : HEAD_SIZE + whole]
    kinds, marks = view.cast("B")[18::24].tolist(), view.cast("I")[5::6].tolist()
    return sum(mark == sequence and kind in KINDS for kind, mark in zip(kinds, marks, strict=True))


def parse_records(data: bytes, sequence: int) -> Iterator[TraceRecord]:
    """The complete records of one chunk. `data`: the chunk with its head. Records with another `sequence` are left from an
    earlier use and ignored.
    """
    whole = HEAD_SIZE + (len(data) - HEAD_SIZE) // RECORD_SIZE * RECORD_SIZE
    for at, name, line, depth, kind, _, mark in _RECORD.iter_unpack(data[HEAD_SIZE:whole]):
        if mark != sequence or at > MAX_NS:
            continue
        if kind == STEP:
            yield TraceRecord(at, 0, name | line << 32, depth, None)
        elif kind in KINDS:
            yield TraceRecord(at, name, line if line <= MAX_LINE else 0, depth, KINDS[kind])
