"""safetensors: single files whose header says where they end, alone or several in a folder."""

from collections.abc import Iterator

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints.layouts import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    Layout,
    complete,
)
from mldebug.storage.checkpoints.names import final_name
from mldebug.storage.checkpoints.rank_files import ranks_of, writer_count

NAME = "safetensors"


class Safetensors:
    """safetensors files without an index. Nothing says how many there should be, so each file is judged by itself."""

    order = 50

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint is a safetensors file, or a folder with at least one."""
        names = [final_name(file.path or checkpoint.name) for file in checkpoint.files]
        return any(name.endswith(".safetensors") for name in names)

    def wants(self, checkpoint: Checkpoint) -> Iterator[ByteRange]:
        """Asks for nothing: the format check of each file reads what it needs."""
        yield from ()

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """The verdict: complete as far as file names show.

        `writers` in it: the number of ranks in the file names, where they have any.
        """
        names = [final_name(file.path or checkpoint.name) for file in checkpoint.files]
        verdict = complete(NAME, sum(name.endswith(".safetensors") for name in names))
        return msgspec.structs.replace(verdict, writers=writer_count(ranks_of(checkpoint)))


def create(options: NoOptions) -> Layout:
    """Build the checkpoint layout `safetensors`: safetensors: single files whose header says where they end, alone or several in a folder."""
    return Safetensors()
