"""docs/slurm-quick-start.md, typed into a real Slurm of two nodes, names the rank that hangs on the other node."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.harness import SCRIPTS
from processes.needs import need_torch
from shared.system.patience import PATIENCE
from system.machine import need
from system.quick_start import REPOSITORY, copy_checkout, parts
from system.slurm import PROGRAMS, Slurm, slurm

PAGE = REPOSITORY / "docs/slurm-quick-start.md"
REPORTS = Path("/var/lib/mldebug/reports")  # of root
GPUS = "#SBATCH --gpus-per-node=8\n"


def commands() -> str:
    """All that a reader types; without the line that asks for GPUs, which are not here."""
    text = "".join(part.commands for part in parts(PAGE.read_text(encoding="utf-8")))
    assert text.count(GPUS) == 1
    return text.replace(GPUS, "")


def shown() -> str:
    """The sentence that the page says is printed."""
    found = re.search(r"^Rank 3 .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[0]


def test_the_lines_that_are_named_are_those_of_the_script_on_the_page() -> None:
    script = commands().partition("train.py <<'END'\n")[2].partition("\nEND\n")[0].splitlines()
    sleeps, waits = re.findall(r"train\.py:(\d+)", shown())
    assert "time.sleep(3600)" in script[int(sleeps) - 1]
    assert "all_reduce" in script[int(waits) - 1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    """Two nodes, each with its own name and processes."""
    if os.geteuid():
        pytest.skip("slurmd needs root")
    need(*PROGRAMS, "sbatch", "unshare")
    need_torch("the job of the page trains with PyTorch")
    with slurm(apart=True) as one:
        yield one


@pytest.mark.scenario
@pytest.mark.system
@pytest.mark.host
@pytest.mark.timeout(600)
def test_it_names_the_rank_that_hangs(cluster: Slurm, tmp_path: Path) -> None:
    home = tmp_path / "home"
    copy_checkout(home / "mldebug")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= cluster.environment | {"HOME": str(home), "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            ["bash", "-eu"], input=commands(), cwd=home / "mldebug", env=environ, check=False,
            capture_output=True, text=True, timeout=180 * PATIENCE,
        )  # fmt: skip
    finally:
        cluster.free()
    for report in re.findall(r"\b\d{8}T\d{6}Z-[0-9a-f]{8}-manual\b", done.stdout):
        shutil.rmtree(REPORTS / report, ignore_errors=True)
    log = "".join(file.read_text() for file in (home / "mldebug-example").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + log
    expected = re.escape(shown()).replace(r"\(on\ a2\)", r"\(on a[12]\)")  # torchrun decides which
    assert re.search(expected, " ".join(done.stdout.split())), done.stdout + done.stderr
    assert "next_batch" in (home / "mldebug-example/report.html").read_text()
