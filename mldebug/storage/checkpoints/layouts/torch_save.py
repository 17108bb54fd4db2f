"""torch.save: single zip files, alone or several in a folder, as Lightning and plain scripts write them."""

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

NAME = "torch_save"
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".pt.tar", ".pth.tar")


class TorchSave:
    """Files of torch.save. Nothing says how many there should be, so each file is judged by itself."""

    order = 60

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether one of its files has an ending that torch.save files have."""
        return any(
            final_name(file.path or checkpoint.name).endswith(SUFFIXES) for file in checkpoint.files
        )

    def wants(self, checkpoint: Checkpoint) -> Iterator[ByteRange]:
        """Asks for nothing: the format check of each file reads what it needs."""
        yield from ()

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """The verdict: complete as far as file names show.

        `writers` in it: the number of ranks in the file names, where they have any.
        """
        count = sum(
            final_name(file.path or checkpoint.name).endswith(SUFFIXES) for file in checkpoint.files
        )
        verdict = complete(NAME, count)
        return msgspec.structs.replace(verdict, writers=writer_count(ranks_of(checkpoint)))


def create(options: NoOptions) -> Layout:
    """Build the checkpoint layout `torch_save`: torch.save: single zip files, alone or several in a folder, as Lightning and plain scripts write them."""
    return TorchSave()
