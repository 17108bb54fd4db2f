"""Records of a ring by time, read and decoded as one goes through them: of a ring of any size, one chunk of each thread is in memory."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mldebug.capture.trace.layout import (
    HEAD_SIZE,
    MAX_STEP,
    UNKNOWN,
    Head,
    Record,
    count_events,
    newest_time,
    parse_head,
    parse_records,
)
from mldebug.capture.trace.records import Event, Events, Header, Place

Read = Callable[[int, int], bytes]
Moment = tuple[int, int, int, Head, Record | None]  # time, sequence, place in the chunk


def chunk_bytes(read: Read, header: Header, head: Head) -> bytes:
    """The whole chunk; empty where it is another one's by now."""
    at = header.chunks_at + head.number * header.chunk_size
    data = read(at, header.chunk_size)
    after = parse_head(read(at, HEAD_SIZE), head.number)
    return data if after is not None and after.sequence == head.sequence else b""


def moments(chunks: Iterable[tuple[Head, Iterable[Record]]]) -> Iterator[Moment]:
    """Records of one thread stay in their order, and time never goes back; None is the beginning of a chunk."""
    at = 0
    for head, records in chunks:
        at = max(at, head.began)
        yield at, head.sequence, -1, head, None
        for place, record in enumerate(records):
            at = max(at, record.at)
            yield at, head.sequence, place, head, record


def by_time(threads: Sequence[Iterator[Moment]], names: Mapping[int, Place]) -> Iterator[Event]:
    """By time, each with the step that the process had reached by then."""
    step: int | None = None
    for at, _, _, head, record in heapq.merge(*threads):
        if record is None:
            step = head.step if head.step is not None else step
        elif record.kind is None:
            step = record.line if record.line <= MAX_STEP else step
        else:
            place = names.get(record.name, UNKNOWN)
            yield Event(at, head.thread, record.depth, record.kind, place, record.line, step)


class Streamed(Events):
    """Read and decoded as one goes through them: one chunk of each thread is in memory."""

    def __init__(
        self, read: Read, header: Header, heads: Sequence[Head], names: Mapping[int, Place]
    ) -> None:
        self._read, self._header, self._names = read, header, names
        self._heads = heads
        self._chunks: dict[int, list[Head]] = defaultdict(list)
        for head in heads:
            self._chunks[head.thread].append(head)

    def __iter__(self) -> Iterator[Event]:
        return by_time([self._moments(some) for some in self._chunks.values()], self._names)

    def __len__(self) -> int:
        return sum(
            count_events(chunk_bytes(self._read, self._header, h), h.sequence) for h in self._heads
        )

    def of(self, thread: int) -> Iterator[Event]:
        """Those of one thread; each with the step of this thread's own records."""
        return by_time([self._moments(self._chunks.get(thread, []))], self._names)

    @property
    def newest(self) -> int | None:
        """Of all threads."""
        times = (
            newest_time(chunk_bytes(self._read, self._header, h), h.sequence) for h in self._heads
        )
        return max((at for at in times if at is not None), default=None)

    def _moments(self, heads: Iterable[Head]) -> Iterator[Moment]:
        return moments((head, self._records(head)) for head in heads)

    def _records(self, head: Head) -> Iterator[Record]:
        yield from parse_records(chunk_bytes(self._read, self._header, head), head.sequence)
