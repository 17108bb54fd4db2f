"""deploy/slurm/job.sh in a real Slurm of two nodes: agents of the user's own notice a stall, the signal has all ranks captured, reports stay."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes.harness import JOBS, SCRIPTS, wait_for
from system.machine import need
from system.slurm import NODES, PROGRAMS, Slurm, slurm

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.host, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[2] / "deploy/slurm/job.sh"
GPUS = "#SBATCH --gpus-per-node=8\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    """Two nodes, each with its own name and processes."""
    if os.geteuid():
        pytest.skip("slurmd needs root")
    need(*PROGRAMS, "sbatch", "unshare")
    with slurm(apart=True) as one:
        yield one


class Job:
    """One job by the script; its ranks are those of launched.py, one on each node."""

    def __init__(self, cluster: Slurm, folder: Path) -> None:
        self.cluster, self.folder, self.reports = cluster, folder, folder / "reports"
        (folder / "tmp").mkdir()
        (folder / "libtorch_cpu.so").write_bytes(b"\x7fELF" + bytes(8192))
        os.mkfifo(folder / "fifo")
        train = shutil.copy(JOBS / "launched.py", folder)
        text = SCRIPT.read_text(encoding="utf-8")
        assert GPUS in text  # there are none here
        (folder / "job.sh").write_text(text.replace(GPUS, ""))
        facts = {
            "MLDEBUG": f"{SCRIPTS}/mldebug",
            "MLDEBUG_REPORTS": str(self.reports),
            "MLDEBUG_SETTINGS": "stall: {timeout: 6s, interval: 1s}",
            "TMPDIR": str(folder / "tmp"),
        }
        facts = [f"{name}={value}" for name, value in facts.items()]
        ours = ("sbatch", "--parsable", f"--output={folder}/out", f"--chdir={folder}")
        words = (str(folder / "job.sh"), sys.executable, "-u", train, str(folder))
        self.id = cluster.run("env", *facts, *ours, *words).strip()
        wait_for("both ranks", lambda: self._started(), 90)

    def _started(self) -> bool:
        return len(list(self.folder.glob("started.*"))) == 2 and "step 3 " in self.out

    @property
    def out(self) -> str:
        file = self.folder / "out"
        return file.read_text(errors="replace") if file.exists() else ""

    def tell(self, **ways: str) -> None:
        for rank, way in ways.items():
            making = self.folder / "telling"
            making.write_text(way)
            making.rename(self.folder / f"way.{rank.removeprefix('rank')}")

    def reports_below(self, folder: str) -> list[Any]:
        found = self.folder.glob(f"{folder}/[!.]*/report.json")
        return [json.loads(file.read_text()) for file in found]

    def ended(self) -> str:
        """Its exit code, once it has one."""
        done = self.cluster.run("scontrol", "show", "job", self.id)
        state = re.search(r"JobState=(\w+)", done)
        code = re.search(r"ExitCode=(\S+)", done)
        return code[1] if code and state and state[1] not in ("RUNNING", "COMPLETING") else ""


@pytest.fixture
def job(cluster: Slurm, tmp_path: Path) -> Iterator[Job]:
    one = Job(cluster, tmp_path)
    yield one
    if not one.ended():
        cluster.free()


def test_a_stall_is_seen_on_each_node_and_all_of_them_before_the_end(job: Job) -> None:
    job.tell(rank0="wait", rank1="sleep")
    wait_for("reports", lambda: len(job.reports_below("tmp/*/reports")) == 2, 60)
    job.cluster.run("scancel", "--signal=USR1", "--batch", job.id)
    text = wait_for("a look at all ranks", lambda: text_of(job.reports / "before-the-end.txt"), 60)
    page = (job.reports / "before-the-end.html").read_text()
    assert job.cluster.run("squeue", "--noheader", "--format=%T").strip() == "RUNNING"
    job.cluster.run("scancel", job.id)
    wait_for("the job's end", job.ended, 60)

    assert "rank 1 sleeps in slow_data_loader" in " ".join(text.split())
    assert "slow_data_loader" in page
    assert "wait_for_peers" in page
    for node in NODES:
        (report,) = job.reports_below(f"reports/{node}")
        assert (report["kind"], report["node"]) == ("stall", node)
    wait_for("nothing to be left", lambda: not list((job.folder / "tmp").iterdir()), 20)


def text_of(file: Path) -> str:
    """All of it: the command below ends with a line of its own."""
    text = file.read_text() if file.exists() else ""
    return text if "before-the-end.html" in text else ""


def test_the_job_has_the_exit_code_of_its_training(job: Job) -> None:
    job.tell(rank0="exit 3", rank1="exit 3")
    assert wait_for("the job's end", job.ended, 60) == "3:0"
    wait_for("nothing to be left", lambda: not list((job.folder / "tmp").iterdir()), 20)
