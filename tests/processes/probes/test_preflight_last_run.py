"""`mldebug preflight --job` under a real agent: what is not as it was when a real job last ended well is told, and nothing else."""

import json
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from processes.harness import (
    JOBS,
    MLDEBUG,
    clean_environment,
    environment_of_jobs,
    folder_for,
    wait_for,
)
from processes.harness import User as Owner
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the job trains with PyTorch")

SOON = 30.0  # seconds after the end of a run in which the next may begin: a prolog looks then
SINCE = "since the last good run "
NONE = "no run of uneven.py that ended well is recorded here"


def train(folder: Path, more: Mapping[str, str], until: int = 60) -> int:
    """A training of two ranks under torchrun, from its first step to its own end; its exit code."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = ["--nproc-per-node", "2", str(JOBS / "uneven.py"), "--until", str(until)]
    environ = environment_of_jobs(folder) | {"OMP_NUM_THREADS": "1"} | more
    with (folder / "train.log").open("ab") as out:
        done = subprocess.run([*launcher, *words], stdout=out, stderr=out, env=environ, cwd=folder, timeout=200, check=False)  # fmt: skip
    return done.returncode


def preflight(agent: RunningAgent, python: str, more: Mapping[str, str]) -> list[str]:
    """What it says of the last good run, without the run's id, or that it knows none."""
    words = ["preflight", "--json", "--config", str(agent.config), "--job", "uneven.py"]
    environ = clean_environment(agent.folder) | {"OMP_NUM_THREADS": "1"} | more
    done = subprocess.run([*MLDEBUG, *words, "--python", python], capture_output=True, text=True, env=environ, timeout=120, check=False)  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found: Any = json.loads(done.stdout)
    (node,) = found["answers"]
    return [one.partition(": ")[2] if one.startswith(SINCE) else one for one in node["since_good"]]


def other_environment(folder: Path) -> str:
    """The Python of an environment like this one, with another NumPy."""
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))  # fmt: skip
    (packages / "all.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    planted = packages / "numpy-0.9.9.dist-info"
    planted.mkdir()
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.9.9\n")
    return str(folder / "bin/python")


def test_what_changed_since_the_last_good_run_is_told_right_after_its_end(tmp_path: Path) -> None:
    with folder_for(Owner()) as folder, watching(folder, settings(folder)) as agent:
        assert preflight(agent, sys.executable, {}) == [NONE]
        assert train(folder, {"NCCL_ALGO": "Ring"}) == 0
        alike = lambda: preflight(agent, sys.executable, {"NCCL_ALGO": "Ring"})
        wait_for("the run that ended well", lambda: alike() != [NONE], SOON)
        assert alike() == [], "nothing has changed"
        python = other_environment(tmp_path / "other")
        assert preflight(agent, python, {"NCCL_ALGO": "Tree", "NCCL_P2P_DISABLE": "1"}) == [
            f"numpy was {version('numpy')}, is 0.9.9",
            "NCCL_ALGO was Ring, is Tree",
            "NCCL_P2P_DISABLE was not set, is 1",
        ]
