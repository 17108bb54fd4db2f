"""Checkpoints as frameworks lay them out: which is whole, which is the last, and which files are of one series.

The folders of tests/fixtures/checkpoints have the names that the frameworks use and small contents.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from mldebug.cli.main import cli, main
from mldebug.core.plugins import create_all
from mldebug.storage.checkpoints.history import CheckpointSeries, KnownCheckpoint
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.names import checkpoint_of, series_of, step_of
from mldebug_agents.storage.checkpoints.series_reader import SeriesFiles, SeriesReader
from mldebug_agents.system.child.job_paths import OPERATOR
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner

FIELD = Path(__file__).parents[2] / "fixtures/checkpoints"
NOW, HOUR = 1_750_000_000.0, 3600.0


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def laid_out(name: str, folder: Path) -> Path:
    """A copy of the checkpoints, each an hour after the one before it, by the numbers in their names."""
    shutil.copytree(FIELD / name, folder)
    entries = [one for one in folder.rglob("*") if one.is_file()]
    numbers = sorted({step_of(part) or 0 for one in entries for part in one.relative_to(folder).parts})  # fmt: skip
    for one in entries:
        step = max((step_of(part) or 0 for part in one.relative_to(folder).parts), default=0)
        at = NOW - HOUR * (len(numbers) + 1 - numbers.index(step)) - (5 if one.name == ".metadata" else 9)  # fmt: skip
        os.utime(one, (at, at))
    return folder


def known(folder: Path, series: str, reader: Reader, looks: int = 2) -> list[KnownCheckpoint]:
    """The checkpoints of a series, the oldest first."""
    reading, history = SeriesReader((str(folder), series), create_all("checkpoints")), CheckpointSeries()  # fmt: skip
    for number in range(looks):
        now = NOW + number * 200
        look = reading.look("run", SeriesFiles(reader, "", str(folder), OPERATOR), frozenset(), now)
        history.look(now, look.readings, whole=look.whole)
    return list(history.checkpoints)


def whole(checkpoints: list[KnownCheckpoint]) -> list[int | None]:
    return [one.step for one in checkpoints if one.state is Completeness.COMPLETE]


@pytest.mark.parametrize(
    ("name", "series", "complete"),
    [
        ("mega_bridge", "iter_#", [1000, 2000]),
        ("diffusers_full", "checkpoint-#", [500, 1000]),
        ("swift_megatron", "checkpoint-#", [500, 1000]),
        ("hf_noopt", "checkpoint-#", [500]),
        ("fairseq", "checkpoint_1_*", [1000]),
        ("mega_common", "iter_#", [1000]),
        ("verl_died", "global_step_#", [10]),
    ],
)
def test_the_last_whole_one_is_known(name: str, series: str, complete: list[int], folder: Path, reader: Reader) -> None:  # fmt: skip
    found = known(laid_out(name, folder), series, reader)
    assert whole(found) == complete, [(one.name, one.state, one.why) for one in found]


def test_files_of_timm_are_checkpoints(folder: Path, reader: Reader) -> None:
    found = known(laid_out("timm", folder), "*.pth.tar", reader)
    assert len(found) == 4
    assert {one.state for one in found} == {Completeness.COMPLETE}


@pytest.mark.parametrize(
    ("name", "steps"), [("nemo2", {999, 1999}), ("lerobot", {10000, 20000}), ("nanotron", {1000, 2000})]
)  # fmt: skip
def test_the_files_of_a_run_lead_to_one_series(name: str, steps: set[int]) -> None:
    files = [one for one in (FIELD / name).rglob("*") if one.suffix in (".pt", ".distcp", ".safetensors")]  # fmt: skip
    places = {place for one in files if (place := checkpoint_of(str(one)))}
    assert len({(place.folder, series_of(place.name)) for place in places}) == 1
    assert {step_of(place.name) for place in places} == steps


LIGHTNING_DEEPSPEED = [
    f"/out/checkpoints/epoch=0-step={step}.ckpt/checkpoint/{name}"
    for step in (1000, 2000)
    for name in ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
]
LAST = [one.replace("epoch=0-step=1000", "last") for one in LIGHTNING_DEEPSPEED[:2]]
VERL = [f"/out/global_step_{step}/{part}/model_world_size_2_rank_{rank}.pt" for step in (10, 20) for part in ("actor", "critic") for rank in (0, 1)]  # fmt: skip


NANOTRON = [
    f"/scratch/run-7/{step}/{name}"
    for step in (100, 200)
    for name in (
        "model/model/decoder/0/pp_block/attn/o_proj/model_weight_pp-rank-0-of-2_tp-rank-1-of-2.safetensors",
        "optimizer/optimizer_pp-0-of-2_dp-0-of-1_tp-1-of-2.pt",
    )
]
"""A run may keep them in a folder of any name, not in `checkpoints` alone."""
OTHERS = ["/scratch/7/model/weights.pt", "/data/2024/optimizer/optimizer_state.pt", "/users/1000/model/model.safetensors"]  # fmt: skip


@pytest.mark.parametrize("file", OTHERS)
def test_a_folder_that_is_a_number_is_no_checkpoint_for_files_of_any_name(file: str) -> None:
    place = checkpoint_of(file)
    assert place is None or place.folder == file.rpartition("/")[0]


@pytest.mark.parametrize(
    ("files", "steps"),
    [(NANOTRON, {100, 200}), (LIGHTNING_DEEPSPEED, {1000, 2000}), (LAST, {None}), (VERL, {10, 20})],
)
def test_what_ranks_of_nanotron_lightning_with_deepspeed_and_verl_write_is_one_series(
    files: list[str], steps: set[int | None]
) -> None:
    places = {place for one in files if (place := checkpoint_of(one))}
    assert len({(place.folder, series_of(place.name)) for place in places}) == 1
    assert {step_of(place.name) for place in places} == steps


@pytest.mark.parametrize("lost", ["__0_3.distcp", ".metadata"])
def test_a_rank_file_that_nemo_lost_is_told(lost: str, folder: Path) -> None:
    laid_out("nemo2", folder)
    (path,) = folder.glob(f"*step=1999*/weights/{lost}")
    path.unlink()
    code, text = invoke(str(folder), "--json")
    (series,) = json.loads(text)["series"]
    assert code == 0
    assert "step=999" in series["last"]["name"]
    assert [one["state"] for one in series["listed"]] == ["incomplete", "complete"]
    assert lost in series["listed"][0]["why"]


def test_more_than_eight_series_are_all_told(folder: Path) -> None:
    for number in range(12):
        laid_out("hf_noopt", folder / f"trial{chr(ord('a') + number)}")
    code, text = invoke(str(folder), "--json")
    assert (code, len(json.loads(text)["series"])) == (0, 12)


# --- of our own ----------------------------------------------------------------------------------


def why_not(checkpoints: list[KnownCheckpoint], step: int) -> str:
    (found,) = [one for one in checkpoints if one.step == step]
    assert found.state is not Completeness.COMPLETE
    return found.why


@pytest.mark.parametrize(
    ("name", "series", "step", "lost"),
    [
        ("diffusers_full", "checkpoint-#", 1000, "optimizer.bin"),
        ("diffusers_full", "checkpoint-#", 1000, "unet/diffusion_pytorch_model.safetensors"),
        ("mega_bridge", "iter_#", 2000, "train_state.pt"),
        ("mega_bridge", "iter_#", 2000, ".metadata"),
        ("mega_bridge", "iter_#", 2000, "__0_3.distcp"),
        ("swift_megatron", "checkpoint-#", 1000, "iter_0001000/__0_1.distcp"),
        ("swift_megatron", "checkpoint-#", 1000, "model-00002-of-00002.safetensors"),
        ("hf_noopt", "checkpoint-#", 500, "trainer_state.json"),
    ],
)
def test_a_file_that_is_lost_is_told(name: str, series: str, step: int, lost: str, folder: Path, reader: Reader) -> None:  # fmt: skip
    laid_out(name, folder)
    (path,) = folder.glob(f"*{step}/{lost}")
    path.unlink()
    found = known(folder, series, reader)
    assert step not in whole(found), why_not(found, step)


def test_a_tracker_that_is_behind_speaks_against_any_layout(folder: Path, reader: Reader) -> None:
    laid_out("nanotron", folder)
    place = folder / "checkpoints"
    assert whole(known(place, "#", reader)) == [1000, 2000]
    (place / "latest.txt").write_text("1000")
    found = known(place, "#", reader)
    assert whole(found) == [1000]
    assert why_not(found, 2000) == "latest.txt still says 1000"


def test_a_file_that_only_the_first_one_had_is_missed_and_one_that_some_had_is_not(folder: Path, reader: Reader) -> None:  # fmt: skip
    """A user may add or leave out what is no state of the training: pictures, an evaluation, the best weights so far."""
    laid_out("diffusers_full", folder)
    for extra in ("samples.png", "eval.json", "model_best.safetensors"):
        (folder / "checkpoint-500" / extra).write_bytes(b"x")
        os.utime(folder / "checkpoint-500" / extra, (NOW - 9 * HOUR, NOW - 9 * HOUR))
    (folder / "checkpoint-500/model_best.safetensors").unlink()
    assert whole(known(folder, "checkpoint-#", reader)) == [500, 1000]
    for name in ("optimizer.bin", "scheduler.bin"):
        (folder / f"checkpoint-1000/{name}").unlink()
    assert "is missing, which checkpoint-500 has" in why_not(
        known(folder, "checkpoint-#", reader), 1000
    )


def test_the_first_one_is_not_measured_by_later_ones(folder: Path, reader: Reader) -> None:
    """A run may begin to save its optimizer later."""
    laid_out("diffusers_full", folder)
    (folder / "checkpoint-500/scheduler.bin").unlink()
    assert whole(known(folder, "checkpoint-#", reader)) == [500, 1000]


def test_numbers_are_steps_only_below_a_folder_of_checkpoints() -> None:
    assert checkpoint_of("/data/3/run/weights.pt") != ("/data", "3")
    assert checkpoint_of("/out/checkpoints/020000/pretrained_model/model.safetensors") == ("/out/checkpoints", "020000")  # fmt: skip
    assert checkpoint_of("/out/ckpt/7/a/b/c/d/model.safetensors") == ("/out/ckpt", "7")
    assert checkpoint_of("/out/step_100/actor/optim_rank_0.pt") == ("/out", "step_100")


# --- the command -------------------------------------------------------------------------------


def invoke(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["checkpoints", *arguments], env={"COLUMNS": "80"})
    return done.exit_code, done.output


def test_the_command_says_which_is_whole_and_what_is_wrong_with_the_others(folder: Path) -> None:
    laid_out("hf_noopt", folder)
    code, text = invoke(str(folder))
    assert code == 0
    first, second = [line for line in text.splitlines() if line.startswith("  checkpoint-")]
    assert first.split()[:2] == ["checkpoint-1000", "not"]
    assert second.split()[:2] == ["checkpoint-500", "whole"]
    assert "optimizer.pt is missing, which checkpoint-500 has" in text
    assert "step 1,000" in text


def test_the_command_says_it_to_scripts(folder: Path) -> None:
    laid_out("verl_died", folder)
    code, text = invoke(str(folder), "--json")
    found = json.loads(text)
    (series,) = found["series"]
    assert (code, found["whole"], series["last"]["name"]) == (0, True, "global_step_10")
    assert [one["state"] for one in series["listed"]] == ["incomplete", "complete"]


def test_of_one_checkpoint_alone_the_answer_is_its_own(folder: Path) -> None:
    laid_out("hf_noopt", folder)
    code, text = invoke(str(folder / "checkpoint-1000"))
    assert code == 1
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  checkpoint-")] == [
        "checkpoint-1000"
    ]
    assert "none of them is whole" in text
    assert invoke(str(folder / "checkpoint-500"))[0] == 0


def test_one_that_is_old_is_found_among_many(folder: Path) -> None:
    laid_out("diffusers_full", folder)
    for step in range(1500, 8000, 500):
        shutil.copytree(folder / "checkpoint-1000", folder / f"checkpoint-{step}")
    code, text = invoke(str(folder / "checkpoint-500"))
    assert code == 0
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  checkpoint-")] == [
        "checkpoint-500"
    ]


def test_a_run_without_a_whole_one_and_a_folder_without_any(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    laid_out("mega_bridge", folder)
    for one in folder.glob("*/.metadata"):
        one.unlink()
    (folder / "latest_train_state.pt").unlink()
    assert invoke(str(folder))[0] == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["checkpoints", str(empty)]) == 2
    assert "holds no checkpoint that mldebug recognises" in capsys.readouterr().err


def test_links_pipes_and_loops_do_no_harm(folder: Path) -> None:
    laid_out("nanotron", folder)
    os.mkfifo(folder / "checkpoints/2000/optimizer/state_rank_9.pt")
    (folder / "checkpoints/loop").symlink_to(folder)
    (folder / "checkpoints/3000").symlink_to("/etc")
    code, text = invoke(str(folder))
    assert code == 0
    assert "3000" not in text
