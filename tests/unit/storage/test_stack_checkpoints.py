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
from typing import Any

import pytest
from click.testing import CliRunner

from mldebug.cli.main import cli
from mldebug.storage.checkpoints.names import checkpoint_of, has_come_to
from mldebug.storage.checkpoints.rank_files import MANY, OtherCheckpoint, lost_kind, lost_parts
from shared.storage.newer_stacks import NEWER
from shared.storage.stacks import NANOTRON_WEIGHT, RANKS, STACKS, Stack

HOUR = 3600.0
ALL = STACKS | NEWER
LAST = (".metadata", "metadata.json")  # as the frameworks write them
TENSOR = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()


def put(path: Path, age: float) -> None:
    """A small file as its ending promises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".safetensors"):
        path.write_bytes(struct.pack("<Q", len(TENSOR)) + TENSOR + bytes(8))
    elif path.name.endswith((".pt", ".pth", ".bin", ".pkl", "model.ckpt", "optimizer.ckpt")):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", b"x" * 600)
    elif path.name == ".metadata":
        path.write_bytes(pickle.dumps([f"__{rank}_0.distcp" for rank in RANKS]))
    else:
        path.write_text("{}")
    at = time.time() - age - (0 if path.name in LAST else 5)
    os.utime(path, (at, at))


def name_shards(index: Path) -> None:
    """Where it is an index of a model or an optimizer, let it name the files beside it."""
    if index.name.endswith(".index.json"):
        at = index.stat().st_mtime
        beside = sorted(one.name for one in index.parent.iterdir() if re.search(r"-\d{5}(-of-\d{5})?\.", one.name))  # fmt: skip
        index.write_text(json.dumps({"weight_map": {f"w{n}": one for n, one in enumerate(beside)}}))
        os.utime(index, (at, at))


def set_back(path: Path) -> None:
    """Nobody writes it any more."""
    os.utime(path, (time.time() - 2 * HOUR, time.time() - 2 * HOUR))


def files_of(stack: Stack, step: int) -> list[str]:
    shards = [*(f"__{rank}_0.distcp" for rank in RANKS), ".metadata"]
    files = [one.replace("*", shard) for one in stack.files for shard in (shards if "*" in one else ("",))]  # fmt: skip
    return [one.replace("STEP", str(step)) for one in files]


def lay_out(name: str, folder: Path, newest: int = 1000) -> Path:
    """Two checkpoints, and trackers that speak of `newest`; the folder of the later one."""
    stack = ALL[name]
    for step, age in ((500, 3 * HOUR), (1000, 2 * HOUR)):
        for file in files_of(stack, step):
            put(folder / stack.folder.replace("STEP", str(step)) / file, age)
        for file in files_of(stack, step):
            name_shards(folder / stack.folder.replace("STEP", str(step)) / file)
    for tracker, text in stack.trackers.items():
        (folder / tracker).write_text(text.replace("STEP", str(newest)))
    return folder / stack.folder.replace("STEP", "1000")


def read(folder: Path) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The exit code, the newest and the one before it."""
    done = CliRunner().invoke(cli, ["checkpoints", str(folder), "--json"])
    (series,) = json.loads(done.output)["series"]
    newest, before = series["listed"]
    return done.exit_code, newest, before


@pytest.mark.parametrize("name", ALL)
def test_both_are_whole(name: str, tmp_path: Path) -> None:
    lay_out(name, tmp_path)
    code, newest, before = read(tmp_path)
    assert (code, newest["state"], before["state"]) == (0, "complete", "complete"), (newest, before)


@pytest.mark.parametrize(
    ("name", "lost"), [(name, lost) for name, stack in ALL.items() for lost in stack.lost]
)
def test_a_lost_part_is_told_by_its_name(name: str, lost: str, tmp_path: Path) -> None:
    newest = lay_out(name, tmp_path)
    (newest / lost.replace("STEP", "1000")).unlink()
    code, found, before = read(tmp_path)
    assert (code, before["state"]) == (0, "complete")
    assert found["state"] in ("incomplete", "unknown"), found
    name_told = re.sub(r"\d+", "#", lost.rpartition("/")[2])
    assert name_told in re.sub(r"\d+", "#", found["why"])


