"""A recorded node, read from a support bundle: the tar.gz as it is, or a folder that it was unpacked to.

A bundle comes from somebody else: sizes are bounded, links are not followed, nothing is unpacked onto the disk.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from mldebug.config import Config
from mldebug.errors import ConfigError, EvidenceError, MldebugError
from mldebug.gpus.readings import NodeGpus, NodeWatch
from mldebug.model import Job
from mldebug.settings.parse import parse
from mldebug.snapshot import Snapshot
from mldebug.storage import read_bytes
from mldebug_agents.bundle import layout
from mldebug_agents.bundle.kernel import split_records
from mldebug_agents.bundle.layout import Failure, Manifest

MAX_BYTES = 256 << 20  # of a bundle, unpacked
T = TypeVar("T")
WAY_OUT = "give a file or folder that `mldebug support-bundle` has made"
WANTED = (
    layout.MANIFEST, layout.CONFIG, layout.STATUSES, layout.JOBS, layout.WATCH, layout.FULL, layout.FAILED,
    layout.KERNEL, layout.MEMORY,
)  # fmt: skip


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded, the oldest first."""

    manifest: Manifest
    statuses: tuple[Snapshot, ...] = ()
    jobs: tuple[Job, ...] = ()
    watch: tuple[NodeWatch, ...] = ()
    full: tuple[NodeGpus, ...] = ()
    failed: tuple[Failure, ...] = ()
    kernel: tuple[bytes, ...] | None = None  # records; None: the log could not be read there
    memory: dict[str, bytes] = {}
    config: Config | None = None  # as it was there; None where it cannot be read any more

    @property
    def node(self) -> str:
        """What the node is called in it."""
        return self.statuses[0].node if self.statuses else "recorded"


def load(path: Path) -> Recording:
    """Read a bundle; EvidenceError in words where it is none."""
    files = _folder(path) if path.is_dir() else _archive(path)
    if layout.MANIFEST not in files:
        raise EvidenceError(f"{path} has no {layout.MANIFEST}", WAY_OUT)
    manifest = _json(files, layout.MANIFEST, Manifest)
    if manifest.schema != layout.SCHEMA:
        raise EvidenceError(f"{path} is of schema {manifest.schema[:60]!r}", "use a newer mldebug")
    kernel = files.get(layout.KERNEL)
    memory = _json(files, layout.MEMORY, dict[str, msgspec.Raw]) if layout.MEMORY in files else {}
    return Recording(
        manifest=manifest,
        statuses=_lines(files, layout.STATUSES, Snapshot),
        jobs=_json(files, layout.JOBS, tuple[Job, ...]) if layout.JOBS in files else (),
        watch=_lines(files, layout.WATCH, NodeWatch),
        full=_lines(files, layout.FULL, NodeGpus),
        failed=_lines(files, layout.FAILED, Failure),
        kernel=None if kernel is None else tuple(filter(None, split_records(kernel))),
        memory={name: bytes(told) for name, told in memory.items()},
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
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return dict(_members(archive))
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise EvidenceError(f"{path} cannot be read: {why}", WAY_OUT) from error


def _members(archive: tarfile.TarFile) -> list[tuple[str, bytes]]:
    found = []
    for entry in archive:
        name = entry.name.partition("/")[2]
        content = archive.extractfile(entry) if entry.isreg() and name in WANTED else None
        if content is not None:
            found.append((name, content.read()))
    return found


def _json(files: dict[str, bytes], name: str, kind: type[T]) -> T:
    return _decoded(name, lambda: msgspec.json.decode(files[name], type=kind))


def _lines(files: dict[str, bytes], name: str, kind: type[T]) -> tuple[T, ...]:
    """One value a line; EvidenceError says which line is malformed."""
    read = msgspec.json.Decoder(kind).decode
    lines = [line for line in files.get(name, b"").splitlines() if line]
    return tuple(
        _decoded(f"{name}:{number}", lambda line=line: read(line))  # type: ignore[misc]
        for number, line in enumerate(lines, 1)
    )


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
