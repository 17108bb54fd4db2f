"""Layouts of checkpoints: one file for each way in which a training framework lays its checkpoints out.

Each file has `create(options) -> Layout`. What a layout needs is exported here: it gets a `Checkpoint` (the listing of its
files and the bytes that were read of them), asks for more bytes as `ByteRange`, and returns a `CheckpointVerdict`, which
`complete`, `incomplete` and `unsure` make.
"""

from mldebug.storage.checkpoints.model import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    Completeness,
    FileEntry,
    Layout,
    complete,
    incomplete,
    unsure,
)

__all__ = [
    "ByteRange",
    "Checkpoint",
    "CheckpointVerdict",
    "Completeness",
    "FileEntry",
    "Layout",
    "complete",
    "incomplete",
    "unsure",
]
