"""What a file holds, also where it is compressed: `rank3.log.gz`, as logrotate and kubectl's archives leave it."""

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

_Packed = gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile


def _gzip(file: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file)


_OPENERS: Mapping[bytes, Callable[[BinaryIO], _Packed]] = {
    b"\x1f\x8b": _gzip,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_SUFFIXES = (".gz", ".bz2", ".xz")
_CHUNK = 1 << 20
MAX_UNPACKED = 1 << 30
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def last_bytes(path: Path, most: int) -> bytes:
    """The last `most` bytes of what the file holds. Of a compressed one that is damaged, cut off or larger than `MAX_UNPACKED` bytes, the
    last ones of what can be read. Raises OSError for a file that cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(6)
        opener = next((one for magic, one in _OPENERS.items() if start.startswith(magic)), None)
        file.seek(0 if opener else max(0, path.stat().st_size - most))
        if opener is None:
            return file.read(most)
        with opener(file) as content:
            return _tail(content, most)


def _tail(content: _Packed, most: int) -> bytes:
    """The last `most` bytes of what can be unpacked."""
    kept: deque[bytes] = deque()
    size = read = 0
    with contextlib.suppress(*_DAMAGE):
        while read < MAX_UNPACKED and (chunk := content.read1(_CHUNK)):
            kept.append(chunk)
            read, size = read + len(chunk), size + len(chunk)
            while size - len(kept[0]) >= most:
                size -= len(kept.popleft())
    return b"".join(kept)[-most:]


def unpacked_name(name: str) -> str:
    """The name of a file without what its compression added: `rank3.log` for `rank3.log.gz`."""
    suffix = next((one for one in _SUFFIXES if name.endswith(one)), "")
    return name.removesuffix(suffix)
