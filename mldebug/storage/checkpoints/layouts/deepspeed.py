"""DeepSpeed: a folder for each tag with a file for each rank, and beside it `latest`, which names the newest whole one."""

import re
from collections.abc import Iterator
from posixpath import basename

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints.model import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    complete,
    incomplete,
    unsure,
)
from mldebug.storage.checkpoints.names import step_of

NAME = "deepspeed"
LATEST = "latest"
_MODEL = re.compile(r"(?:zero_pp_rank_\d{1,6}_)?mp_rank_(\d{1,6})_model_states\.pt|layer_\d{1,6}-model_.{1,60}\.pt")  # fmt: skip
_OPTIMIZER = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_optim_states\.pt"
)


class DeepSpeed:
    """The ranks in the names must leave no gap, and `latest` must have come so far."""

    order = 10

    def fits(self, save: Checkpoint) -> bool:
        """Is there a file of a rank directly in it?"""
        return any(_MODEL.fullmatch(one.path) or _OPTIMIZER.fullmatch(one.path) for one in save.files)  # fmt: skip

    def wants(self, save: Checkpoint) -> Iterator[ByteRange]:
        """Nothing but `latest`, which stands beside it."""
        yield from ()

    def judge(self, save: Checkpoint) -> CheckpointVerdict:
        """Complete where `latest` names it or a later one. Rank 0 writes that, and waits for the others only then."""
        found = [_OPTIMIZER.fullmatch(one.path) for one in save.files]
        seats = {(int(one[1]), int(one[2])) for one in found if one}
        models = [one for one in save.files if _MODEL.fullmatch(one.path)]
        count = len(seats) + len(models)
        if lost := _gap(seats):
            return incomplete(NAME, count, lost, _seats(seats))
        if not models:
            return incomplete(NAME, count, "there is no file with the model's states")
        if LATEST not in save.beside:
            return unsure(NAME, count, "nothing says how many ranks there should be: no `latest`")
        named = basename(save.beside[LATEST][:300].decode(errors="replace").strip())
        if _reached(named, save.name):
            verdict = complete(NAME, count)
            return msgspec.structs.replace(verdict, seats=len(seats) or None)
        return incomplete(NAME, count, f"`latest` still names {named[:100]!r}")


def _seats(seats: set[tuple[int, int]]) -> int:
    return (max(one for one, _ in seats) + 1) * (max(other for _, other in seats) + 1)


def _gap(seats: set[tuple[int, int]]) -> str:
    if not seats or len(seats) == (wanted := _seats(seats)):
        return ""
    return f"{len(seats)} of at least {wanted} files with optimizer states are there"


def _reached(named: str, own: str) -> bool:
    told, mine = step_of(named), step_of(own)
    return named == own or (told is not None and mine is not None and told >= mine)


def create(options: NoOptions) -> DeepSpeed:
    """Build the layout."""
    return DeepSpeed()
