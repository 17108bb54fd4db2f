"""Checkpoints of each stack under the names that its source gives them: whole, being saved, and with one part lost.

The newest of two is changed; the one before it stays whole, so the command has something to resume from.
"""

import json
import os
import pickle
import re
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from mldebug.cli.main import cli

HOUR = 3600.0
LAST = (".metadata", "metadata.json")  # as the frameworks write them
TENSOR = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
RANKS = range(2)


class Stack(NamedTuple):
    """What one framework writes. `*` in a file's name: shards of PyTorch with their index; STEP: the step."""

    folder: str
    files: tuple[str, ...]
    lost: tuple[str, ...]  # each is told when it alone is lost
    saving: tuple[str, ...]  # what is not there yet while it is saved
    trackers: dict[str, str] = {}  # beside the checkpoints: what each says of the step


TRAINER = ("rng_state_0.pth", "rng_state_1.pth", "scheduler.pt", "trainer_state.json", "training_args.bin")  # fmt: skip
ZERO = tuple(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in RANKS) + tuple(f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in RANKS)  # fmt: skip
ORBAX = ("_METADATA", "_sharding", "manifest.ocdbt", "d/0cfc70b3", "ocdbt.process_0/d/107f870f", "ocdbt.process_0/manifest.ocdbt", "array_metadatas/process_0")  # fmt: skip
NANOTRON_WEIGHT = "model/model/decoder/0/pp_block/attn/qkv_proj/model_weight_pp-rank-0-of-1_tp-rank-{}-of-2.safetensors"  # fmt: skip
STACKS: dict[str, Stack] = {
    "Megatron-Bridge, without common.pt": Stack(
        "iter_000STEP", ("*", "metadata.json", "run_config.yaml", "train_state.pt"),
        ("__1_0.distcp", ".metadata", "train_state.pt"), (".metadata", "metadata.json", "train_state.pt"),
    ),
    "Megatron-LM, tracked": Stack(
        "iter_000STEP", ("*", "metadata.json", "common.pt"), ("__1_0.distcp", "common.pt"), (),
        {"latest_checkpointed_iteration.txt": "STEP"},
    ),
    "diffusers": Stack(
        "checkpoint-STEP", ("unet/diffusion_pytorch_model.safetensors", "unet/config.json", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"),
        ("optimizer.bin", "unet/diffusion_pytorch_model.safetensors", "random_states_0.pkl"), ("scheduler.bin", "random_states_0.pkl"),
    ),
    "LeRobot": Stack(
        "checkpoints/00STEP",
        ("pretrained_model/model.safetensors", "pretrained_model/train_config.json", "training_state/training_step.json",
         "training_state/rng_state.safetensors", "training_state/optimizer_state.safetensors", "training_state/scheduler_state.json"),
        ("pretrained_model/model.safetensors", "training_state/training_step.json", "training_state/optimizer_state.safetensors"),
        ("training_state/optimizer_state.safetensors", "training_state/scheduler_state.json"),
    ),
    "NeMo 2": Stack(
        "model--val_loss=1.23-step=STEP-consumed_samples=64.0", ("weights/*", "weights/common.pt", "weights/metadata.json", "context/io.json"),
        ("weights/__1_0.distcp", "weights/.metadata", "weights/common.pt"), ("weights/.metadata", "weights/metadata.json"),
    ),
    "verl": Stack(
        "global_step_STEP", (*tuple(f"actor/{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim", "extra_state") for rank in RANKS), "data.pt"),
        ("actor/optim_world_size_2_rank_1.pt", "data.pt"), ("data.pt",), {"latest_checkpointed_iteration.txt": "STEP"},
    ),
    "nanotron": Stack(
        "checkpoints/STEP", tuple(NANOTRON_WEIGHT.format(rank) for rank in RANKS) + tuple(f"optimizer/optimizer_pp-0-of-1_dp-0-of-1_tp-{rank}-of-2_exp-0-of-1.pt" for rank in RANKS) + ("checkpoint_metadata.json",),
        (NANOTRON_WEIGHT.format(1), "optimizer/optimizer_pp-0-of-1_dp-0-of-1_tp-0-of-2_exp-0-of-1.pt", "checkpoint_metadata.json"), ("checkpoint_metadata.json",),
        {"checkpoints/latest.txt": "STEP"},
    ),
    "Lightning with DeepSpeed": Stack(
        "epoch=0-step=STEP.ckpt", ("checkpoint/mp_rank_00_model_states.pt", *(f"checkpoint/{one}" for one in ZERO[2:]), "latest", "zero_to_fp32.py"),
        ("checkpoint/mp_rank_00_model_states.pt", f"checkpoint/{ZERO[3]}"), ("latest",),
    ),
    "torchtitan": Stack("checkpoint/step-STEP", ("*",), ("__1_0.distcp", ".metadata"), (".metadata",)),
    "Trainer with FSDP": Stack(
        "checkpoint-STEP", ("pytorch_model_fsdp_0/*", "optimizer_0/*", *TRAINER),
        ("optimizer_0/__1_0.distcp", "pytorch_model_fsdp_0/.metadata", "scheduler.pt"), ("optimizer_0/.metadata", *TRAINER),
    ),
    "accelerate with FSDP": Stack(
        "checkpoints/checkpoint_STEP", ("pytorch_model_fsdp_0/*", "optimizer_0/*", "random_states_0.pkl", "random_states_1.pkl", "scheduler.bin"),
        ("optimizer_0/__1_0.distcp", "random_states_1.pkl", "scheduler.bin"), ("optimizer_0/.metadata", "scheduler.bin"),
    ),
    "Composer, sharded": Stack("ep0-baSTEP", ("*",), ("__1_0.distcp", ".metadata"), (".metadata",)),
    "Trainer with DeepSpeed": Stack(
        "checkpoint-STEP", (*(f"global_stepSTEP/{one}" for one in ZERO), "latest", "model.safetensors", "config.json", *TRAINER),
        (f"global_stepSTEP/{ZERO[3]}", "model.safetensors", "trainer_state.json", "latest"), ("latest", *TRAINER),
    ),
    "OLMo": Stack(
        "stepSTEP", (*tuple(f"{kind}/rank{rank}.pt" for kind in ("model", "optim", "train") for rank in RANKS), "config.yaml"),
        ("optim/rank1.pt", "train/rank0.pt"), ("train/rank0.pt", "train/rank1.pt"),
    ),
    "OLMo-core": Stack(
        "stepSTEP", ("model_and_optim/*", "train/rank0.pt", "train/rank1.pt", "config.json", ".metadata.json"),
        ("model_and_optim/__1_0.distcp", "model_and_optim/.metadata", "train/rank1.pt", ".metadata.json"), (".metadata.json",),
    ),
    "Orbax as MaxText has it": Stack(
        "checkpoints/STEP", ("_CHECKPOINT_METADATA", *(f"items/{one}" for one in ORBAX), "iter/process_0-of-1.json"),
        ("items/manifest.ocdbt", "items/_METADATA"), ("items/manifest.ocdbt",),
    ),
    "Orbax as openpi has it": Stack(
        "exp/STEP", ("_CHECKPOINT_METADATA", *(f"{item}/{one}" for item in ("params", "train_state") for one in ORBAX), "assets/norm_stats.json"),
        ("train_state/manifest.ocdbt", "params/_METADATA"), ("train_state/manifest.ocdbt",),
    ),
    "Orbax as Flax has it": Stack("checkpoint_STEP", ORBAX, ("manifest.ocdbt", "_METADATA"), ("manifest.ocdbt", "_METADATA")),
    "Levanter": Stack(
        "run-1/step-STEP", (*(f"{array}/{file}" for array in ("model/transformer/layers/mlp/up/weight", "opt_state/inner/mu/model/embeddings/weight") for file in (".zarray", "0.0", "0.1")), "training_key/.zarray", "training_key/0", "metadata.json"),
        ("metadata.json", "model/transformer/layers/mlp/up/weight/.zarray"), ("metadata.json", "opt_state/inner/mu/model/embeddings/weight/0.1"),
    ),
    "Levanter, in one database": Stack(
        "run-1/step-STEP", ("manifest.ocdbt", "d/ac602c1933845be91ae74ac598c2674c", "d/4aead63b970450643d027b3e7377e242", "metadata.json"),
        ("metadata.json", "manifest.ocdbt"), ("metadata.json", "d/4aead63b970450643d027b3e7377e242"),
    ),
    "adapters of PEFT and unsloth": Stack(
        "checkpoint-STEP", ("adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"),
        ("adapter_model.safetensors", "optimizer.pt", "trainer_state.json"), ("rng_state.pth", "trainer_state.json"),
    ),
}  # fmt: skip


