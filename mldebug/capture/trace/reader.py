"""Reads a ring while it is written: all of it as a stream, the last N records, or the last records of each thread.

The caller gives `read(offset, size)`, which returns the bytes at an offset (fewer at the end of the file) and may raise OSError; so the
same code reads a local file, a rank's file through the reader child, and bytes in a test. A chunk counts only where its head is the same
before and after it was read. A stream holds one chunk of each thread in memory, whatever the size of the ring.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mldebug.capture.trace.layout import (
    HEAD_SIZE,
    HEADER_SIZE,
    MAX_NAMES_SIZE,
    MAX_STEP,
    UNKNOWN,
    ChunkHead,
    TraceRecord,
    count_events,
    last_chunks,
    newest_time,
    parse_head,
    parse_header,
    parse_names,
    parse_records,
)
from mldebug.capture.trace.records import (
    ListedEvents,
    Ring,
    RingHeader,
    TracedFunction,
    TracedThread,
    TraceEvent,
    TraceEvents,
)

Read = Callable[[int, int], bytes]


TimedRecord = tuple[
    int, int, int, ChunkHead, TraceRecord | None
]  # time, sequence, place in the chunk
NAMES_AT_ONCE = 256 << 10  # bytes of the table that are read at first; most programs need no more
MOST_NAMES = 4 << 20  # bytes of it for a tail; functions that stand behind them have no name there
MOST_CHUNKS = 8 << 20  # bytes of chunks for a tail; of 64 threads as they are written half of it
MAX_THREADS = 64  # whose last chunks are read for a tail
_OPEN = 1 << 63  # later than any time


def chunk_bytes(read: Read, header: RingHeader, head: ChunkHead) -> bytes:
    """The bytes of the chunk with this head, its head included; empty where the process overwrote the chunk meanwhile."""
    at = header.chunks_at + head.number * header.chunk_size
    data = read(at, header.chunk_size)
    after = parse_head(read(at, HEAD_SIZE), head.number)
    return data if after is not None and after.sequence == head.sequence else b""


def timed_records(
    chunks: Iterable[tuple[ChunkHead, Iterable[TraceRecord]]],
) -> Iterator[TimedRecord]:
    """The records of one thread's chunks, in order, each with a time (nanoseconds) that never goes back. A record of None marks
    the beginning of a chunk.
    """
    at = 0
    for head, records in chunks:
        at = max(at, head.began)
        yield at, head.sequence, -1, head, None
        for place, record in enumerate(records):
            at = max(at, record.at)
            yield at, head.sequence, place, head, record


def by_time(
    threads: Sequence[Iterator[TimedRecord]], names: Mapping[int, TracedFunction]
) -> Iterator[TraceEvent]:
    """Merge the records of several threads into events ordered by time, each with the training step reached by then. `names`: the
    traced functions by number.
    """
    step: int | None = None
    for at, _, _, head, record in heapq.merge(*threads):
        if record is None:
            step = head.step if head.step is not None else step
        elif record.kind is None:
            step = record.line if record.line <= MAX_STEP else step
        else:
            place = names.get(record.name, UNKNOWN)
            yield TraceEvent(at, head.thread, record.depth, record.kind, place, record.line, step)


class StreamedEvents(TraceEvents):
    """The events of a ring file (call trace), read and decoded while they are iterated: only one chunk of each thread is in
    memory.
    """

    def __init__(
        self,
        read: Read,
        header: RingHeader,
        heads: Sequence[ChunkHead],
        names: Mapping[int, TracedFunction],
    ) -> None:
        self._read, self._header, self._names = read, header, names
        self._heads = heads
        self._chunks: dict[int, list[ChunkHead]] = defaultdict(list)
        for head in heads:
            self._chunks[head.thread].append(head)

    def __iter__(self) -> Iterator[TraceEvent]:
        return by_time([self._moments(some) for some in self._chunks.values()], self._names)

    def __len__(self) -> int:
        return sum(
            count_events(chunk_bytes(self._read, self._header, h), h.sequence) for h in self._heads
        )

    def of(self, thread: int) -> Iterator[TraceEvent]:
        """The events of one thread, by its kernel thread id. Their steps come from this thread's own records alone."""
        return by_time([self._moments(self._chunks.get(thread, []))], self._names)

    @property
    def newest(self) -> int | None:
        """When the last event of any thread happened, nanoseconds of the writer's monotonic clock; None where there is none."""
        times = (
            newest_time(chunk_bytes(self._read, self._header, h), h.sequence) for h in self._heads
        )
        return max((at for at in times if at is not None), default=None)

    def _moments(self, heads: Iterable[ChunkHead]) -> Iterator[TimedRecord]:
        return timed_records((head, self._records(head)) for head in heads)

    def _records(self, head: ChunkHead) -> Iterator[TraceRecord]:
        yield from parse_records(chunk_bytes(self._read, self._header, head), head.sequence)


