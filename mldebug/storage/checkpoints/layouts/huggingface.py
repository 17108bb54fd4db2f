"""Hugging Face: a model in shards named by an index, and the folders `checkpoint-N` of the Trainer."""

import re
from collections.abc import Iterator
from posixpath import basename

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints.model import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    FileEntry,
    complete,
    incomplete,
    unsure,
)

NAME = "huggingface"
MAX_INDEX = 8 << 20  # bytes
STATE = "trainer_state.json"  # written last by the Trainer
_INDEX = re.compile(r"[\w.-]{1,100}\.(?:safetensors|bin)\.index\.json")
_WEIGHTS = re.compile(
    r"(?:(?:model|adapter_model|diffusion_pytorch_model)[\w.-]{0,60}\.safetensors|(?:pytorch_model|adapter_model)[\w.-]{0,60}\.bin)"
)
_PART = re.compile(r".{1,100}-(\d{1,6})-of-(\d{1,6})\.(?:safetensors|bin)")
_TRAINER = re.compile(r"(?:tmp-)?checkpoint-\d{1,12}")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class HuggingFace:
    """Holds the shards against their index; a Trainer's folder must have its state as well."""

    order = 30

    def fits(self, save: Checkpoint) -> bool:
        """Is there an index, a Trainer's state, or a model with its config?"""
        names = {basename(one.path) for one in save.files}
        if not save.folder:
            return False
        special = STATE in names or any(map(_INDEX.fullmatch, names))
        model = bool({"config.json", "adapter_config.json"} & names) and any(map(_WEIGHTS.fullmatch, names))  # fmt: skip
        trainer = _TRAINER.fullmatch(save.name) and any(map(_WEIGHTS.fullmatch, names))
        return bool(special or model or trainer)

    def wants(self, save: Checkpoint) -> Iterator[ByteRange]:
        """The index, and the end of the state."""
        for one in save.files:
            if _INDEX.fullmatch(basename(one.path)) and one.size <= MAX_INDEX:
                yield ByteRange(one.path, 0, one.size)
        if (state := save.entry(STATE)) is not None:
            yield _end(state)

    def judge(self, save: Checkpoint) -> CheckpointVerdict:
        """Complete where all shards are there, and where a Trainer wrote it, its state."""
        weights = [one for one in save.files if _WEIGHTS.fullmatch(basename(one.path))]
        count = len(weights)
        for index in (one for one in save.files if _INDEX.fullmatch(basename(one.path))):
            named = _named(save, index)
            if named == "cut off":
                return incomplete(NAME, count, f"{basename(index.path)} was cut off")
            if not isinstance(named, set):
                return unsure(NAME, count, f"{basename(index.path)} could not be read")
            if missing := sorted(named - {basename(one.path) for one in save.files}):
                why = f"{missing[0]} is missing, which its index names"
                return incomplete(NAME, count, why, len(named))
        if lost := _lost_part(weights):
            return incomplete(NAME, count, lost)
        if trouble := _state(save):
            return incomplete(NAME, count, trouble)
        if not count and not _other_weights(save):
            return incomplete(NAME, 0, "it has no weights")
        return complete(NAME, count)


def _named(save: Checkpoint, index: FileEntry) -> set[str] | str:
    """The files that an index names, or why they are not known."""
    data = save.parts.get(ByteRange(index.path, 0, index.size))
    if data is None or len(data) != index.size:
        return "not read"
    if not data.rstrip().endswith(b"}"):
        return "cut off"
    try:
        return {basename(one) for one in msgspec.json.decode(data, type=_Index).weight_map.values()}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return "not understood"


def _lost_part(weights: list[FileEntry]) -> str:
    """`model-00001-of-00003`: the names alone tell how many there should be, before there is an index."""
    parts = [found for one in weights if (found := _PART.fullmatch(basename(one.path)))]
    wanted = max((int(one[2]) for one in parts), default=0)
    here = len({int(one[1]) for one in parts})
    return f"{here} of {wanted} parts are there" if here < wanted else ""


def _state(save: Checkpoint) -> str:
    state = save.entry(STATE)
    if state is None:
        trainer = _TRAINER.fullmatch(save.name) is not None
        return f"there is no {STATE}, which the Trainer writes last" if trainer else ""
    end = save.parts.get(_end(state))
    if end is not None and not end.rstrip().endswith(b"}"):
        return f"{STATE} was cut off"
    return ""


def _other_weights(save: Checkpoint) -> bool:
    """DeepSpeed's and FSDP's own files below it hold them."""
    return any(one.path.endswith((".distcp", ".pt", ".safetensors", ".bin")) for one in save.files)


def _end(state: FileEntry) -> ByteRange:
    return ByteRange(state.path, max(0, state.size - 64), 64)


def create(options: NoOptions) -> HuggingFace:
    """Build the layout."""
    return HuggingFace()
