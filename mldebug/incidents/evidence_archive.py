"""Evidence that comes as one file, as people send it by mail: a tar, a zip, or one file compressed by gzip, bzip2 or xz."""

import contextlib
import lzma
import re
import struct
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Self

from mldebug.capture.exports.packed import Unpacker, foreign_form, opener_of, unpacked_name
from mldebug.core.errors import EvidenceError

MAX_BYTES = 1 << 30  # of all files together, unpacked
MAX_FILES = 50_000
CHUNK = 1 << 20
MAX_HEADER = (
    16 << 10
)  # bytes of what a tar says of one file: a path, and what a filesystem notes, need less
MAX_DEPTH = 64  # folders in each other: Python's library makes and removes a thousand of them by calling itself as often, and fails
MAX_SECONDS = 300.0
LARGE = "unpack it yourself, and give the folder"
BROKEN = "it was cut off or changed on its way: copy it again"
DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError),
    *(OverflowError, MemoryError, RecursionError, struct.error),  # sizes and headers made up
)
"""What Python's readers of archives raise, besides OSError, for one that was damaged or made up."""
_ZIP = b"PK\x03\x04"  # also of one that was cut off, and has no table of its files any more
MAX_TABLE = 16 << 20  # bytes: MAX_FILES with names of 200 characters need less
_PIECEMEAL = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
)  # of the others Python's reader unpacks 4 KiB at once, which may be gigabytes
_OTHER_WAYS = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma", 93: "zstd"}
_ZIP_END = (1 << 16) + 200  # bytes at its end: the longest remark, and two records
_TABLES = (  # its end records, and what in them is the size of the table
    (re.compile(rb"PK\x05\x06.{8}(.{4})", re.DOTALL), "<L"),
    (re.compile(rb"PK\x06\x06.{36}(.{8})", re.DOTALL), "<Q"),
)
_ELSEWHERE = 0xFFFFFFFF  # in the first: the second has it
_WHOLE = b"xgXLK"  # types of entries that Python's reader takes whole: headers of pax and Solaris, long names of GNU


class _Packed(NamedTuple):
    name: str
    content: IO[bytes] | Unpacker