def put(path: Path, age: float) -> None:
    """A small file as its ending promises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".safetensors"):
        path.write_bytes(struct.pack("<Q", len(TENSOR)) + TENSOR + bytes(8))
    elif path.name.endswith((".pt", ".pth", ".bin", ".pkl")):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", b"x" * 50)
    elif path.name == ".metadata":
        path.write_bytes(pickle.dumps([f"__{rank}_0.distcp" for rank in RANKS]))
    else:
        path.write_text("{}")
    at = time.time() - age - (0 if path.name in LAST else 5)
    os.utime(path, (at, at))


def set_back(path: Path) -> None:
    """Nobody writes it any more."""
    os.utime(path, (time.time() - 2 * HOUR, time.time() - 2 * HOUR))


def files_of(stack: Stack, step: int) -> list[str]:
    shards = [*(f"__{rank}_0.distcp" for rank in RANKS), ".metadata"]
    files = [one.replace("*", shard) for one in stack.files for shard in (shards if "*" in one else ("",))]  # fmt: skip
    return [one.replace("STEP", str(step)) for one in files]


def lay_out(name: str, folder: Path, newest: int = 1000) -> Path:
    """Two checkpoints, and trackers that speak of `newest`; the folder of the later one."""
    stack = STACKS[name]
    for step, age in ((500, 3 * HOUR), (1000, 2 * HOUR)):
        for file in files_of(stack, step):
            put(folder / stack.folder.replace("STEP", str(step)) / file, age)
    for tracker, text in stack.trackers.items():
        (folder / tracker).write_text(text.replace("STEP", str(newest)))
    return folder / stack.folder.replace("STEP", "1000")


def read(folder: Path) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The exit code, the newest and the one before it."""
    done = CliRunner().invoke(cli, ["checkpoints", str(folder), "--json"])
    (series,) = json.loads(done.output)["series"]
    newest, before = series["listed"]
    return done.exit_code, newest, before


