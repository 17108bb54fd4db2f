"""Trace rings made by hand, byte by byte as the docstring of `mldebug_training.tracing.ring` says, by none of its code."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

CHUNK = 4096
CALL, RETURN, LINE, UNWIND, YIELD, RESUME, STEP = range(1, 8)
NAMES = 64 << 10
CHUNKS_AT = 4096 + NAMES
WALL, MONOTONIC = 1_795_000_000_000_000_000, 5_000_000_000
FIT = (CHUNK - 64) // 24  # records of a chunk


class Rec(NamedTuple):
    """One record."""

    at: int
    name: int
    line: int = 0
    depth: int = 0
    kind: int = CALL
    mark: int | None = None  # None: the sequence of its chunk


class Chunk(NamedTuple):
    """One chunk."""

    sequence: int
    thread: int
    records: Sequence[Rec]
    step: int = -1
    began: int = 0
    before: int = 0
    main: int = 1
    name: bytes = b"MainThread"


def header(
    chunks: int,
    *,
    pid: int = 4711,
    start: int = 99,
    boot: bytes = b"",
    rank: int = 0,
    child: int = 0,
    wall: int = WALL,
    monotonic: int = MONOTONIC,
) -> bytearray:
    """A header of 4096 bytes."""
    data = bytearray(4096)
    data[:8] = b"mltrace\x01"
    size = CHUNKS_AT + chunks * CHUNK
    struct.pack_into("<IIQQQQII", data, 8, 4096, 24, size, 4096, NAMES, CHUNKS_AT, CHUNK, chunks)
    struct.pack_into("<QQ40siiiI", data, 56, pid, start, boot, rank, 2, rank, child)
    struct.pack_into("<QQqQQIIQQ", data, 128, wall, monotonic, 3, monotonic, 0, 1, 3, monotonic, 2)
    struct.pack_into("64s32s64s", data, 192, b"monitoring, python", b"CPython 3.11.7", b"gpu-17")
    return data


def names(functions: Sequence[tuple[str, str, str, int]]) -> bytes:
    """The table: (function, path, module, first line), each with its file before it; the first function has id 1."""
    data = bytearray()
    number = 0
    for function, path, module, line in (("?", "?", "", 0), *functions):
        for text, first, file in ((f"{path}\0{module}", 0, 0xFFFFFFFF), (function, line, number)):
            raw = text.encode()
            data += struct.pack("<IIII", number + 1, first, file, len(raw)) + raw
            data += bytes(-len(data) % 8)
            number += 1
    return bytes(data) + bytes(NAMES - len(data))


def chunk(one: Chunk | None) -> bytes:
    """A chunk, or an empty one."""
    if one is None:
        return bytes(CHUNK)
    head = struct.pack(
        *("<IIQqQII24s", one.sequence, one.thread, 1, one.step, one.began, one.before),
        *(one.main, one.name),
    )
    body = b"".join(
        struct.pack(
            "<QIIHBBI",
            r.at,
            r.name,
            r.line,
            r.depth,
            r.kind,
            0,
            one.sequence if r.mark is None else r.mark,
        )
        for r in one.records
    )
    return (head + body).ljust(CHUNK, b"\0")


def function_id(number: int) -> int:
    """The id of the function given as that one to `names`, from 0."""
    return 3 + 2 * number


FUNCTIONS = (
    ("train_step", "/job/train.py", "train", 40),
    ("load", "/job/data.py", "data", 7),
    ("all_reduce", "/job/comm.py", "comm", 3),
)


def ring(
    chunks: Sequence[Chunk | None],
    functions: Sequence[tuple[str, str, str, int]] = FUNCTIONS,
    *,
    pid: int = 4711,
    start: int = 99,
    boot: bytes = b"",
    rank: int = 0,
    child: int = 0,
    wall: int = WALL,
) -> bytes:
    """A whole file."""
    head = header(len(chunks), pid=pid, start=start, boot=boot, rank=rank, child=child, wall=wall)
    return bytes(head) + names(functions) + b"".join(map(chunk, chunks))


def steps(first: int, last: int, stuck_in: int = 1, thread: int = 4711) -> list[Chunk]:
    """A chunk for each step: train_step calls load and all_reduce; in the last it stays in function `stuck_in`."""
    found: list[Chunk] = []
    at = MONOTONIC + 1_000_000
    for step in range(first, last + 1):
        rows = [Rec(at, step, 0, 0, STEP), Rec(at + 1, function_id(0), 40)]
        rows += [Rec(at + 2, function_id(0), 41, 1, LINE)]
        for n, function in enumerate((1, 2)):
            rows.append(Rec(at + 10 + 10 * n, function_id(function), 7, 1))
            if step == last and function == stuck_in:
                rows.append(Rec(at + 15 + 10 * n, function_id(function), 9, 2, LINE))
                break
            rows.append(Rec(at + 15 + 10 * n, function_id(function), 8, 1, RETURN))
        else:
            rows.append(Rec(at + 90, function_id(0), 44, 0, RETURN))
        found.append(Chunk(step + 1, thread, rows, step - 1, at, step if found else 0))
        at += 1_000_000
    return found
