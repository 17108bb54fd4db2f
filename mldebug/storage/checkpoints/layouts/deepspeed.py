"""DeepSpeed: a folder for each tag with a file for each rank, and beside it `latest`, which names the newest whole one."""

import re
from collections.abc import Iterator
from posixpath import basename

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
from mldebug.storage.checkpoints.names import has_come_to

NAME = "deepspeed"
TRACKERS = ("latest", "last_checkpoint")  # the second is MMEngine's (XTuner)
_MODEL = re.compile(r"(?:zero_pp_rank_\d{1,6}_)?mp_rank_(\d{1,6})_model_states\.pt|layer_\d{1,6}-model_.{1,60}\.pt")  # fmt: skip
_OPTIMIZER = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_optim_states\.pt"
)


class DeepSpeed:
    """DeepSpeed's layout: complete when no rank is missing in the file names and `latest` names this tag or a later one."""

    order = 10

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether the folder itself (not one below it) has a DeepSpeed file of a rank."""
        return any(_MODEL.fullmatch(file.path) or _OPTIMIZER.fullmatch(file.path) for file in checkpoint.files)  # fmt: skip

    def wants(self, checkpoint: Checkpoint) -> Iterator[ByteRange]:
        """Asks for nothing: `latest`, which lies beside the folder, is always read."""
        yield from ()

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """Complete where `latest` names this tag or a later one: rank 0 writes it after all ranks have written."""
        matches = [_OPTIMIZER.fullmatch(file.path) for file in checkpoint.files]
        partitions = {(int(match[1]), int(match[2])) for match in matches if match}
        models = [file for file in checkpoint.files if _MODEL.fullmatch(file.path)]
        count = len(partitions) + len(models)
        if lost := _gap(partitions):
            return incomplete(NAME, count, lost, _expected(partitions))
        if not models:
            return incomplete(NAME, count, "there is no file with the model's states")
        tracker = next((name for name in TRACKERS if name in checkpoint.beside), "")
        if not tracker:
            return unsure(NAME, count, "nothing says how many ranks there should be: no `latest`")
        named = basename(checkpoint.beside[tracker][:300].decode(errors="replace").strip())
        if has_come_to(named, checkpoint.name):
            verdict = complete(NAME, count)
            return msgspec.structs.replace(verdict, writers=len(partitions) or None)
        return incomplete(NAME, count, f"`{tracker}` still names {named[:100]!r}")


def _expected(partitions: set[tuple[int, int]]) -> int:
    """Files that there must be for the largest data-parallel and model-parallel rank in the names."""
    return (max(dp for dp, _ in partitions) + 1) * (max(mp for _, mp in partitions) + 1)


def _gap(partitions: set[tuple[int, int]]) -> str:
    if not partitions or len(partitions) == (wanted := _expected(partitions)):
        return ""
    return f"{len(partitions)} of at least {wanted} files with optimizer states are there"


def create(options: NoOptions) -> Layout:
    """Build the checkpoint layout `deepspeed`: DeepSpeed: a folder for each tag with a file for each rank, and beside it `latest`, which names the newest whole one."""
    return DeepSpeed()
