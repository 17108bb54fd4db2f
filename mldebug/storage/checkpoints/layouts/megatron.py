"""Megatron-LM: folders `iter_N`, and beside them `latest_checkpointed_iteration.txt`, which is written last."""

import re
from collections.abc import Iterator
from posixpath import basename

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints.model import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    complete,
    incomplete,
    unsure,
)

NAME = "megatron"
TRACKER = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"iter_(\d{1,12})|release")
_RANK = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_\d{1,6})?/.{1,100}\.pt")


class Megatron:
    """Both formats: a folder for each rank, or shards with `common.pt` and `.metadata`."""

    order = 20

    def fits(self, save: Checkpoint) -> bool:
        """Does its folder have Megatron's name, or one of its files?"""
        if not save.folder or not _FOLDER.fullmatch(save.name):
            return False
        return any(_RANK.fullmatch(one.path) or _is_shard(one.path) for one in save.files)

    def wants(self, save: Checkpoint) -> Iterator[ByteRange]:
        """Nothing but the tracker, which stands beside it."""
        yield from ()

    def judge(self, save: Checkpoint) -> CheckpointVerdict:
        """Complete where the tracker has come so far and no rank in the names is missing."""
        names = {one.path for one in save.files}
        ranks = {
            (int(one[1]), int(one[2] or 0)) for name in names if (one := _RANK.fullmatch(name))
        }
        shards = sum(name.endswith(".distcp") for name in names)
        count = shards + len(ranks)
        if shards and (missing := [one for one in (".metadata", "common.pt") if one not in names]):
            return incomplete(NAME, count, f"there is no {missing[0]}")
        wanted = (
            (max(one for one, _ in ranks) + 1) * (max(two for _, two in ranks) + 1) if ranks else 0
        )
        if len(ranks) < wanted:
            return incomplete(
                NAME, count, f"{len(ranks)} of at least {wanted} folders of ranks are there", wanted
            )
        return _tracked(save, count)


def _tracked(save: Checkpoint, count: int) -> CheckpointVerdict:
    told = save.beside.get(TRACKER)
    own = _FOLDER.fullmatch(save.name)
    if told is None:
        return unsure(NAME, count, f"there is no {TRACKER} beside it")
    said = told[:40].decode(errors="replace").strip()
    if said == save.name or (said.isdecimal() and own and own[1] and int(said) >= int(own[1])):
        return complete(NAME, count)
    if not said.isdecimal() and said != "release":
        return unsure(NAME, count, f"{TRACKER} holds no iteration")
    return incomplete(NAME, count, f"{TRACKER} still says {said}")


def _is_shard(path: str) -> bool:
    name = basename(path)
    return path == name and (name.endswith(".distcp") or name in ("common.pt", ".metadata"))


def create(options: NoOptions) -> Megatron:
    """Build the layout."""
    return Megatron()
