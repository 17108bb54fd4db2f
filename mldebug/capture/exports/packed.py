"""What a file holds, also where it is compressed: `rank3.log.gz`, as logrotate and kubectl's archives leave it."""

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

Unpacker = gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile


def _gzip(file: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file)


_OPENERS: Mapping[bytes, Callable[[BinaryIO], Unpacker]] = {
    b"\x1f\x8b": _gzip,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x5d\x00\x00": lzma.LZMAFile,  # the older form, .lzma
}
_FOREIGN: Mapping[bytes, str] = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!\x1a\x07": "RAR",
}
"""What others compress with, and Python's library cannot read, by the first bytes of a file."""
_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma")
_CHUNK = 1 << 20
MAX_UNPACKED = 1 << 30
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class FileEnd(NamedTuple):
    """The last bytes of what a file holds. `damage`: why that is not all, in words; "" where it is."""

    data: bytes
    damage: str = ""


def opener_of(start: bytes) -> Callable[[BinaryIO], Unpacker] | None:
    """What unpacks a compressed file that begins with these bytes; None for a file that is not compressed."""
    return next((one for magic, one in _OPENERS.items() if start.startswith(magic)), None)


def foreign_form(start: bytes) -> str:
    """The program that compressed a file that begins with these bytes, where Python cannot unpack it: `zstd`; else ""."""
    return next((name for magic, name in _FOREIGN.items() if start.startswith(magic)), "")


def last_bytes(path: Path, most: int) -> FileEnd:
    """The last `most` bytes of what the file holds. Of a compressed one that is damaged, cut off or larger than `MAX_UNPACKED` bytes, the
    last ones of what can be read. Raises OSError for a file that cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(6)
        if name := foreign_form(start):
            return FileEnd(b"", f"it is compressed by {name}, which this program does not read")
        opener = opener_of(start)
        file.seek(0 if opener else max(0, path.stat().st_size - most))
        if opener is None:
            return FileEnd(file.read(most))
        with opener(file) as content:
            return _tail(content, most)


def _tail(content: Unpacker, most: int) -> FileEnd:
    """The last `most` bytes of what can be unpacked."""
    kept: deque[bytes] = deque()
    size = read = 0
    damage = "it is damaged or cut off"
    with contextlib.suppress(*_DAMAGE):
        for chunk in _chunks(content):
            kept.append(chunk)
            read, size = read + len(chunk), size + len(chunk)
            while size - len(kept[0]) >= most:
                size -= len(kept.popleft())
            if read >= MAX_UNPACKED:
                break
        damage = ""
    return FileEnd(b"".join(kept)[-most:], damage)


def _chunks(content: Unpacker) -> Iterator[bytes]:
    """What is unpacked, piece by piece. EOFError for a stream whose reader says only that it is wrong, as bzip2's does."""
    try:
        while chunk := content.read1(_CHUNK):
            yield chunk
    except OSError as error:
        if error.errno is not None:
            raise
        raise EOFError(str(error)) from error


def unpacked_name(name: str) -> str:
    """The name of a file without what its compression added: `rank3.log` for `rank3.log.gz`."""
    suffix = next((one for one in _SUFFIXES if name.endswith(one)), "")
    return name.removesuffix(suffix)