def begin_again(stack: Stack, newest: Path, folder: Path) -> None:
    """Make it one that is still being saved."""
    for file in stack.saving:
        (newest / file.replace("STEP", "1000")).unlink()
    if stack.temporary:
        newest.rename(folder / stack.temporary.replace("STEP", "1000"))
    if stack.cut:
        at = (newest / stack.cut).stat().st_mtime
        (newest / stack.cut).write_bytes((newest / stack.cut).read_bytes()[:-3])
        os.utime(newest / stack.cut, (at, at))


@pytest.mark.parametrize("name", ALL)
def test_one_that_is_being_saved_is_not_whole(name: str, tmp_path: Path) -> None:
    newest = lay_out(name, tmp_path, newest=500)
    begin_again(ALL[name], newest, tmp_path)
    code, found, before = read(tmp_path)
    assert (code, before["state"]) == (0, "complete")
    assert found["state"] == "incomplete", found


@pytest.mark.parametrize("name", ALL)
def test_where_none_is_whole_the_command_says_so(name: str, tmp_path: Path) -> None:
    newest = lay_out(name, tmp_path)
    shutil.rmtree(newest)
    older = tmp_path / ALL[name].folder.replace("STEP", "500")
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


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/out/checkpoints/pi0/exp/1000/optimizer.pt", ("/out/checkpoints/pi0/exp", "1000")),
        ("/data/checkpoints/2026/11/28/model.pt", ("/data/checkpoints/2026/11/28", "model.pt")),
        ("/work/step_2/runs/exp/model.pt", ("/work/step_2/runs/exp", "model.pt")),
        ("/out/step_10/policy/weights/iter_0000000/common.pt", ("/out", "step_10")),
        ("/out/iter_0000000/common.pt", ("/out", "iter_0000000")),
        ("/out/a/b/iter_0000000/common.pt", ("/out/a/b", "iter_0000000")),
        ("/out/rollout/global_dataset_state_dict_49.pt", None),
        ("/out/rng_state_3.pth", None),
        ("/out/save/CKPT+2026-11-28+12-00-00+00/brain.ckpt", ("/out/save", "CKPT+2026-11-28+12-00-00+00")),
    ],
)  # fmt: skip
def test_what_lies_deep_belongs_to_its_step_and_dates_are_no_steps(path: str, place: tuple[str, str] | None) -> None:  # fmt: skip
    found = checkpoint_of(path)
    assert (found and tuple(found)) == place


def test_a_tracker_is_behind_by_what_its_series_counts() -> None:
    assert has_come_to("epoch_3", "epoch_2") is True
    assert has_come_to("epoch_3", "epoch_4") is False
    assert has_come_to("epoch_3", "best") is None
    assert has_come_to("epoch_10", "epoch_9") is True
    assert has_come_to("1000", "iter_0001000") is True
    assert has_come_to("500", "iter_0001000") is False


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (("optimizer.00000-of-00002.pt", "optimizer.00001-of-00002.pt"), ""),
        (("optimizer.00001-of-00002.pt", "optimizer.00002-of-00002.pt"), ""),
        (("m/optimizer.00001-of-00002.pt",), "m/optimizer.#-of-00002.pt: 1 of 2 parts are there"),
        (("shard-00001-model-00001-of-00002.safetensors", "shard-00002-model-00002-of-00002.safetensors"), ""),
    ],
)  # fmt: skip
def test_parts_that_say_how_many_they_are(names: tuple[str, ...], lost: str) -> None:
    assert lost_parts(names) == lost


def test_more_kinds_of_files_than_are_kept_are_no_lost_ones() -> None:
    few = OtherCheckpoint("a", {}, None, whole=True, kinds=("model_#.pt",))
    assert lost_kind((MANY,), [few]) == ""
    assert lost_kind((), [few]) == "model_#.pt is missing, which a has"
    assert lost_kind((), [OtherCheckpoint("a", {}, None, whole=True, kinds=(MANY,))]) == ""
