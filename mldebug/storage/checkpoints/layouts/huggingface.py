"""Hugging Face: a model in shards named by an index, and the folders `checkpoint-N` of the Trainer."""

import re
from collections.abc import Iterator
from posixpath import basename

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.storage.checkpoints.layouts import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    FileEntry,
    Layout,
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
_OF_ACCELERATE = ("optimizer.bin", "scheduler.bin")  # the Trainer's end in .pt
_TRAINER = re.compile(r"(?:tmp-)?checkpoint-\d{1,12}")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class HuggingFace:
    """Hugging Face's layout: shards, compared with their index; the Trainer's folders must have `trainer_state.json` as well."""

    order = 30

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint has an index, a state of the Trainer, or weights beside a config."""
        names = {basename(file.path) for file in checkpoint.files}
        if not checkpoint.folder:
            return False
        special = STATE in names or any(map(_INDEX.fullmatch, names))
        model = bool({"config.json", "adapter_config.json"} & names) and any(map(_WEIGHTS.fullmatch, names))  # fmt: skip
        trainer = _TRAINER.fullmatch(checkpoint.name) and any(map(_WEIGHTS.fullmatch, names))
        return bool(special or model or trainer)

    def wants(self, checkpoint: Checkpoint) -> Iterator[ByteRange]:
        """Each index of at most `MAX_INDEX` bytes, and the end of `trainer_state.json`."""
        for file in checkpoint.files:
            if _INDEX.fullmatch(basename(file.path)) and file.size <= MAX_INDEX:
                yield ByteRange(file.path, 0, file.size)
        if (state := checkpoint.entry(STATE)) is not None:
            yield _end(state)

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """Complete where all shards are there and, where the Trainer wrote the checkpoint, also the Trainer's state."""
        weights = [file for file in checkpoint.files if _WEIGHTS.fullmatch(basename(file.path))]
        count = len(weights)
        for index in (one for one in checkpoint.files if _INDEX.fullmatch(basename(one.path))):
            named = _named(checkpoint, index)
            if named == "cut off":
                return incomplete(NAME, count, f"{basename(index.path)} was cut off")
            if not isinstance(named, set):
                return unsure(NAME, count, f"{basename(index.path)} could not be read")
            if missing := sorted(named - {basename(file.path) for file in checkpoint.files}):
                why = f"{missing[0]} is missing, which its index names"
                return incomplete(NAME, count, why, len(named))
        if lost := _lost_part(weights):
            return incomplete(NAME, count, lost)
        if trouble := _state(checkpoint):
            return incomplete(NAME, count, trouble)
        if not count and not _other_weights(checkpoint):
            return incomplete(NAME, 0, "it has no weights")
        return complete(NAME, count)


def _named(checkpoint: Checkpoint, index: FileEntry) -> set[str] | str:
    """Names of the files that an index lists, or why they could not be read: "not read", "cut off", "not understood"."""
    data = checkpoint.parts.get(ByteRange(index.path, 0, index.size))
    if data is None or len(data) != index.size:
        return "not read"
    if not data.rstrip().endswith(b"}"):
        return "cut off"
    try:
        return {basename(one) for one in msgspec.json.decode(data, type=_Index).weight_map.values()}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return "not understood"


def _lost_part(weights: list[FileEntry]) -> str:
    """Why shards are missing by their own names (`model-00001-of-00003`); "" where none is. An index is written after them."""
    parts = [found for weight in weights if (found := _PART.fullmatch(basename(weight.path)))]
    wanted = max((int(one[2]) for one in parts), default=0)
    here = len({int(one[1]) for one in parts})
    return f"{here} of {wanted} parts are there" if here < wanted else ""


def _state(checkpoint: Checkpoint) -> str:
    state = checkpoint.entry(STATE)
    if state is None:
        trainer = _TRAINER.fullmatch(checkpoint.name) is not None and not _by_others(checkpoint)
        return f"there is no {STATE}, which the Trainer writes last" if trainer else ""
    end = checkpoint.parts.get(_end(state))
    if end is not None and not end.rstrip().endswith(b"}"):
        return f"{STATE} was cut off"
    return ""


def _by_others(checkpoint: Checkpoint) -> bool:
    """Whether accelerate (diffusers) or Megatron (ms-swift) wrote it: they use the Trainer's name, and not its state."""
    names = [file.path for file in checkpoint.files]
    if "training_args.bin" in names:
        return False
    return any(
        name.startswith("random_states_") or name in _OF_ACCELERATE or name.endswith("/.metadata")
        for name in names
    )


def _other_weights(checkpoint: Checkpoint) -> bool:
    """Whether files of DeepSpeed or FSDP below the folder hold the weights."""
    return any(
        file.path.endswith((".distcp", ".pt", ".safetensors", ".bin")) for file in checkpoint.files
    )


def _end(state: FileEntry) -> ByteRange:
    return ByteRange(state.path, max(0, state.size - 64), 64)


def create(options: NoOptions) -> Layout:
    """Build the checkpoint layout `huggingface`: Hugging Face: a model in shards named by an index, and the folders `checkpoint-N` of the Trainer."""
    return HuggingFace()
