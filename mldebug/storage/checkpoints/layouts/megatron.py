"""Megatron-LM: folders `iter_N`, and beside them `latest_checkpointed_iteration.txt`, which is written last."""

import re
from collections.abc import Iterator
from posixpath import basename

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

NAME = "megatron"
TRACKER = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"iter_(\d{1,12})|release")
_RANK = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_\d{1,6})?/.{1,100}\.pt")


class Megatron:
    """Both layouts of Megatron: a folder for each rank, or shards with `.metadata` and, before Megatron-Bridge, `common.pt`."""

    order = 20

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether the folder has a name of Megatron's (`iter_N`, `release`) and one of its files."""
        if not checkpoint.folder or not _FOLDER.fullmatch(checkpoint.name):
            return False
        return any(_RANK.fullmatch(file.path) or _is_shard(file.path) for file in checkpoint.files)

    def wants(self, checkpoint: Checkpoint) -> Iterator[ByteRange]:
        """Asks for nothing: the tracker file, which lies beside the folder, is always read."""
        yield from ()

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """Complete where the tracker names this iteration or a later one and no rank is missing in the names."""
        names = {file.path for file in checkpoint.files}
        ranks = {
            (int(match[1]), int(match[2] or 0))
            for name in names
            if (match := _RANK.fullmatch(name))
        }
        shards = sum(name.endswith(".distcp") for name in names)
        count = shards + len(ranks)
        if shards and ".metadata" not in names:
            return incomplete(NAME, count, "there is no .metadata")
        wanted = (max(tp for tp, _ in ranks) + 1) * (max(pp for _, pp in ranks) + 1) if ranks else 0
        if len(ranks) < wanted:
            return incomplete(
                NAME, count, f"{len(ranks)} of at least {wanted} folders of ranks are there", wanted
            )
        if shards and TRACKER not in checkpoint.beside:
            return complete(
                NAME, count
            )  # Megatron-Bridge: the index is written when all shards are there
        return _tracked(checkpoint, count)


def _tracked(checkpoint: Checkpoint, count: int) -> CheckpointVerdict:
    content = checkpoint.beside.get(TRACKER)
    own = _FOLDER.fullmatch(checkpoint.name)
    if content is None:
        return unsure(NAME, count, f"there is no {TRACKER} beside it")
    tracked = content[:40].decode(errors="replace").strip()
    if tracked == checkpoint.name or (
        tracked.isdecimal() and own and own[1] and int(tracked) >= int(own[1])
    ):
        return complete(NAME, count)
    if not tracked.isdecimal() and tracked != "release":
        return unsure(NAME, count, f"{TRACKER} holds no iteration")
    return incomplete(NAME, count, f"{TRACKER} still says {tracked}")


def _is_shard(path: str) -> bool:
    name = basename(path)
    return path == name and (name.endswith(".distcp") or name in ("common.pt", ".metadata"))


def create(options: NoOptions) -> Layout:
    """Build the checkpoint layout `megatron`: Megatron-LM: folders `iter_N`, and beside them `latest_checkpointed_iteration.txt`, which is written last."""
    return Megatron()
