"""Orbax (MaxText, Flax, T5X): a folder for each step with items inside, under a temporary name until all is there.

An item whose arrays are in OCDBT has `_METADATA` and, made at the end of what all processes wrote into `ocdbt.process_N`, `manifest.ocdbt`.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from posixpath import basename, dirname

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints.layouts import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    Layout,
    complete,
    incomplete,
    unsure,
)
from mldebug.storage.checkpoints.names import MANIFEST, OF_LEVANTER, OF_ORBAX, final_name

NAME = "orbax"
INDEX = "_METADATA"
_OF_PROCESS = "ocdbt.process_"
TEMPORARY = ".orbax-checkpoint-tmp"
METADATA, MAX_METADATA = "_CHECKPOINT_METADATA", 1 << 20  # bytes
COMMITTED = "commit_success.txt"


class _CommitTimes(msgspec.Struct):
    commit_timestamp_nsecs: int | msgspec.UnsetType | None = msgspec.UNSET  # not in all versions


class Orbax:
    """Orbax's layout: complete when no name is temporary and each item with arrays of processes has its manifest and its index."""

    order = 35

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether the folder has one of the small files that Orbax writes."""
        paths = {file.path for file in checkpoint.files}
        names = {basename(path) for path in paths}
        own = checkpoint.folder and not names.isdisjoint((MANIFEST, *OF_ORBAX))
        return own and not _is_of_levanter(checkpoint.name, paths)

    def wants(self, checkpoint: Checkpoint) -> Iterator[ByteRange]:
        """Asks for `_CHECKPOINT_METADATA`, which says when all was committed."""
        if (one := checkpoint.whole_file(METADATA, MAX_METADATA)) is not None:
            yield one

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """Complete where every item is; the name of the folder itself is judged for all layouts alike."""
        sizes = {file.path: file.size for file in checkpoint.files}
        items = sorted({item for path in sizes if (item := _item_of(path)) is not None})
        for path in sorted(sizes):
            if TEMPORARY in path:
                return incomplete(NAME, len(items), f"{path.split('/')[0]} still has its temporary name")  # fmt: skip
        for needed in (_inside(item, name) for item in items for name in (MANIFEST, INDEX)):
            if not sizes.get(needed):
                why = f"{needed} is empty" if needed in sizes else f"there is no {needed}"
                return incomplete(NAME, len(items), why)
        if sizes.keys() <= {*OF_ORBAX, COMMITTED}:
            return incomplete(NAME, 0, "nothing but Orbax's marks is in it")
        empty = next((path for path in sorted(sizes) if _is_data(path) and not sizes[path]), None)
        if empty is not None:
            return incomplete(NAME, len(items), f"{empty} is empty")
        return _committed(checkpoint, len(items))


def _is_of_levanter(name: str, paths: AbstractSet[str]) -> bool:
    """Whether a database right in the folder of a step is Levanter's: nothing else that Orbax would have written stands beside it."""
    marks = ("_", "array_metadatas/", "orbax.", _OF_PROCESS)
    alone = MANIFEST in paths and not any(path.startswith(marks) for path in paths)
    return alone and OF_LEVANTER.fullmatch(final_name(name)) is not None


def _committed(checkpoint: Checkpoint, items: int) -> CheckpointVerdict:
    """Whether Orbax says that it has ended this checkpoint, whose parts are there: on some storage it has its final name from the start."""
    if checkpoint.entry(METADATA) is None or checkpoint.entry(COMMITTED) is not None:
        return complete(NAME, items)
    one = checkpoint.whole_file(METADATA, MAX_METADATA)
    try:
        found = msgspec.json.decode(checkpoint.parts.get(one, b"") if one else b"", type=_CommitTimes)  # fmt: skip
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return unsure(NAME, items, f"{METADATA} {checkpoint.unread.get(METADATA, 'cannot be understood')}")  # fmt: skip
    if found.commit_timestamp_nsecs is None:
        return incomplete(NAME, items, f"{METADATA} has no time of a commit")
    return complete(NAME, items)


def _is_data(path: str) -> bool:
    """Whether this is a file of OCDBT's data, none of which is empty."""
    return basename(dirname(path)) == "d"


def _item_of(path: str) -> str | None:
    """The folder of the item that this file is a part of: the one above its process's folder, or that of the manifest."""
    parts = path.split("/")
    for place, part in enumerate(parts[:-1]):
        if part.startswith(_OF_PROCESS):
            return "/".join(parts[:place])
    return dirname(path) if parts[-1] == MANIFEST else None


def _inside(item: str, name: str) -> str:
    return f"{item}/{name}" if item else name


def create(options: NoOptions) -> Layout:
    """Build the checkpoint layout `orbax`: Orbax (MaxText, Flax, T5X): a folder for each step with items inside, under a temporary name until all is there."""
    return Orbax()