@pytest.mark.parametrize("name", STACKS)
def test_both_are_whole(name: str, tmp_path: Path) -> None:
    lay_out(name, tmp_path)
    code, newest, before = read(tmp_path)
    assert (code, newest["state"], before["state"]) == (0, "complete", "complete"), (newest, before)


@pytest.mark.parametrize(
    ("name", "lost"), [(name, lost) for name, stack in STACKS.items() for lost in stack.lost]
)
def test_a_lost_part_is_told_by_its_name(name: str, lost: str, tmp_path: Path) -> None:
    newest = lay_out(name, tmp_path)
    (newest / lost.replace("STEP", "1000")).unlink()
    code, found, before = read(tmp_path)
    assert (code, before["state"]) == (0, "complete")
    assert found["state"] in ("incomplete", "unknown"), found
    name_told = re.sub(r"\d+", "#", lost.rpartition("/")[2])
    assert name_told in re.sub(r"\d+", "#", found["why"])


@pytest.mark.parametrize("name", STACKS)
def test_one_that_is_being_saved_is_not_whole(name: str, tmp_path: Path) -> None:
    newest = lay_out(name, tmp_path, newest=500)
    for file in STACKS[name].saving:
        (newest / file).unlink()
    code, found, before = read(tmp_path)
    assert (code, before["state"]) == (0, "complete")
    assert found["state"] == "incomplete", found


