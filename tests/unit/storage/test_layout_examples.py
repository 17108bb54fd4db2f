"""Each layout of checkpoints has an example here: a file in `layouts/` without one fails."""

import pickle

import msgspec
import pytest

from mldebug.core.plugins import create_all, names
from mldebug.storage.checkpoints.layouts import ByteRange, Checkpoint, Completeness, FileEntry

LAYOUTS = dict(zip(names("checkpoints"), create_all("checkpoints"), strict=True))
INDEX = pickle.dumps(["__0_0.distcp", "__1_0.distcp"])


def folder(name: str, *files: str, beside: dict[str, bytes] | None = None) -> Checkpoint:
    entries = tuple(FileEntry(path, size=100) for path in sorted(files))
    return Checkpoint(name=name, files=entries, beside=beside or {})


def file(name: str) -> Checkpoint:
    return Checkpoint(name=name, folder=False, files=(FileEntry("", size=100),))


def sharded() -> Checkpoint:
    index = FileEntry(".metadata", size=len(INDEX))
    shards = (FileEntry("__0_0.distcp", size=100), FileEntry("__1_0.distcp", size=100))
    part = ByteRange(".metadata", 0, len(INDEX))
    return Checkpoint(name="step_10", files=(index, *shards), parts={part: INDEX})


def levanter() -> Checkpoint:
    mark = b'{"step": 10}'
    array = tuple(FileEntry(f"model/weight/{name}", size=100) for name in (".zarray", "0.0"))
    files = (FileEntry("metadata.json", size=len(mark)), *array)
    part = ByteRange("metadata.json", 0, len(mark))
    return Checkpoint(name="step-10", files=files, parts={part: mark})


EXAMPLES: dict[str, tuple[Checkpoint, str]] = {
    "deepspeed": (
        folder(
            "global_step10",
            "mp_rank_00_model_states.pt",
            "zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "zero_pp_rank_1_mp_rank_00_optim_states.pt",
            beside={"latest": b"global_step10"},
        ),
        "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ),
    "distributed": (sharded(), "__0_0.distcp"),
    "huggingface": (
        folder(
            "checkpoint-10",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "trainer_state.json",
        ),
        "model-00001-of-00002.safetensors",
    ),
    "levanter": (levanter(), "metadata.json"),
    "megatron": (
        folder(
            "iter_0000010",
            "mp_rank_00/model_optim_rng.pt",
            "mp_rank_01/model_optim_rng.pt",
            beside={"latest_checkpointed_iteration.txt": b"10"},
        ),
        "mp_rank_00/model_optim_rng.pt",
    ),
    "orbax": (
        folder(
            "10",
            "orbax.checkpoint",
            "items/_METADATA",
            "items/manifest.ocdbt",
            "items/ocdbt.process_0/manifest.ocdbt",
        ),
        "items/manifest.ocdbt",
    ),
    "safetensors": (file("model-10.safetensors"), ""),
    "torch_save": (file("model-10.pt"), ""),
}
"""By layout: a complete checkpoint, and a file without which it is incomplete ("": nothing says which files there must be)."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_has_an_example_that_is_complete_and_one_that_is_not(name: str) -> None:
    assert name in EXAMPLES, f"add a checkpoint of the layout {name} to EXAMPLES in {__file__}"
    checkpoint, needed = EXAMPLES[name]
    layout = LAYOUTS[name]
    assert layout.fits(checkpoint)
    verdict = layout.judge(checkpoint)
    assert (verdict.layout, verdict.state) == (name, Completeness.COMPLETE), verdict.why
    if needed:
        left = tuple(one for one in checkpoint.files if one.path != needed)
        assert len(left) < len(checkpoint.files)
        broken = msgspec.structs.replace(checkpoint, files=left)
        assert layout.judge(broken).state is Completeness.INCOMPLETE
