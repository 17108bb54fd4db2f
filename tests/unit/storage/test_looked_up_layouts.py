"""Folders named as Composer, InternLM, lingua and accelerate's FSDP name them in their sources: whole, and with one part lost."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mldebug.cli.main import cli
from mldebug.storage.checkpoints.model import Checkpoint, FileEntry
from mldebug.storage.checkpoints.names import checkpoint_of, series_of, step_of
from mldebug.storage.checkpoints.rank_files import kinds_of, rank_family

torch = pytest.importorskip("torch", reason="the files are real ones of PyTorch")
HOUR = 3600.0


def saved(path: Path, age: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"w": torch.ones(9)}, path)
    at = path.stat().st_mtime - age
    os.utime(path, (at, at))


def composer(folder: Path, step: int, age: float) -> Path:
    for rank in range(4):
        saved(folder / "checkpoints" / f"ep0-ba{step}-rank{rank}.pt", age)
    return folder / "checkpoints" / f"ep0-ba{step}-rank2.pt"


def internlm(folder: Path, step: int, age: float) -> Path:
    for tensor, pipeline in ((0, 0), (0, 1), (1, 0), (1, 1)):
        saved(folder / str(step) / f"model_tp{tensor}_pp{pipeline}.pt", age)
    saved(folder / str(step) / "context.pt", age)
    return folder / str(step) / "model_tp1_pp0.pt"


def state_words(folder: Path) -> dict[int, str]:
    result = CliRunner().invoke(cli, ["checkpoints", str(folder), "--json"])
    found: dict[str, Any] = json.loads(result.output)
    rows = [one for series in found["series"] for one in series["listed"]]
    assert len(rows) == 2
    return {row["step"]: row["state"] for row in rows}


@pytest.mark.parametrize("lay_out", [composer, internlm])
def test_the_files_of_a_step_are_one_checkpoint_and_a_lost_one_is_seen(lay_out: Callable[[Path, int, float], Path], tmp_path: Path) -> None:  # fmt: skip
    lay_out(tmp_path, 500, 2 * HOUR)
    one_of_newest = lay_out(tmp_path, 1000, HOUR)
    assert state_words(tmp_path) == {500: "complete", 1000: "complete"}
    one_of_newest.unlink()
    assert state_words(tmp_path) == {500: "complete", 1000: "unknown"}


def test_names_tell_steps_and_ranks_and_others_are_left_alone() -> None:
    assert step_of("ep2-ba500-rank0.pt") == 500
    assert series_of("ep2-ba500-rank0.pt") == "ep#-ba#-rank#.pt"
    assert rank_family("train_state_00002.json") == ("train_state_#.json", 2)
    assert rank_family("train_state_500.json") is None  # a step
    assert rank_family("output3.pt") is None
    assert rank_family("http2.json") is None
    assert checkpoint_of("/data/ba500.pt") is None
    assert checkpoint_of("/data/2024/features_tp1_pp0.pt") is None


def test_shards_of_an_optimizer_are_a_kind_of_their_own() -> None:
    shards = ("pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/__0_0.distcp", "__0_0.distcp")
    files = tuple(FileEntry(path=path, size=9) for path in shards)
    kinds = kinds_of(Checkpoint(name="checkpoint-5", folder=True, files=files))
    assert kinds == ("optimizer_#/__#_#.distcp", "pytorch_model_fsdp_#/__#_#.distcp")