Heads = Callable[[RingHeader], bytes]
"""All heads of chunks one after the other, 64 bytes each: where they can be had by one read."""


class _Chunk(NamedTuple):
    head: ChunkHead
    until: int  # when the thread's next chunk began; a large number for its last one


Taken = list[tuple[ChunkHead, list[TraceRecord]]]


def read_header(read: Read) -> RingHeader:
    """Read and parse the header of a ring file (call trace). Raises ValueError where the file is none."""
    return parse_header(read(0, HEADER_SIZE))


def read_last(read: Read, last: int) -> Ring:
    """Read the last `last` events of a ring file, of all threads together. Raises ValueError where the file is no ring."""
    header = read_header(read)
    chunks = _chunks(read_heads(read, header))
    taken, cut = _read_last(read, header, chunks, last)
    ring = _ring(read, header, chunks, taken, cut=cut)
    if len(ring.events) <= last:
        return ring
    threads = {number: one._replace(cut=True) for number, one in ring.threads.items()}
    return msgspec.structs.replace(
        ring, events=ListedEvents([*ring.events][-last:]), threads=threads
    )


def read_whole(read: Read) -> Ring:
    """Open a ring file with all its records. They are read only when the events are iterated, so `read` has to work until then.
    Raises ValueError where the file is no ring.
    """
    header = read_header(read)
    heads = read_heads(read, header)
    names, broken = parse_names(read(header.names_at, header.names_size))
    return Ring(
        header=header,
        events=StreamedEvents(read, header, heads, names),
        threads=_threads(_chunks(heads), cut=False),
        broken=(broken,) if broken else (),
    )


def read_ends(read: Read, last: int, heads: Heads) -> Ring:
    """Read the last chunk of at most 64 threads, and as many more of the main thread as hold `last` records, with few reads.

    `heads` returns the heads of all chunks, for files where one read gets them all. Raises ValueError where the file is no ring.
    """
    header = read_header(read)
    chunks = _chunks(read_heads(read, header, heads))
    taken = _read_ends(read, header, chunks, last)
    return _ring(read, header, chunks, taken, cut=True, most=MOST_NAMES)


def _ring(
    read: Read,
    header: RingHeader,
    chunks: Sequence[_Chunk],
    taken: Taken,
    *,
    cut: bool,
    most: int = MAX_NAMES_SIZE,
) -> Ring:
    names, broken = _names(read, header, max(_ids(taken), default=-1), most)
    return Ring(
        header=header,
        events=ListedEvents(by_time(_by_thread(taken), names)),
        threads=_threads(chunks, cut=cut),
        broken=(broken,) if broken else (),
    )


def read_heads(read: Read, header: RingHeader, heads: Heads | None = None) -> list[ChunkHead]:
    """The heads of all chunks in use, by ascending sequence number; of two with the same number the first is taken. `heads`:
    reads all of them at once; without it they are read one by one.
    """
    if heads is not None:
        data = heads(header)
        pieces: Iterable[bytes] = (
            data[at : at + HEAD_SIZE] for at in range(0, len(data), HEAD_SIZE)
        )
    else:
        pieces = (
            read(header.chunks_at + number * header.chunk_size, HEAD_SIZE)
            for number in range(header.chunks)
        )
    found: dict[int, ChunkHead] = {}
    for number, piece in enumerate(pieces):
        head = parse_head(piece, number)
        if head is not None:
            found.setdefault(head.sequence, head)
    return [found[sequence] for sequence in sorted(found)]


