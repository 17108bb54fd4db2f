"""torch.save: single zip files, alone or several in a folder, as Lightning and plain scripts write them."""

from collections.abc import Iterator

import msgspec

from mldebug.storage.checkpoints.model import Save, Verdict, Wanted, complete
from mldebug.storage.checkpoints.names import final
from mldebug.storage.checkpoints.rank_files import ranks_of, seats_of

NAME = "torch_save"
ENDINGS = (".pt", ".pth", ".ckpt", ".bin")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class TorchSave:
    """Nothing says how many there should be: each is judged by itself."""

    order = 60

    def fits(self, save: Save) -> bool:
        """Does one of its files end so?"""
        return any(final(one.path or save.name).endswith(ENDINGS) for one in save.files)

    def wants(self, save: Save) -> Iterator[Wanted]:
        """Nothing but what each file says of itself."""
        yield from ()

    def judge(self, save: Save) -> Verdict:
        """Complete as far as names tell; where they tell ranks, each is to have its own."""
        count = sum(final(one.path or save.name).endswith(ENDINGS) for one in save.files)
        verdict = complete(NAME, count)
        return msgspec.structs.replace(verdict, seats=seats_of(ranks_of(save)))


def create(options: Options) -> TorchSave:
    """Build the layout."""
    return TorchSave()
