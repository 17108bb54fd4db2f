"""torch.distributed.checkpoint: `__RANK_N.distcp` files, and `.metadata`, which is written when all of them are there."""

import re
from collections.abc import Iterable, Iterator
from posixpath import basename, dirname

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints import torch_zip
from mldebug.storage.checkpoints.layouts import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    FileEntry,
    Layout,
    complete,
    incomplete,
    unsure,
)
from mldebug.storage.checkpoints.safe_pickle import MAX_BYTES, PickledObject, pickled_objects

NAME = "distributed"
MAX_SEARCHED = 256 << 20  # bytes of an index that is not read as a whole, but searched for names
MOST_ENDS = 512  # shards of which the end is looked at then
MAX_OFFSET = 1 << 60  # bytes; no file is larger, and a pickle holds numbers of any length
SLACK = 2.0  # seconds by which the clocks of those who write may differ
_SHARD = re.compile(r"__(\d{1,7})_(\d{1,7})\.distcp")
_NAMED = re.compile(rb"__\d{1,7}_\d{1,7}\.distcp")


class Distributed:
    """The layout of torch.distributed.checkpoint: shards, compared with what `.metadata` says (name, offset, length)."""

    order = 40

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint has shards or a `.metadata`."""
        return any(_SHARD.fullmatch(basename(file.path)) for file in checkpoint.files) or bool(
            _indexes(checkpoint)
        )

    def wants(self, checkpoint: Checkpoint) -> Iterator[ByteRange]:
        """Asks for each whole index (`.metadata`); of one over 2 MiB only for the file names in it and the ends of the shards."""
        for one in _indexes(checkpoint):
            if one.size <= MAX_BYTES:
                yield _whole(one)
            elif one.size <= MAX_SEARCHED:
                yield from (_names(one), _stop(one))
                yield from (torch_zip.last(shard) for shard in _looked_at(checkpoint))

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """Complete where every file that an index names is there and long enough."""
        shards = [file for file in checkpoint.files if _SHARD.fullmatch(basename(file.path))]
        count, found = len(shards), _indexes(checkpoint)
        folders = {dirname(shard.path) for shard in shards}
        if missing := folders - {dirname(one.path) for one in found}:
            return incomplete(NAME, count, _no_index(sorted(missing)))
        verdicts = [self._index(checkpoint, one) for one in found]
        faults = [verdict for verdict in verdicts if verdict and verdict[0] == "broken"]
        doubts = [one for one in verdicts if one and one[0] == "unsure"]
        if faults:
            return incomplete(NAME, count, faults[0][1])
        return unsure(NAME, count, doubts[0][1]) if doubts else complete(NAME, count)

    def _index(self, checkpoint: Checkpoint, index: FileEntry) -> tuple[str, str] | None:
        if not index.size:
            return "broken", ".metadata is empty"
        large = index.size > MAX_BYTES
        data = checkpoint.parts.get(_names(index) if large else _whole(index))
        end = checkpoint.parts.get(_stop(index)) if large else data
        if data is None or end is None or (not large and len(data) != index.size):
            return (
                "unsure",
                f".metadata {checkpoint.unread.get(index.path, 'is too large to be read')}",
            )
        if not end.endswith(b"."):  # STOP, the last operation of every pickle
            return "broken", ".metadata was cut off"
        beside = {basename(file.path): file for file in checkpoint.files if dirname(file.path) == dirname(index.path)}  # fmt: skip
        promised = _named(data) if large else _promised(data)
        return (
            _compare(promised, {name: one.size for name, one in beside.items()})
            or _later(index, (beside[name] for name in promised))
            or (_unended(checkpoint) if large else None)
        )


def _named(data: bytes) -> dict[str, int]:
    return dict.fromkeys((one.decode() for one in _NAMED.findall(data)), 1)


def _unended(checkpoint: Checkpoint) -> tuple[str, str] | None:
    """A shard that may have been cut off, for an index too large to tell lengths: whole ones end with a zip end record."""
    for one in _looked_at(checkpoint):
        if not torch_zip.is_ended(checkpoint, one):
            return (
                "unsure",
                f"{one.path} may have been cut off: .metadata is too large to be compared with lengths",
            )
    return None


def _looked_at(checkpoint: Checkpoint) -> list[FileEntry]:
    """The shards whose end is checked: at most about `MOST_ENDS`, evenly spread."""
    found = [file for file in checkpoint.files if _SHARD.fullmatch(basename(file.path))]
    return found[:: max(1, -(-len(found) // MOST_ENDS))]


def _promised(data: bytes) -> dict[str, int]:
    """File name -> least size in bytes by the index; 1 where the index could not be parsed."""
    promised = _named(data)
    try:
        objects = pickled_objects(data)
    except ValueError:
        objects = []
    for one in objects:
        if one.name.endswith("._StorageInfo") and (stored := _stored(one)):
            promised[stored[0]] = max(promised.get(stored[0], 1), stored[1])
    return promised


def _stored(one: PickledObject) -> tuple[str, int] | None:
    name, offset, length = (one.get(key) for key in ("relative_path", "offset", "length"))
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
        return None
    possible = 0 <= offset <= MAX_OFFSET and 0 <= length <= MAX_OFFSET
    return (name, offset + length) if possible and _SHARD.fullmatch(name) else None


def _compare(promised: dict[str, int], sizes: dict[str, int]) -> tuple[str, str] | None:
    missing = sorted(promised.keys() - sizes.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return "broken", f"{missing[0]}{more} of {len(promised)} shards missing"
    short = [name for name, least in sorted(promised.items()) if sizes[name] < least]
    if short:
        return "broken", f"{short[0]} has {sizes[short[0]]:,} of {promised[short[0]]:,} bytes"
    return None


def _later(index: FileEntry, shards: Iterable[FileEntry]) -> tuple[str, str] | None:
    """Doubt where a shard is younger than the index: it is written last, so this may be the index of an earlier checkpoint."""
    newest = max(shards, key=lambda one: one.mtime, default=index)
    if newest.mtime - index.mtime <= SLACK:
        return None
    return "unsure", f"{basename(newest.path)} is younger than .metadata, which is written last"


def _no_index(folders: list[str]) -> str:
    inside = f" in {folders[0]}" if folders[0] else ""
    return f"there is no .metadata{inside}, which is written last"


def _indexes(checkpoint: Checkpoint) -> list[FileEntry]:
    return [file for file in checkpoint.files if basename(file.path) == ".metadata"]


def _names(one: FileEntry) -> ByteRange:
    return ByteRange(one.path, 0, one.size, _NAMED.pattern)


def _stop(one: FileEntry) -> ByteRange:
    return ByteRange(one.path, max(0, one.size - 1), 1)


def _whole(one: FileEntry) -> ByteRange:
    return ByteRange(one.path, 0, one.size)


def create(options: NoOptions) -> Layout:
    """Build the checkpoint layout `distributed`: torch.distributed.checkpoint: `__RANK_N.distcp` files, and `.metadata`, which is written when all of them are there."""
    return Distributed()