def newest(read: Read, header: RingHeader, heads: bytes) -> int | None:
    """When the last record was written, in nanoseconds of the writer's monotonic clock; None where there is none. Looks at the
    newest chunk of at most 64 threads. `heads`: the headers of all chunks of the ring file, as bytes.
    """
    times: list[int] = []
    for number, sequence in last_chunks(heads)[: _so_many(header)]:
        data = read(header.chunks_at + number * header.chunk_size, header.chunk_size)
        at = newest_time(data, sequence) if data[:4] == sequence.to_bytes(4, "little") else None
        times += [] if at is None else [at]
    return max(times, default=None)


def _so_many(header: RingHeader) -> int:
    """Of how many threads the last chunk is read: half of `MOST_CHUNKS`, the other half is the main thread's."""
    return min(MAX_THREADS, max(1, MOST_CHUNKS // 2 // header.chunk_size))


# --- chunks ----------------------------------------------------------------------------------------


def _chunks(heads: Sequence[ChunkHead]) -> list[_Chunk]:
    """Those that were written last first; the last one of each thread before all others."""
    until: dict[int, int] = {}
    found = []
    for head in reversed(heads):
        found.append(_Chunk(head, until.get(head.thread, _OPEN)))
        until[head.thread] = head.began
    return sorted(found, key=lambda chunk: (-chunk.until, -chunk.head.sequence))


def _read_last(
    read: Read, header: RingHeader, chunks: Sequence[_Chunk], last: int
) -> tuple[Taken, bool]:
    """Chunks with their records, and whether older ones were left out."""
    taken: Taken = []
    times: list[int] = []
    for chunk in chunks:
        if len(times) >= last and min(times, default=0) >= chunk.until:
            return taken, True  # none of the chunks from here on can hold a record among the last
        records = _records(read, header, chunk.head)
        taken.append((chunk.head, records))
        times = heapq.nlargest(last, [*times, *(record.at for record in records if record.kind)])
    return taken, False


def _read_ends(read: Read, header: RingHeader, chunks: Sequence[_Chunk], last: int) -> Taken:
    """The last chunk of each thread, and of the main thread as many as hold so many records."""
    open_ = [chunk for chunk in chunks if chunk.until == _OPEN]
    open_.sort(key=lambda chunk: (not chunk.head.main, -chunk.head.sequence))
    taken = [(one.head, _records(read, header, one.head)) for one in open_[: _so_many(header)]]
    have = len(taken[0][1]) if taken and taken[0][0].main else last
    most = MOST_CHUNKS // header.chunk_size
    for chunk in chunks:
        if have >= last or len(taken) >= most:
            break
        if chunk.head.main and chunk.until != _OPEN:
            taken.append((chunk.head, _records(read, header, chunk.head)))
            have += len(taken[-1][1])
    return taken


def _records(read: Read, header: RingHeader, head: ChunkHead) -> list[TraceRecord]:
    """None of them where the chunk has become another one's while it was read."""
    return list(parse_records(chunk_bytes(read, header, head), head.sequence))


def _threads(chunks: Sequence[_Chunk], *, cut: bool) -> dict[int, TracedThread]:
    sequences = {chunk.head.sequence for chunk in chunks}
    found: dict[int, TracedThread] = {}
    for chunk in chunks:
        head = chunk.head
        thread = found.setdefault(head.thread, TracedThread(head.name, head.main, cut))
        if head.before and head.before not in sequences:
            found[head.thread] = thread._replace(cut=True)
    return found


# --- events ----------------------------------------------------------------------------------------


def _ids(taken: Iterable[tuple[ChunkHead, list[TraceRecord]]]) -> Iterator[int]:
    return (record.name for _, records in taken for record in records)


def _names(
    read: Read, header: RingHeader, highest: int, most: int
) -> tuple[Mapping[int, TracedFunction], str]:
    """As much of the table as the records need."""
    whole = min(header.names_size, most)
    size = min(NAMES_AT_ONCE, whole)
    while True:
        names, broken = parse_names(read(header.names_at, size))
        if size >= whole or max(names, default=-1) >= highest:
            return names, broken if size >= header.names_size else ""
        size = min(size * 4, whole)


def _by_thread(taken: Taken) -> list[Iterator[TimedRecord]]:
    found: dict[int, list[tuple[ChunkHead, list[TraceRecord]]]] = defaultdict(list)
    for one in sorted(taken, key=lambda one: one[0].sequence):
        found[one[0].thread].append(one)
    return [timed_records(some) for some in found.values()]
