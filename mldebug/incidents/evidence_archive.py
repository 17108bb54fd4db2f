"""Evidence that comes as one file, as people send it by mail: a tar, a zip, or one file compressed by gzip."""

import contextlib
import gzip
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from mldebug.core.errors import EvidenceError

MAX_BYTES = 1 << 30  # of all files together, unpacked
MAX_FILES = 50_000
CHUNK = 1 << 20
LARGE = "unpack it yourself, and give the folder"
BROKEN = "it was cut off or changed on its way: copy it again"
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError)


class _Packed(NamedTuple):
    name: str
    content: IO[bytes] | gzip.GzipFile


def is_archive(file: Path) -> bool:
    """Whether this file is an archive or a compressed file. False where it cannot be read."""
    try:
        if tarfile.is_tarfile(file) or zipfile.is_zipfile(file):
            return True
        with file.open("rb") as opened:
            return opened.read(2) == b"\x1f\x8b"
    except (OSError, *_DAMAGE):
        return False


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
        except _DAMAGE as error:
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
        path = folder.joinpath(
            *(part for part in PurePosixPath(name).parts if part not in ("/", ".."))
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as target:
            while chunk := content.read(CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise EvidenceError(f"{file} holds more than {MAX_BYTES >> 30} GiB", LARGE)
                target.write(chunk)


def _files(file: Path) -> Iterator[_Packed]:
    """The regular files of an archive, one after the other."""
    if tarfile.is_tarfile(file):
        with tarfile.open(file) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield _Packed(member.name, content)
    elif zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                kind = info.external_attr >> 28  # of a file of Unix: 8 is a regular one
                if not info.is_dir() and kind in (0, 8):
                    with archive.open(info) as content:
                        yield _Packed(info.filename, content)
    else:
        with gzip.open(file) as only:
            yield _Packed(file.stem, only)