@pytest.mark.parametrize("name", STACKS)
def test_where_none_is_whole_the_command_says_so(name: str, tmp_path: Path) -> None:
    newest = lay_out(name, tmp_path)
    shutil.rmtree(newest)
    older = tmp_path / STACKS[name].folder.replace("STEP", "500")
    for file in [one for one in older.rglob("*") if one.is_file()]:
        at = file.stat().st_mtime
        file.write_bytes(file.read_bytes()[:-3])
        os.utime(file, (at, at))
    assert CliRunner().invoke(cli, ["checkpoints", str(tmp_path), "--json"]).exit_code == 1


@pytest.mark.parametrize("name", ["Levanter", "Levanter, in one database"])
@pytest.mark.parametrize(
    ("metadata", "state", "why"),
    [
        ('{"step": 1000, "timestamp": "2026-03-04T05:06:07", "is_temporary": true}', "complete", ""),
        ('{"step": 500, "timestamp": "2026-03-04T05:06:07"}', "incomplete", "metadata.json is of step 500"),
        ('{"step": 10', "unknown", "metadata.json cannot be understood"),
        ("", "incomplete", "metadata.json is empty"),
    ],
)  # fmt: skip
def test_levanter_says_of_which_step_it_is(name: str, metadata: str, state: str, why: str, tmp_path: Path) -> None:  # fmt: skip
    newest = lay_out(name, tmp_path)
    (newest / "metadata.json").write_text(metadata)
    set_back(newest / "metadata.json")
    _, found, _ = read(tmp_path)
    assert (found["state"], found.get("why", "")) == (state, why)


@pytest.mark.parametrize(
    "files",
    [
        ("era5.zarr/t2m/.zarray", "era5.zarr/t2m/0.0"),  # data
        ("step-3.zarr/t2m/.zarray", "step-3.zarr/t2m/0.0"),
        ("data/steps/t2m/.zarray", "data/steps/t2m/0.0"),
    ],
)
def test_arrays_of_data_are_no_checkpoint(files: tuple[str, ...], tmp_path: Path) -> None:
    for file in files:
        put(tmp_path / file, HOUR)
    done = CliRunner().invoke(cli, ["checkpoints", str(tmp_path), "--json"])
    assert "no checkpoint that mldebug recognises" in str(done.exception)


def test_an_array_without_data_leaves_it_open(tmp_path: Path) -> None:
    """One of no elements has none."""
    newest = lay_out("Levanter", tmp_path)
    (newest / "training_key" / "0").unlink()
    _, found, _ = read(tmp_path)
    assert (found["state"], found["why"]) == ("unknown", "training_key has no data")


def test_arrays_beside_marks_of_megatron_are_not_levanters(tmp_path: Path) -> None:
    for file in ("step-500/common.pt", "step-500/model.w/.zarray", "step-500/model.w/0.0"):
        put(tmp_path / file, HOUR)
    done = CliRunner().invoke(cli, ["checkpoints", str(tmp_path), "--json"])
    assert "levanter" not in done.output


MARKED: list[tuple[str, Callable[[str], str]]] = [
    ("NeMo 2", lambda name: f"{name}-unfinished"),
    ("Lightning with DeepSpeed", lambda name: f"{name.removesuffix('.ckpt')}-unfinished"),
    ("torchtitan", lambda name: f"{name}.unfinished"),
]


@pytest.mark.parametrize(("name", "mark"), MARKED)
def test_a_mark_beside_it_speaks_against_it_alone(
    name: str, mark: Callable[[str], str], tmp_path: Path
) -> None:
    """NeMo puts it there before it saves, and deletes it when all ranks are done."""
    newest = lay_out(name, tmp_path)
    beside = newest.parent / mark(newest.name)
    beside.touch()
    code, found, before = read(tmp_path)
    assert (code, found["state"], before["state"]) == (0, "incomplete", "complete")
    assert found["why"] == f"{beside.name} lies beside it"
    beside.unlink()
    assert read(tmp_path)[1]["state"] == "complete"


