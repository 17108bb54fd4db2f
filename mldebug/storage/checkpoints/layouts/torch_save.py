"""torch.save: single zip files, alone or several in a folder, as Lightning and plain scripts write them."""

from collections.abc import Iterator

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints.model import ByteRange, Checkpoint, CheckpointVerdict, complete
from mldebug.storage.checkpoints.names import final_name
from mldebug.storage.checkpoints.rank_files import ranks_of, writer_count

NAME = "torch_save"
ENDINGS = (".pt", ".pth", ".ckpt", ".bin")


class TorchSave:
    """Nothing says how many there should be: each is judged by itself."""

    order = 60

    def fits(self, save: Checkpoint) -> bool:
        """Does one of its files end so?"""
        return any(final_name(one.path or save.name).endswith(ENDINGS) for one in save.files)

    def wants(self, save: Checkpoint) -> Iterator[ByteRange]:
        """Nothing but what each file says of itself."""
        yield from ()

    def judge(self, save: Checkpoint) -> CheckpointVerdict:
        """Complete as far as names tell; where they tell ranks, each is to have its own."""
        count = sum(final_name(one.path or save.name).endswith(ENDINGS) for one in save.files)
        verdict = complete(NAME, count)
        return msgspec.structs.replace(verdict, seats=writer_count(ranks_of(save)))


def create(options: NoOptions) -> TorchSave:
    """Build the layout."""
    return TorchSave()
