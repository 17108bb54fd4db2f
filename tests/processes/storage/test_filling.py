"""A real job fills a real filesystem of its own mount namespace: the agent says so before the save fails."""

import os
import shutil
import time
from pathlib import Path

import pytest

from processes.harness import JOBS, SCRIPTS, Plan, RunningJob, User, folder_for, mldebug, wait_for
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(180)]
need_torch("the scenarios train with PyTorch")

STORAGE = "storage: {interval: 500ms, limits: {/: '1'}}\n"


class SavingJob(RunningJob):
    """Two ranks in a mount namespace of their own, which goes with them."""

    def start(self, size: str = "48m", words: str = "") -> None:
        """Mount so much where only the job sees it, and train there; with `words` in / and save there."""
        disk = self.folder / "disk"
        disk.mkdir()
        torchrun = f"{SCRIPTS / 'torchrun'} --standalone --nproc-per-node 2"
        train = f"{torchrun} {JOBS / 'filling.py'} --events {self.events}"
        words = words.format(disk=disk)
        mount = f"mount -t tmpfs -o size={size} tmpfs {disk} && cd {'/' if words else disk} && exec {train} {words}"
        self._spawn(["unshare", "--mount", "sh", "-c", mount], {})


def foretold(agent: RunningAgent, disk: Path) -> str:
    """The sentence of the forecast alarm, "" while there is none."""
    snapshot = agent.snapshot()
    alarms = snapshot.storage.alarms if snapshot and snapshot.storage else ()
    mine = [one for one in alarms if one.kind == "full_soon" and str(disk) in one.subject]
    return mine[0].sentence if mine else ""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="nobody may mount here"
)
@pytest.mark.parametrize(
    ("size", "words"),
    [("48m", ""), ("96m", "--save-dir {disk}")],
    ids=["where it works", "open for less than a look"],
)
def test_a_filesystem_that_a_job_fills_is_foretold_before_its_save_fails(
    size: str, words: str
) -> None:
    with folder_for(User()) as folder:
        job = SavingJob(Plan(world_size=2), folder)
        with watching(folder, settings(folder) + STORAGE) as agent:
            try:
                job.start(size, words)
                result = wait_for("the forecast", lambda: foretold(agent, folder / "disk"), 90)
                at = time.time()
                assert "full in" in result or "will not fit" in result
                assert not (job.events / "failed").exists()
                answer = mldebug(job, "status", "--storage", "--config", str(agent.config))
                assert str(folder / "disk") in answer.stdout
                wait_for("a save that fails", lambda: (job.events / "failed").exists(), 90)
                assert at < float((job.events / "failed").read_text())
            finally:
                job.end()
