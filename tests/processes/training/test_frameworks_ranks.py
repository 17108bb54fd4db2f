"""The frameworks that people train with, on two ranks over gloo: each rank tells the step that its loop counted, and what
it learned is what it learned without the hook.

Those that `make` does not install are tried by `make test-frameworks`, which does.
"""

import json
import os
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from mldebug_agents.jobs.job_start import environment, hook_folder
from processes.harness import JOBS, MARK, SCRIPTS, environment_of_jobs, marked, send_signal
from processes.needs import need_torch
from processes.training.test_frameworks import ALL, extensions, need

__all__ = ["extensions"]
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]
need_torch("the scenarios train with PyTorch")

RANKS = 2
PHASES = {
    "zero": ALL,
    "fsdp2": ALL,
    "accelerate": ALL,
    "transformers": ALL | {"evaluate"},
    "lightning": ALL | {"evaluate"},
    **{f"deepspeed{stage}": ALL for stage in range(4)},
}
PACKAGES = {"zero": "plain", "fsdp2": "plain"}  # PyTorch alone


def trained(name: str, hooked: bool, folder: Path, extensions: Path) -> list[dict[str, Any]]:
    """What each rank told of one training."""
    folder.mkdir()
    env = environment_of_jobs(folder) | {
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(extensions), MARK: uuid.uuid4().hex, "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
    }  # fmt: skip
    if hooked:
        env |= environment(env, hook_folder())
    torchrun = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS)]
    try:
        done = subprocess.run(
            [*torchrun, str(JOBS / "several.py"), name, str(folder)], env=env, capture_output=True,
            text=True, timeout=400, check=False, cwd=folder,
        )  # fmt: skip
    finally:
        for pid in marked(env[MARK]):  # where torchrun was ended, its ranks go on
            send_signal(pid, signal.SIGKILL)
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("told.*"))]
    for one in results:  # they end without a goodbye
        for path in Path("/dev/shm").glob(f"mldebug-{one['pid']}-*"):
            path.unlink()
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(results) == RANKS
    return results


@pytest.mark.parametrize("name", PHASES)
def test_each_rank_tells_its_loops_step_and_learns_the_same(
    name: str, tmp_path: Path, extensions: Path
) -> None:
    need(PACKAGES.get(name, name))
    with_hook = trained(name, True, tmp_path / "hook", extensions)
    without = trained(name, False, tmp_path / "bare", extensions)
    for value, bare in zip(with_hook, without, strict=True):
        assert (bare["told"], bare["beats"]) == ([], 0)
        assert (value["weights"], value["loop"]) == (bare["weights"], bare["loop"])
        assert set(value["phases"]) == PHASES[name]
        assert value["left"] == ""
        steps = [step for step in value["told"] if step > 0]
        assert steps == list(range(1, value["loop"] + 1))  # none left out, none told twice
        assert value["beats"] == value["loop"] >= 6
