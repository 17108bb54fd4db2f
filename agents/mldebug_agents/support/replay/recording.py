"""A recorded node, read from a support bundle: the tar.gz itself, or a folder that it was unpacked to.

A bundle comes from somebody else: sizes, lines and times are limited, links are not followed, sparse files are refused, nothing is
unpacked onto the disk.
"""

import gzip
import io
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from mldebug.config.schema import Config
from mldebug.core.errors import ConfigError, EvidenceError, MldebugError
from mldebug.core.files import read_bytes
from mldebug.core.model import Job
from mldebug.core.yaml_reader import parse
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch
from mldebug.incidents.evidence_archive import DAMAGE, TarEntry, entries
from mldebug.status.snapshot import Snapshot
from mldebug_agents.support.bundle import layout
from mldebug_agents.support.bundle.kernel_log import split_records
from mldebug_agents.support.bundle.layout import GpuReadFailure, Manifest

MAX_BYTES = 256 << 20  # of a bundle, unpacked
MAX_ENTRIES = 10_000  # of an archive
MAX_LINES = 20_000  # of one kind of readings: the longest recording (10 minutes) has 600
MAX_KERNEL_LINES = 400_000  # the 4 MiB that are recorded have some 50 000
LAST_TIME = 253_402_300_799.0  # unix seconds: the year 9999, the last that has a date
T = TypeVar("T")
M = TypeVar("M", Snapshot, NodeWatch, NodeGpus, GpuReadFailure)
WAY_OUT = "give a file or folder that `mldebug support-bundle` has made"
WANTED = (
    layout.MANIFEST, layout.CONFIG, layout.STATUSES, layout.JOBS, layout.WATCH, layout.FULL, layout.FAILED,
    layout.KERNEL, layout.MEMORY,
)  # fmt: skip


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a bundle, ready to be replayed; readings are sorted, the oldest first."""

    manifest: Manifest
    statuses: tuple[Snapshot, ...] = ()
    jobs: tuple[Job, ...] = ()
    watch: tuple[NodeWatch, ...] = ()
    full: tuple[NodeGpus, ...] = ()
    failed: tuple[GpuReadFailure, ...] = ()
    kernel: tuple[bytes, ...] | None = None  # records; None: the log could not be read there
    memory: dict[str, bytes] = {}
    config: Config | None = None  # as it was there; None where it cannot be read any more

    @property
    def node(self) -> str:
        """The recorded node's name."""
        return self.statuses[0].node if self.statuses else "recorded"


def load(path: Path) -> Recording:
    """Read a bundle. Raises EvidenceError, with a sentence, where the file or folder is not a bundle."""
    files = _folder(path) if path.is_dir() else _archive(path)
    if layout.MANIFEST not in files:
        raise EvidenceError(f"{path} has no {layout.MANIFEST}", WAY_OUT)
    manifest = _json(files, layout.MANIFEST, Manifest)
    if manifest.schema != layout.SCHEMA:
        raise EvidenceError(f"{path} is of schema {manifest.schema[:60]!r}", "use a newer mldebug")
    _check_times(layout.MANIFEST, manifest.began_at, manifest.ended_at, manifest.clocks.unix, manifest.clocks.monotonic)  # fmt: skip
    memory = _json(files, layout.MEMORY, dict[str, msgspec.Raw]) if layout.MEMORY in files else {}
    return Recording(
        manifest=manifest,
        statuses=_lines(files, layout.STATUSES, Snapshot),
        jobs=_json(files, layout.JOBS, tuple[Job, ...]) if layout.JOBS in files else (),
        watch=_lines(files, layout.WATCH, NodeWatch),
        full=_lines(files, layout.FULL, NodeGpus),
        failed=_lines(files, layout.FAILED, GpuReadFailure),
        kernel=_kernel(files),
        memory={name: bytes(value) for name, value in memory.items()},
        config=_config(files.get(layout.CONFIG)),
    )


def _folder(path: Path) -> dict[str, bytes]:
    """Of a folder, or of the only one in it."""
    inner = [one for one in path.iterdir() if one.is_dir()]
    if not (path / layout.MANIFEST).exists() and len(inner) == 1:
        path = inner[0]
    return {name: read_bytes(path / name) for name in WANTED if (path / name).exists()}


def _archive(path: Path) -> dict[str, bytes]:
    try:
        with path.open("rb") as packed, gzip.open(packed) as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise EvidenceError(f"{path} has more than {MAX_BYTES >> 20} MiB in it", WAY_OUT)
        with tarfile.open(fileobj=io.BytesIO(data), tarinfo=TarEntry) as archive:
            return dict(_files_in(archive))
    except (OSError, *DAMAGE) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise EvidenceError(f"{path} cannot be read: {why}", WAY_OUT) from error


def _files_in(archive: tarfile.TarFile) -> list[tuple[str, bytes]]:
    """Return (name, content) of the wanted files. One listed twice counts twice; sparse files are refused, as their size is unbounded."""
    found, left = [], MAX_BYTES
    for entry in entries(archive, MAX_ENTRIES, MAX_BYTES):
        name = entry.name.partition("/")[2]
        if not entry.isreg() or name not in WANTED:
            continue
        left -= entry.size
        if entry.issparse() or left < 0:
            raise EvidenceError(f"{name} is larger than what was packed of it", WAY_OUT)
        content = archive.extractfile(entry)
        if content is not None:
            found.append((name, content.read()))
    return found


def _json(files: dict[str, bytes], name: str, kind: type[T]) -> T:
    return _decoded(name, lambda: msgspec.json.decode(files[name], type=kind))


def _lines(files: dict[str, bytes], name: str, kind: type[M]) -> tuple[M, ...]:
    """One value a line; EvidenceError says which line is malformed."""
    read = msgspec.json.Decoder(kind).decode
    content = files.get(name, b"")
    _check_count(name, content, MAX_LINES)
    found = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            where = f"{name}:{number}"
            moment = _decoded(where, partial(read, line))
            _check_times(where, moment.at)
            found.append(moment)
    return tuple(found)


def _kernel(files: dict[str, bytes]) -> tuple[bytes, ...] | None:
    content = files.get(layout.KERNEL)
    if content is None:
        return None
    _check_count(layout.KERNEL, content, MAX_KERNEL_LINES)
    return tuple(filter(None, split_records(content)))


def _check_count(name: str, content: bytes, most: int) -> None:
    """Each line costs far more than its bytes once it is decoded and played."""
    lines = content.count(b"\n") + content.count(b"\r")
    if lines > most:
        raise EvidenceError(
            f"{name} has {lines:,} lines, more than the {most:,} that can be played", WAY_OUT
        )


def _check_times(where: str, *seconds: float) -> None:
    """EvidenceError where one of them is no time that a node can have."""
    for second in seconds:
        if not 0 <= second <= LAST_TIME:
            raise EvidenceError(f"{where} is malformed: {second:g} is no time", WAY_OUT)


def _decoded(where: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"{where} is malformed: {str(error)[:200]}", WAY_OUT) from error


def _config(content: bytes | None) -> Config | None:
    """Another version's config, or one with a secret replaced, may not be legal: then it is not obeyed."""
    if content is None:
        return None
    try:
        return parse(content.decode(errors="replace"), layout.CONFIG, Config)
    except (ConfigError, MldebugError):
        return None
