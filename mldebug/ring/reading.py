"""A ring read while it is written: all of it, or only the last records, by few reads of pieces.

Whoever calls gives `read`, which returns the bytes at an offset (fewer at the end of the file), and may raise OSError; so
the same code reads a file here, one of a rank through the reader child, and bytes in a test. A chunk counts only where
its head says the same after it was read as before.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from mldebug.ring.layout import (
    HEAD_SIZE,
    HEADER_SIZE,
    MAX_STEP,
    UNKNOWN,
    Head,
    Record,
    parse_head,
    parse_header,
    parse_names,
    parse_records,
)
from mldebug.ring.records import Event, Header, Place, Ring, Thread

NAMES_AT_ONCE = 256 << 10  # bytes of the table that are read at first; most programs need no more
MAX_THREADS = 512  # whose last chunks are read for a tail
MAX_BROKEN = 8

Read = Callable[[int, int], bytes]
Heads = Callable[[Header], bytes]
"""All heads of chunks one after the other, 64 bytes each: where they can be had by one read."""


class _Chunk(NamedTuple):
    head: Head
    until: int  # when the thread's next chunk began; a large number for its last one


def read_header(read: Read) -> Header:
    """Raises ValueError where it is no ring."""
    return parse_header(read(0, HEADER_SIZE))


def read_ring(
    read: Read, last: int | None = None, heads: Heads | None = None, threads: bool = False
) -> Ring:
    """All records, or the `last` ones. Raises ValueError where it is no ring.

    `threads`: of each thread at least what its last chunk holds, though others wrote more since.
    """
    header = read_header(read)
    chunks = _chunks(read_heads(read, header, heads))
    taken, cut = _read_chunks(read, header, chunks, last, threads)
    names, broken = _names(read, header, max(_ids(taken), default=-1))
    events = tuple(_events(taken, names))
    if last is not None and not threads:
        cut = cut or len(events) > last
        events = events[-last:] if last else ()
    return Ring(
        header=header,
        events=events,
        threads=_threads(chunks, cut=cut),
        broken=tuple(filter(None, (broken,)))[:MAX_BROKEN],
    )


def read_heads(read: Read, header: Header, heads: Heads | None = None) -> list[Head]:
    """Of all chunks that are in use, by their sequence; a sequence that came before is nobody's."""
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
    found: dict[int, Head] = {}
    for number, piece in enumerate(pieces):
        head = parse_head(piece, number)
        if head is not None:
            found.setdefault(head.sequence, head)
    return [found[sequence] for sequence in sorted(found)]


def newest(read: Read, header: Header, heads: Sequence[Head]) -> int | None:
    """When the last record was written, of all threads; None: nothing was."""
    latest: dict[int, Head] = {head.thread: head for head in heads}
    recent = sorted(latest.values(), key=attrgetter("sequence"))[-MAX_THREADS:]
    times = (record.at for head in recent for record in _records(read, header, head))
    return max(times, default=None)


# --- chunks ----------------------------------------------------------------------------------------


def _chunks(heads: Sequence[Head]) -> list[_Chunk]:
    """Those that were written last first; the last one of each thread before all others."""
    until: dict[int, int] = {}
    found = []
    for head in reversed(heads):
        found.append(_Chunk(head, until.get(head.thread, 1 << 63)))
        until[head.thread] = head.began
    return sorted(found, key=lambda chunk: (-chunk.until, -chunk.head.sequence))


def _read_chunks(
    read: Read, header: Header, chunks: Sequence[_Chunk], last: int | None, threads: bool
) -> tuple[list[tuple[Head, list[Record]]], bool]:
    """Chunks with their records, and whether older ones were left out."""
    taken: list[tuple[Head, list[Record]]] = []
    times: list[int] = []
    for place, chunk in enumerate(chunks):
        if last is not None and _enough(times, chunk.until, last, place, threads):
            return taken, True
        records = _records(read, header, chunk.head)
        taken.append((chunk.head, records))
        if last is not None:
            times.extend(record.at for record in records)
            times = heapq.nlargest(last, times)
    return taken, False


def _enough(times: Sequence[int], until: int, last: int, place: int, threads: bool) -> bool:
    """Can none of the chunks from here on hold a record among the last?"""
    if until == 1 << 63:
        return place >= MAX_THREADS
    return threads or (len(times) >= last and min(times, default=0) >= until)


def _records(read: Read, header: Header, head: Head) -> list[Record]:
    """None where it has become another one's while it was read."""
    at = header.chunks_at + head.number * header.chunk_size
    data = read(at, header.chunk_size)
    after = parse_head(read(at, HEAD_SIZE), head.number)
    if after is None or after.sequence != head.sequence:
        return []
    return list(parse_records(data, head.sequence))


def _threads(chunks: Sequence[_Chunk], *, cut: bool) -> dict[int, Thread]:
    known = {chunk.head.sequence for chunk in chunks}
    found: dict[int, Thread] = {}
    for chunk in chunks:
        head = chunk.head
        told = found.setdefault(head.thread, Thread(head.name, head.main, cut))
        if head.before and head.before not in known:
            found[head.thread] = told._replace(cut=True)
    return found


# --- events ----------------------------------------------------------------------------------------


def _ids(taken: Iterable[tuple[Head, list[Record]]]) -> Iterator[int]:
    return (record.name for _, records in taken for record in records)


def _names(read: Read, header: Header, highest: int) -> tuple[Mapping[int, Place], str]:
    """As much of the table as the records need."""
    size = min(NAMES_AT_ONCE, header.names_size)
    while True:
        names, broken = parse_names(read(header.names_at, size))
        if size >= header.names_size or max(names, default=-1) >= highest:
            return names, broken if size >= header.names_size else ""
        size = min(size * 4, header.names_size)


def _events(
    taken: Sequence[tuple[Head, list[Record]]], names: Mapping[int, Place]
) -> Iterator[Event]:
    """By time, each with the step that the process had reached by then."""
    step: int | None = None
    for at, _, _, head, record in sorted(_moments(taken), key=lambda one: one[:3]):
        if record is None:
            step = head.step if head.step is not None else step
        elif record.kind is None:
            step = record.line if record.line <= MAX_STEP else step
        else:
            place = names.get(record.name, UNKNOWN)
            yield Event(at, head.thread, record.depth, record.kind, place, record.line, step)


def _moments(
    taken: Iterable[tuple[Head, list[Record]]],
) -> Iterator[tuple[int, int, int, Head, Record | None]]:
    """Records of one thread stay in their order; None is the beginning of a chunk."""
    for head, records in taken:
        at = head.began
        yield at, head.sequence, -1, head, None
        for place, record in enumerate(records):
            at = max(at, record.at)
            yield at, head.sequence, place, head, record
