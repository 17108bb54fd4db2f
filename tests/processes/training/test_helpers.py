"""The helpers inside real jobs: two ranks on gloo, and the layer of one of them that overflows."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import mldebug_training
from processes.harness import JOBS, environment_of_jobs, free_port
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the jobs train with PyTorch")


class Job:
    """One that has ended."""

    def __init__(self, folder: Path, watch: str, how: str = "ddp", kind: str = "float16") -> None:
        folder.mkdir()
        self.folder = folder
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        argv = [f"--master-port={free_port()}", str(JOBS / "overflows.py"), str(folder)]
        paths = str(Path(mldebug_training.__file__).parents[1])
        self.done = subprocess.run(
            [*launcher, *argv, watch, how, kind],
            env=environment_of_jobs(folder, paths) | {"OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def losses(self, rank: int) -> list[float]:
        found: list[float] = json.loads((self.folder / f"losses.{rank}").read_text())
        return found

    def reports(self) -> dict[str, str]:
        return {one.name.split("-")[1]: one.read_text() for one in self.folder.glob("overflow-*")}


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_the_layer_and_the_rank_that_overflow_are_named_and_training_is_the_same(
    tmp_path: Path, how: str
) -> None:
    plain = Job(tmp_path / "plain", "none", how)
    watched = Job(tmp_path / "watched", "report", how)
    assert (plain.done.returncode, watched.done.returncode) == (0, 0), watched.done.stderr
    for rank in (0, 1):
        healthy = plain.losses(rank)[:3]
        assert watched.losses(rank)[:3] == healthy
        assert all(map(math.isfinite, healthy))
    assert [str(one) for one in watched.losses(1)] == [str(one) for one in plain.losses(1)]
    report = watched.reports()["rank1"]
    assert "batch 3: inf first in output of blocks.2.wide (Linear)" in report.splitlines()[0]
    assert "float16 ends at 6.55e+04" in report
    assert all(line.startswith("[rank 1] ") for line in report.splitlines())
    assert "blocks.1.narrow (Linear)" in report  # what was before it
    zero = watched.reports().get("rank0", "")  # its weights are spoilt by the other's gradients
    assert "batch 3" not in zero
    assert "[rank 0] done" in watched.done.stdout


def test_raise_ends_the_job_before_the_weights_are_spoilt(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", "raise")
    assert job.done.returncode == 1
    assert "OverflowFoundError: batch 3: inf first in output of blocks.2.wide" in job.done.stderr
    assert job.reports().keys() == {"rank1"}
    assert len(job.losses(1)) == 3


def test_bfloat16_holds_what_float16_does_not(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", "raise", kind="bfloat16")
    assert job.done.returncode == 0, job.done.stderr
    assert not job.reports()
