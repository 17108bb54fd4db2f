"""Whether a file of `torch.save` is complete, by its zip directory, which is written last.

Nothing is unpickled.

Source: PKWARE APPNOTE 6.3.10, sections 4.3.14 to 4.3.16; PyTorch writes no comment, and a zip64
record above 4 GiB.
"""

import struct
from collections.abc import Iterator

from mldebug.storage.checkpoints.model import (
    BROKEN,
    UNSURE,
    WHOLE,
    ByteRange,
    Checkpoint,
    FileCheck,
    FileEntry,
)

TAIL = 4096  # bytes that are read of the end
HEAD = 32
_LOCAL = b"PK\x03\x04"
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_OLD = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number of torch.save before version 1.6


def wants(entry: FileEntry) -> Iterator[ByteRange]:
    """The byte ranges that must be read of a file of torch.save to tell whether it is whole: its beginning and its end."""
    yield head(entry)
    yield tail(entry)


def head(entry: FileEntry) -> ByteRange:
    """The byte range at the beginning of a file of torch.save that the check of its zip format reads."""
    return ByteRange(entry.path, 0, HEAD)


def tail(entry: FileEntry) -> ByteRange:
    """The byte range at the end of a file of torch.save that holds the end of its zip directory."""
    return ByteRange(entry.path, max(0, entry.size - TAIL), TAIL)


def last(entry: FileEntry) -> ByteRange:
    """The byte range of the end record, with which every zip file without a comment ends."""
    return ByteRange(entry.path, max(0, entry.size - _END.size), _END.size)


def is_ended(checkpoint: Checkpoint, entry: FileEntry) -> bool | None:
    """Whether the file ends with a zip end record (a shard is many zip files in a row); None where its end was not read."""
    end = checkpoint.parts.get(last(entry))
    return None if end is None else len(end) == _END.size and end.startswith(b"PK\x05\x06")


def check(checkpoint: Checkpoint, entry: FileEntry) -> FileCheck:
    """Whether the zip directory at the file's end fits the file's size, and the reason if not.

    A file that was cut off has no directory.
    """
    if not entry.size:
        return BROKEN, "is empty"
    begin, end = checkpoint.parts.get(head(entry)), checkpoint.parts.get(tail(entry))
    if begin is None or end is None:
        return UNSURE, checkpoint.unread.get(entry.path, "was not read")
    if _OLD in begin:
        return UNSURE, "has the format of torch.save before 1.6, which has no end mark"
    if begin[:4] != _LOCAL[: len(begin)]:
        zeros = not begin.strip(b"\0")
        return (BROKEN, "begins with zeros") if zeros else (UNSURE, "is no file of torch.save")
    if len(end) < min(TAIL, entry.size):
        return UNSURE, "changed while it was read"
    return _directory(end, max(0, entry.size - TAIL))


def _directory(end: bytes, offset: int) -> FileCheck:
    at = end.rfind(b"PK\x05\x06")
    if at < 0 or len(end) - at < _END.size:
        return BROKEN, "has no zip directory at its end: it was cut off"
    *_, size, start, comment = _END.unpack_from(end, at)
    if at + _END.size + comment != len(end):
        return BROKEN, "does not end where its zip directory says"
    stands = at
    if (found := at - _LOCATOR.size) >= 0 and end[found : found + 4] == b"PK\x06\x07":
        stands = found - _END64.size
        if stands < 0 or end[stands : stands + 4] != b"PK\x06\x06":
            return UNSURE, "has a zip directory that nobody wrote like this"
        *_, size, start = _END64.unpack_from(end, stands)
    if start + size != offset + stands:
        return BROKEN, "has a zip directory that does not fit its size"
    return WHOLE, ""
