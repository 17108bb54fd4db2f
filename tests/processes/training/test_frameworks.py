"""The frameworks that people train with, each in a small real training: what the hook told is what the loop counted, and
what was learned is what was learned without it.

Those that `make` does not install are tried by `make test-frameworks`, which does.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mldebug_agents.jobs.job_start import environment, hook_folder
from processes.harness import JOBS, SCRIPTS, clean_environment, environment_of_jobs, free_port
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the scenarios train with PyTorch")

COMPILING = ("compiled",)  # all others start without the compiler
NEEDED = "MLDEBUG_TEST_FRAMEWORKS"  # set: one that is missing is a failure
ALL = {"checkpoint_save", "checkpoint_load", "data_wait"}
PYTORCH = {
    "plain": ALL,
    "scaler": {"data_wait"},
    "twice": {"data_wait"},
    "background": {"data_wait"},
    "compiled": {"data_wait", "compile"},
    "safetensors": ALL,
    "accelerate": ALL,
}
OTHERS = {
    "transformers": ALL | {"evaluate"},
    "lightning": ALL | {"evaluate"},
    "gan": {"data_wait"},
    "deepspeed0": ALL,
    "deepspeed1": ALL,
    "deepspeed2": ALL,
    "deepspeed3": ALL,
    "megatron": {"data_wait"},
}
PACKAGES = {
    "gan": "lightning", "megatron": "megatron.core", **dict.fromkeys(PYTORCH, "torch"),
    "safetensors": "safetensors", "accelerate": "accelerate",
    **{f"deepspeed{stage}": "deepspeed" for stage in range(4)},
}  # fmt: skip


def need(name: str) -> None:
    """Skip where its package is not installed."""
    package = PACKAGES.get(name, name)
    try:
        there = find_spec(package) is not None
    except ModuleNotFoundError:
        there = False
    if not there and (os.environ.get(NEEDED) or name in PYTORCH):
        pytest.fail(f"{package} is not installed")
    if not there:
        pytest.skip(f"{package} is not installed: make test-frameworks")


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where DeepSpeed compiles its own: nowhere that another run has left a lock."""
    return tmp_path_factory.mktemp("extensions")


def trained(name: str, hooked: bool, home: Path, extensions: Path) -> dict[str, Any]:
    """What came of one training."""
    surroundings = clean_environment if name in COMPILING else environment_of_jobs
    env = surroundings(home) | {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(extensions),
        "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
    }  # fmt: skip
    if hooked:
        env |= environment(env, hook_folder())
    done = subprocess.run(
        [sys.executable, str(JOBS / "frameworks.py"), name], env=env, capture_output=True,
        text=True, timeout=400, check=False, cwd=home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    table: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return table


@pytest.mark.parametrize("name", [*PYTORCH, *OTHERS])
def test_the_step_is_the_loops_and_the_training_is_the_same(
    name: str, tmp_path: Path, extensions: Path
) -> None:
    need(name)
    result, bare = (trained(name, hooked, tmp_path, extensions) for hooked in (True, False))
    assert bare["told"] == []
    assert (result["weights"], result["loop"]) == (bare["weights"], bare["loop"])
    assert set(result["phases"]) == {**PYTORCH, **OTHERS}[name]
    assert result["left"] == ""
    steps = [step for step in result["told"] if step > 0]
    assert steps == list(range(steps[0], steps[-1] + 1))  # none left out, none told twice
    if name == "plain":  # its optimizer was made anew half-way: one step is lost
        assert result["loop"] - 1 <= steps[-1] <= result["loop"]
    else:
        assert steps[-1] == result["loop"]
    beats = (
        result["loop"] / 2 if name == "gan" else steps[-1]
    )  # Lightning counts both of its optimizers
    assert result["beats"] == beats
