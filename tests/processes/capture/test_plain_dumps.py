"""Plain `py-spy dump` of real ranks in a folder, as people have them: `mldebug diagnose` judges them as a person would.

No native frames, no samples: who waits in DDP's backward, or in a collective, waits for the one that is elsewhere.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from processes.harness import MLDEBUG, SCRIPTS, Plan, RunningJob, running
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the jobs train with PyTorch")
STRUCK = 2


def dumped(job: RunningJob, folder: Path, *, without: int = -1) -> dict[str, Any]:
    """What `mldebug diagnose` says of one dump of each rank but `without`, and its exit code."""
    folder.mkdir()
    for rank, pid in job.ranks.items():
        if rank == without:
            continue
        answer = subprocess.run([str(SCRIPTS / "py-spy"), "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
        (folder / f"rank{rank}.txt").write_text(answer.stdout)
    judged = subprocess.run([*MLDEBUG, "diagnose", "--json", str(folder)], capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert judged.stdout, judged.stderr
    found: dict[str, Any] = json.loads(judged.stdout)["diagnosis"]
    print(f"exit {judged.returncode} {found['confidence']} {found['verdict']}: {found['summary']}")
    return found


def named(found: dict[str, Any]) -> list[int]:
    """The ranks that it names."""
    return [one["rank"] for one in found["culprits"]]


@pytest.mark.parametrize("options", [(), ("--ddp",)], ids=["all_reduce", "DDP"])
def test_plain_dumps_of_a_job_that_hangs(options: tuple[str, ...], tmp_path: Path) -> None:
    """And with the dump of one missing, that rank is told first, and another is named at `low` at most."""
    with running(Plan("sleep", struck=(STRUCK,), options=options)) as job:
        job.wait_until_stuck()
        found = dumped(job, tmp_path / "all")
        some = dumped(job, tmp_path / "some", without=1)
        alone = dumped(job, tmp_path / "alone", without=STRUCK)

    assert named(found) == [STRUCK], found["summary"]
    assert "slow_data_source" in found["summary"]
    assert some["summary"].startswith("Rank 1 has no dump: look at it first"), some["summary"]
    assert (set(named(some)) <= {STRUCK}, some["confidence"]) == (True, "low"), some["summary"]
    assert alone["summary"].startswith(f"Rank {STRUCK} has no dump: look at it first")
    assert named(alone) == [], alone["summary"]


def test_plain_dumps_of_a_job_that_works_name_nobody_surely(tmp_path: Path) -> None:
    """They were taken one after the other: each rank may stand anywhere in its step."""
    with running(Plan(options=("--ddp",))) as job:
        job.wait_for_step(5)
        for number in range(5):
            found = dumped(job, tmp_path / str(number))
            assert found["confidence"] == "low", found["summary"]
