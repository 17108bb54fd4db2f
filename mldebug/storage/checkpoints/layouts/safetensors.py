"""safetensors: single files whose header says where they end, alone or several in a folder."""

from collections.abc import Iterator

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints.model import ByteRange, Checkpoint, CheckpointVerdict, complete
from mldebug.storage.checkpoints.names import final_name
from mldebug.storage.checkpoints.rank_files import ranks_of, writer_count

NAME = "safetensors"


class Safetensors:
    """Without an index nothing says how many there should be: each is judged by itself."""

    order = 50

    def fits(self, save: Checkpoint) -> bool:
        """Is each file one, or at least one of a folder?"""
        names = [final_name(one.path or save.name) for one in save.files]
        return any(name.endswith(".safetensors") for name in names)

    def wants(self, save: Checkpoint) -> Iterator[ByteRange]:
        """Nothing but what each file says of itself."""
        yield from ()

    def judge(self, save: Checkpoint) -> CheckpointVerdict:
        """Complete as far as names tell; where they tell ranks, each is to have its own."""
        names = [final_name(one.path or save.name) for one in save.files]
        verdict = complete(NAME, sum(name.endswith(".safetensors") for name in names))
        return msgspec.structs.replace(verdict, seats=writer_count(ranks_of(save)))


def create(options: NoOptions) -> Safetensors:
    """Build the layout."""
    return Safetensors()
