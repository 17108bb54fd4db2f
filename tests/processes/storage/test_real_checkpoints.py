"""`mldebug checkpoints` on folders that PyTorch, DCP and safetensors have written themselves: whole as they are, and told when one is damaged."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mldebug.cli.main import cli
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.filterwarnings("ignore")]
need_torch("the checkpoints are written by PyTorch")

Save = Callable[[dict[str, Any], Path], object]


def with_torch(state: dict[str, Any], place: Path) -> None:
    import torch

    place.mkdir(parents=True)
    torch.save(state, place / "model.pt")


def with_dcp(state: dict[str, Any], place: Path) -> None:
    from torch.distributed.checkpoint import save

    save(state, checkpoint_id=place, no_dist=True)


def with_dcp_beside(state: dict[str, Any], place: Path) -> None:
    """As accelerate lays out FSDP: a folder for the model, one for the optimizer."""
    with_dcp(state, place / "pytorch_model_fsdp_0")
    with_dcp(state, place / "optimizer_0")


def with_safetensors(state: dict[str, Any], place: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    place.mkdir(parents=True)
    safetensors.save_file(state, place / "model.safetensors")


WRITTEN: dict[str, tuple[Save, str]] = {
    "torch.save": (with_torch, "model.pt"),
    "DCP": (with_dcp, "__0_0.distcp"),
    "DCP, accelerate": (with_dcp_beside, "optimizer_0/__0_0.distcp"),
    "safetensors": (with_safetensors, "model.safetensors"),
}


def written(folder: Path, save: Save) -> Path:
    """Two checkpoints, an hour apart."""
    import torch

    for step in (100, 200):
        place = folder / f"step-{step}"
        save({f"layer{at}": torch.randn(64, 64) for at in range(4)}, place)
        for file in place.rglob("*"):
            at = time.time() - 3600 * (300 - step) / 100
            os.utime(file, (at, at))
    return folder


def answer(folder: Path) -> tuple[int, list[str]]:
    done = CliRunner().invoke(cli, ["checkpoints", str(folder)])
    return done.exit_code, [line.split()[0] for line in done.output.splitlines() if "  whole " in line]  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_library_has_written_is_whole(name: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", WRITTEN[name][0])
    assert answer(folder) == (0, ["step-200", "step-100"])


@pytest.mark.parametrize("name", WRITTEN)
def test_one_that_was_cut_off_is_not(name: str, tmp_path: Path) -> None:
    save, file = WRITTEN[name]
    folder = written(tmp_path / "run", save)
    for step, code in ((200, 0), (100, 1)):
        cut = folder / f"step-{step}" / file
        before = cut.stat()
        os.truncate(cut, before.st_size // 2)
        os.utime(cut, (before.st_atime, before.st_mtime))
        assert answer(folder)[0] == code
        assert f"step-{step}" not in answer(folder)[1]


def test_a_shard_that_is_gone_is_missed(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", with_dcp)
    (folder / "step-200/__0_0.distcp").unlink()
    assert answer(folder) == (0, ["step-100"])
    (folder / "step-100/.metadata").unlink()
    assert answer(folder)[0] == 1