@pytest.mark.parametrize("name", [one for one in STACKS if one.startswith("Orbax")])
def test_orbax_gives_the_name_when_all_is_there(name: str, tmp_path: Path) -> None:
    newest = lay_out(name, tmp_path)
    newest.rename(newest.parent / f"{newest.name}.orbax-checkpoint-tmp-17")
    code, found, before = read(tmp_path)
    assert (code, found["state"], before["state"]) == (0, "incomplete", "complete")
    assert found["why"] == "it still has its temporary name"


@pytest.mark.parametrize(
    ("metadata", "committed", "state"),
    [
        ('{"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": null}', False, "incomplete"),
        ('{"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": null}', True, "complete"),
        ('{"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2}', False, "complete"),
        ('{"item_handlers": null}', False, "complete"),
        ("{", False, "unknown"),
        ("", False, "unknown"),
        ("{", True, "complete"),
    ],
)
def test_orbax_says_itself_that_it_has_committed(metadata: str, committed: bool, state: str, tmp_path: Path) -> None:  # fmt: skip
    """On some storage a checkpoint has its final name from the start, and a mark at the end."""
    newest = lay_out("Orbax as MaxText has it", tmp_path)
    (newest / "_CHECKPOINT_METADATA").write_text(metadata)
    if committed:
        (newest / "commit_success.txt").touch()
    for file in newest.iterdir():
        set_back(file)
    assert read(tmp_path)[1]["state"] == state


@pytest.mark.parametrize(("folder", "why"), [("items", "items/d/0cfc70b3 is empty"), ("", "nothing but Orbax's marks is in it")])  # fmt: skip
def test_of_orbax_what_is_emptied_is_not_whole(folder: str, why: str, tmp_path: Path) -> None:
    """A full disk leaves empty files, a deletion that was cut off the marks alone."""
    newest = lay_out("Orbax as MaxText has it", tmp_path)
    if folder:
        (newest / "items/d/0cfc70b3").write_bytes(b"")
        set_back(newest / "items/d/0cfc70b3")
    else:
        shutil.rmtree(newest / "items")
        shutil.rmtree(newest / "iter")
    found = read(tmp_path)[1]
    assert (found["state"], found["why"]) == ("incomplete", why)


def test_of_orbax_one_whose_own_record_may_not_be_read_is_not_told_whole(tmp_path: Path) -> None:
    newest = lay_out("Orbax as MaxText has it", tmp_path)
    (newest / "_CHECKPOINT_METADATA").write_bytes(b"{" + b" " * (2 << 20))
    set_back(newest / "_CHECKPOINT_METADATA")
    assert read(tmp_path)[1]["state"] == "unknown"


def test_a_rank_beyond_those_of_its_size_replaces_none(tmp_path: Path) -> None:
    newest = lay_out("nanotron", tmp_path)
    lost = newest / NANOTRON_WEIGHT.format(1)
    lost.rename(newest / NANOTRON_WEIGHT.format(7))
    found = read(tmp_path)[1]
    assert (found["state"], lost.name in found["why"]) == ("incomplete", True)


def test_of_many_marks_beside_it_none_is_overlooked(tmp_path: Path) -> None:
    newest = lay_out("torchtitan", tmp_path)
    for number in range(3000):
        (newest.parent / f"a{number}-unfinished").touch()
        if number == 1500:
            (newest.parent / f"{newest.name}-unfinished").touch()
    assert read(tmp_path)[1]["state"] == "incomplete"


def test_an_item_of_orbax_with_a_temporary_name_is_told(tmp_path: Path) -> None:
    newest = lay_out("Orbax as MaxText has it", tmp_path)
    (newest / "items").rename(newest / "items.orbax-checkpoint-tmp-17")
    assert read(tmp_path)[1]["why"] == "items.orbax-checkpoint-tmp-17 still has its temporary name"


def test_a_folder_of_zarr_without_marks_of_orbax_is_no_checkpoint(tmp_path: Path) -> None:
    put(tmp_path / "2024/images/.zarray", HOUR)
    put(tmp_path / "2024/final/manifest.ocdbt", HOUR)
    assert CliRunner().invoke(cli, ["checkpoints", str(tmp_path), "--json"]).exit_code != 0