class TarEntry(tarfile.TarInfo):
    """An entry of a tar from somebody else. EvidenceError where one that is read whole says that it is larger than a header."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read the 512 bytes that stand before an entry."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _WHOLE and not 0 <= entry.size <= MAX_HEADER:
            raise EvidenceError(
                f"the archive has a header of {entry.size:,} bytes, more than {MAX_HEADER:,}", LARGE
            )
        return entry


def entries(tar: tarfile.TarFile, most: int, most_bytes: int) -> Iterator[tarfile.TarInfo]:
    """The entries of a tar, opened with `TarEntry`, one after the other and none kept. Raises EvidenceError for more than `most`,
    also of folders and links, for more than `most_bytes` unpacked, and where it takes too long; before any of it is unpacked.
    """
    until = time.monotonic() + MAX_SECONDS
    number = 0
    while (entry := tar.next()) is not None:
        number += 1
        if number > most:
            raise EvidenceError(f"the archive holds more than {most:,} files", LARGE)
        if tar.offset > most_bytes:  # where the next entry begins
            raise EvidenceError(f"the archive holds more than {most_bytes >> 20:,} MiB", LARGE)
        if time.monotonic() > until:
            raise EvidenceError(f"to read the archive takes more than {MAX_SECONDS:g} s", LARGE)
        vars(tar)["members"].clear()
        vars(tar)["pax_headers"].clear()  # those for all entries, which may grow with each
        yield entry


def is_archive(file: Path) -> bool:
    """Whether this file is an archive or a compressed file. False where it cannot be read; EvidenceError where it is a bomb."""
    try:
        if _is_tar(file) or zipfile.is_zipfile(file):
            return True
        start = _start(file)
        return bool(opener_of(start) or foreign_form(start) or start.startswith(_ZIP))
    except (OSError, *DAMAGE):
        return False


def _start(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(6)


def _is_tar(file: Path) -> bool:
    """Whether it begins like a tar, packed or not; also where its first header is one that cannot be read."""
    try:
        with tarfile.open(file, tarinfo=TarEntry):
            return True
    except tarfile.TarError:
        return False
    except DAMAGE:
        return True


@contextlib.contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """A temporary folder with an archive's files, deleted afterwards.

    Where all lie in one folder of the archive, that folder.

    Links and devices are left out, and no file is written outside the folder. Raises EvidenceError
    where the archive is damaged, or holds more than `MAX_FILES` files or `MAX_BYTES` bytes.
    """
    with tempfile.TemporaryDirectory(prefix="mldebug-") as name:
        folder = Path(name) / file.name.partition(".")[0]
        folder.mkdir()
        try:
            _unpack(file, folder)
        except DAMAGE as error:
            raise EvidenceError(f"{file} cannot be unpacked: {error}", BROKEN) from error
        except RuntimeError as error:  # a zip with a password
            raise EvidenceError(f"{file} cannot be unpacked: {error}", LARGE) from error
        except OSError as error:
            why = error.strerror or str(error)
            raise EvidenceError(f"{file} cannot be unpacked: {why}", LARGE) from error
        inside = list(folder.iterdir())
        yield inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _unpack(file: Path, folder: Path) -> None:
    left = MAX_BYTES
    for number, (name, content) in enumerate(_files(file)):
        if number >= MAX_FILES:
            raise EvidenceError(f"{file} holds more than {MAX_FILES:,} files", LARGE)
        parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..")]
        if len(parts) > MAX_DEPTH:
            raise EvidenceError(f"{file} holds folders {len(parts):,} deep", LARGE)
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as target:
            while chunk := content.read(CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise EvidenceError(f"{file} holds more than {MAX_BYTES >> 30} GiB", LARGE)
                target.write(chunk)


def _files(file: Path) -> Iterator[_Packed]:
    """The regular files of an archive, one after the other."""
    start = _start(file)
    if name := foreign_form(start):
        raise EvidenceError(
            f"{file} is compressed by {name}, which this program does not read", LARGE
        )
    if _is_tar(file):
        with tarfile.open(file, tarinfo=TarEntry) as tar:
            for member in entries(tar, MAX_FILES, MAX_BYTES + (MAX_FILES << 11)):
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield _Packed(member.name, content)
            _check_rest(tar)
    elif zipfile.is_zipfile(file) or start.startswith(_ZIP):
        yield from _of_zip(file)
    else:
        opener = opener_of(start)
        if opener is None:
            raise EvidenceError(f"{file} is no archive", BROKEN)
        with file.open("rb") as opened, opener(opened) as only:
            yield _Packed(unpacked_name(file.name), only)


def _of_zip(file: Path) -> Iterator[_Packed]:
    if (size := _table_size(file)) > MAX_TABLE:
        raise EvidenceError(f"the archive has a table of its files of {size:,} bytes", LARGE)
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            kind = info.external_attr >> 28  # of a file of Unix: 8 is a regular one
            if info.is_dir() or kind not in (0, 8):
                continue
            if info.compress_type not in _PIECEMEAL:
                way = _OTHER_WAYS.get(info.compress_type, "another way")
                raise EvidenceError(f"{info.filename} in it is compressed by {way}", LARGE)
            with archive.open(info) as content:
                yield _Packed(info.filename, content)


def _table_size(file: Path) -> int:
    """How many bytes the table at the end of a zip says that it has: Python's reader makes all of it at once, ten times as large."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _ZIP_END))
        end = opened.read()
    # whichever of the records there Python's reader believes
    found = (struct.unpack(form, one[1]) for mark, form in _TABLES for one in mark.finditer(end))
    return max((size for (size,) in found if size != _ELSEWHERE), default=0)


def _check_rest(tar: tarfile.TarFile) -> None:
    """Read what follows the last file: gzip finds only there that what it unpacked was changed on its way."""
    until = time.monotonic() + MAX_SECONDS
    while tar.fileobj is not None and tar.fileobj.read(CHUNK):
        if time.monotonic() > until:
            raise EvidenceError(f"to read the archive takes more than {MAX_SECONDS:g} s", LARGE)
