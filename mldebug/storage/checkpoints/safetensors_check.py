"""Whether a safetensors file is whole: its header is JSON and says where the last tensor ends.

Source: the format's own README: 8 bytes little endian for the size of the header, the header, the tensors without holes.
"""

from collections.abc import Iterator

import msgspec

from mldebug.storage.checkpoints.model import (
    BROKEN,
    UNSURE,
    WHOLE,
    ByteRange,
    Checkpoint,
    FileCheck,
    FileEntry,
)

PREFIX = 8
MAX_HEADER = 4 << 20  # bytes that we read
LEGAL_HEADER = 100_000_000  # bytes that the format allows


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int]


def wants(checkpoint: Checkpoint, entry: FileEntry) -> Iterator[ByteRange]:
    """The byte ranges that `check` needs: the size of the header first, then the header."""
    yield _prefix(entry)
    size = _header_size(checkpoint, entry)
    if size is not None and size <= MAX_HEADER and PREFIX + size <= entry.size:
        yield ByteRange(entry.path, PREFIX, size)


def check(checkpoint: Checkpoint, entry: FileEntry) -> FileCheck:
    """Whether the file is as long as its header says: the last tensor must end where the file ends."""
    size = _header_size(checkpoint, entry)
    if entry.size < PREFIX:
        return BROKEN, "is shorter than any header"
    if size is None:
        return UNSURE, checkpoint.unread.get(entry.path, "was not read")
    if size > LEGAL_HEADER or PREFIX + size > entry.size:
        return BROKEN, "has a header that does not fit its size"
    if size > MAX_HEADER:
        return UNSURE, f"has a header of {size:,} bytes, which is not read"
    header = checkpoint.parts.get(ByteRange(entry.path, PREFIX, size))
    if header is None or len(header) < size:
        return UNSURE, checkpoint.unread.get(entry.path, "was not read")
    return _compare(header, PREFIX + size, entry.size)


def _compare(header: bytes, begin: int, size: int) -> FileCheck:
    try:
        tensors = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        ends = [
            msgspec.json.decode(raw, type=_Tensor).data_offsets[1]
            for name, raw in tensors.items()
            if name != "__metadata__"
        ]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return BROKEN, "has a header that is no JSON of tensors"
    wanted = begin + max(ends, default=0)
    if size < wanted:
        return BROKEN, f"has {size:,} of {wanted:,} bytes"
    return (WHOLE, "") if size == wanted else (BROKEN, f"has {size - wanted:,} bytes too many")


def _prefix(entry: FileEntry) -> ByteRange:
    return ByteRange(entry.path, 0, PREFIX)


def _header_size(checkpoint: Checkpoint, entry: FileEntry) -> int | None:
    found = checkpoint.parts.get(_prefix(entry))
    return int.from_bytes(found, "little") if found is not None and len(found) == PREFIX else None
