"""Levanter: a folder `step-1000` with the arrays of the training state; `metadata.json` comes when all have been written.

Until 2025 each array is a folder of its own (zarr: `model/…/weight/.zarray` and chunks `0.0`), since then all are in one database (OCDBT:
`manifest.ocdbt` and `d/…`). Checked against files that TensorStore wrote, and Levanter's `checkpoint.py`.
"""

import re
from collections.abc import Iterator
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
from mldebug.storage.checkpoints.names import ARRAY, MANIFEST, OF_LEVANTER, OF_ORBAX, final_name

NAME = "levanter"
METADATA, MAX_METADATA = "metadata.json", 1 << 20  # bytes; written last, by process 0
_CHUNK = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,15}")
_OF_OTHERS = frozenset((*OF_ORBAX, "_METADATA", "_sharding", "checkpoint", "common.pt"))
"""Files of Orbax, T5X and Megatron, which have arrays in zarr or OCDBT, too."""


class _Metadata(msgspec.Struct):
    step: int | None = None


class Levanter:
    """Levanter's layout: complete when `metadata.json` is there, and each array that was begun."""

    order = 34

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether a folder whose name Levanter gives to checkpoints has arrays as Levanter writes them, and no mark of Orbax, T5X or Megatron."""
        if not (checkpoint.folder and OF_LEVANTER.fullmatch(final_name(checkpoint.name))):
            return False
        names = {basename(file.path) for file in checkpoint.files}
        paths = {file.path for file in checkpoint.files}
        of_orbax = any(path.startswith("ocdbt.process_") for path in paths)
        data = MANIFEST in paths or any(path.startswith("d/") for path in paths) or ARRAY in names
        return data and not of_orbax and names.isdisjoint(_OF_OTHERS)

    def wants(self, checkpoint: Checkpoint) -> Iterator[ByteRange]:
        """Asks for `metadata.json`, which says of which step it is."""
        if (one := checkpoint.whole_file(METADATA, MAX_METADATA)) is not None:
            yield one

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """Complete where the end mark and all arrays are there; the name of the folder itself is judged for all layouts alike."""
        sizes = {file.path: file.size for file in checkpoint.files}
        in_database = MANIFEST in sizes or any(path.startswith("d/") for path in sizes)
        data = [path for path in sizes if _is_data(path)]
        for needed in (METADATA, *((MANIFEST,) if in_database else ())):
            if needed not in sizes:
                return incomplete(NAME, len(data), f"there is no {needed}")
        if not data:
            return incomplete(NAME, 0, "it has no data")
        empty = next((path for path in sorted(sizes) if not sizes[path]), None)
        if empty is not None:
            return incomplete(NAME, len(data), f"{empty} is empty")
        arrays = {dirname(path) for path in sizes if basename(path) == ARRAY}
        chunked = {dirname(path) for path in data if not path.startswith("d/")}
        for array in sorted(chunked - arrays):
            return incomplete(NAME, len(data), f"there is no {array}/{ARRAY}")
        for array in sorted(arrays - chunked):  # one of no elements has none
            return unsure(NAME, len(data), f"{array} has no data")
        return _of_its_step(checkpoint, len(data))


def _of_its_step(checkpoint: Checkpoint, parts: int) -> CheckpointVerdict:
    """Whether the end mark is of this checkpoint: one that is written again into the folder of an older one leaves that one's there."""
    one = checkpoint.whole_file(METADATA, MAX_METADATA)
    try:
        found = msgspec.json.decode(checkpoint.parts.get(one, b"") if one else b"", type=_Metadata)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return unsure(NAME, parts, f"{METADATA} {checkpoint.unread.get(METADATA, 'cannot be understood')}")  # fmt: skip
    named = OF_LEVANTER.fullmatch(final_name(checkpoint.name))
    own = int(named["step"]) if named and named["step"] else None
    if None not in (own, found.step) and own != found.step:
        return incomplete(NAME, parts, f"{METADATA} is of step {found.step}")
    return complete(NAME, parts)


def _is_data(path: str) -> bool:
    """Whether this is a chunk of an array, or a file of the database."""
    return path.startswith("d/") or ("/" in path and _CHUNK.fullmatch(basename(path)) is not None)


def create(options: NoOptions) -> Layout:
    """Build the checkpoint layout `levanter`: Levanter: a folder `step-1000` with the arrays of the training state; `metadata.json` comes when all have been written."""
    return Levanter()
