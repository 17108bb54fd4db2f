"""Real jobs that write checkpoints until their disk is full: the report names the mount, by bytes or inodes, and what is left."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from processes.harness import JOBS, SCRIPTS, Plan, RunningJob, folder_for, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from processes.needs import need_torch
from shared.storage.disks import disk, memory_disk
from shared.storage.quota_fuse import quota_fuse

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the jobs run under torchrun")

CONFIG = "storage: {interval: 2s}\ncheckpoints: {interval: 2s, settle: 5s}\n"


class FillingJob(RunningJob):
    """Two ranks that fill a disk with checkpoints of so many MiB each."""

    def __init__(self, folder: Path, target: Path, mib: int, kind: str) -> None:
        super().__init__(Plan(), folder)
        named = [] if kind == "file" else ["--save"]
        words = [str(self.events), *named, str(target), str(mib), kind]
        self.script = [str(JOBS / "fills_disk.py"), *words]

    def start(self, more: Mapping[str, str] = {}) -> None:
        """Start it under torchrun, with more variables."""
        launcher = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", "2"]
        self._spawn([*launcher, *self.script], dict(more))


def ended(agent: RunningAgent, job: FillingJob) -> Report:
    """The report of its end."""
    job.wait_for_event("started", (0, 1))

    def over() -> Report | None:
        return next((one for one in agent.reports() if one["state"] == "ended"), None)

    report: Report = wait_for("the report of its end", over, 150)
    return report


def run(agent: RunningAgent, folder: Path, target: Path, mib: int, kind: str = "file") -> Report:
    """Let a job run until its end, and take the report."""
    job = FillingJob(folder, target, mib, kind)
    try:
        job.start()
        return ended(agent, job)
    finally:
        job.end()


def test_a_disk_that_checkpoints_fill_is_named_though_the_error_has_no_word_of_space(tmp_path: Path) -> None:  # fmt: skip
    """`torch.save` ends with "unexpected pos": neither path nor cause."""
    with (
        folder_for(Plan().user) as folder,
        disk(tmp_path, "ext4", size=40 << 20) as full,
        watching(folder, settings(folder) + CONFIG) as agent,
    ):
        report = run(agent, folder, full / "ckpt", 8)
    found = report["diagnosis"]
    print(found)
    assert found["verdict"] == "storage_fault", found
    assert [(one["kind"], one["rank"]) for one in found["culprits"]] == [("mount", 0)]
    assert f"{full} is full" in found["summary"]
    # the second where a checkpoint was whole before, and the agent had a look at it
    assert re.search(r"has 0 B left( now|, and a checkpoint needs about 8 MiB)", found["summary"]), found  # fmt: skip


def test_the_checkpoint_that_a_full_disk_has_cut_is_told_with_the_last_whole_one(tmp_path: Path) -> None:  # fmt: skip
    """Folders with two files of 4 MiB each: the last one is cut in the middle."""
    with (
        folder_for(Plan().user) as folder,
        disk(tmp_path, "ext4", size=40 << 20) as full,
        watching(folder, settings(folder) + CONFIG) as agent,
    ):
        report = run(agent, folder, full / "ckpt", 8, "folder")
        steps = sorted(int(one.name.rpartition("-")[2]) for one in (full / "ckpt").iterdir() if one.is_dir())  # fmt: skip
    found = report["diagnosis"]
    print(found)
    assert found["verdict"] == "storage_fault", found
    words = " ".join([found["summary"], *found["evidence"]])
    assert f"checkpoint checkpoint-{steps[-1]} was cut: " in words, found
    assert " of about 8 MiB" in words, found
    assert f"last whole: checkpoint-{steps[-2]}" in words, found
    assert "the next attempt will fail alike: " in words, found


def test_a_quota_is_named_by_the_checkpoint_that_it_has_cut_though_the_error_has_no_path(tmp_path: Path) -> None:  # fmt: skip
    """A file server that refuses to write on and shows lots of room: `df` says nothing of it."""
    with (
        folder_for(Plan().user) as folder,
        quota_fuse(tmp_path, 30 << 20) as home,
        watching(folder, settings(folder) + CONFIG) as agent,
    ):
        report = run(agent, folder, home / "ckpt", 8, "plain")
    found = report["diagnosis"]
    print(found)
    assert (found["verdict"], found["confidence"]) == ("storage_fault", "medium"), found
    assert f"A quota on {home} is used up" in found["summary"], found
    words = " ".join([found["summary"], *found["evidence"]])
    assert re.search(r"checkpoint step-160\.pt was cut: \d.* of about 8 MiB", words), found
    assert "the next attempt will fail alike while the quota is used up; a checkpoint needs about 8 MiB; last whole: step-120.pt" in words, found  # fmt: skip
    assert re.search(r"\d checkpoints of this run hold \d+.* MiB", words), found


def test_a_full_memory_disk_is_told_with_the_checkpoint_that_it_has_cut(tmp_path: Path) -> None:
    with (
        folder_for(Plan().user) as folder,
        memory_disk(tmp_path, "size=30m") as full,
        watching(folder, settings(folder) + CONFIG) as agent,
    ):
        report = run(agent, folder, full / "ckpt", 8, "plain")
    found = report["diagnosis"]
    print(found)
    assert found["verdict"] == "storage_fault", found
    assert f"{full} is full" in found["summary"], found
    words = " ".join([found["summary"], *found["evidence"]])
    assert re.search(r"checkpoint step-160\.pt was cut: \d.* of about 8 MiB", words), found
    assert "the next attempt will fail alike: " in words, found


def test_a_memory_disk_without_inodes_is_told_as_such(tmp_path: Path) -> None:
    with (
        folder_for(Plan().user) as folder,
        memory_disk(tmp_path, "size=64m,nr_inodes=1500") as full,
        watching(folder, settings(folder) + CONFIG) as agent,
    ):
        report = run(agent, folder, full / "ckpt", 0)
    found = report["diagnosis"]
    print(found)
    assert found["verdict"] == "storage_fault", found
    assert "inodes 100%" in found["summary"], found
    assert "inodes left, without which no file can be made" in found["summary"], found


def test_a_disk_without_inodes_is_told_as_such(tmp_path: Path) -> None:
    with (
        folder_for(Plan().user) as folder,
        disk(tmp_path, "ext4", size=16 << 20) as full,
        watching(folder, settings(folder) + CONFIG) as agent,
    ):
        report = run(agent, folder, full / "ckpt", 0)
    found = report["diagnosis"]
    print(found)
    assert found["verdict"] == "storage_fault", found
    assert "inodes 100%" in found["summary"], found
    assert "inodes left, without which no file can be made" in found["summary"], found


def test_tasks_of_an_array_that_die_of_one_full_disk_are_one_story(tmp_path: Path) -> None:
    """The second task finds the disk as the first has left it, but for one checkpoint."""
    ids = list[str]()
    with (
        folder_for(Plan().user) as folder,
        disk(tmp_path, "ext4", size=40 << 20) as full,
        watching(folder, settings(folder) + CONFIG) as agent,
    ):
        for task in (1, 2):
            slurm = {"SLURM_JOB_ID": str(4711 + task), "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": str(task)}  # fmt: skip
            with folder_for(Plan().user) as place:
                job = FillingJob(place, full / f"ckpt-{task}", 8, "file")
                try:
                    job.start(slurm)
                    job.wait_for_event("started", (0, 1))
                    report = wait_for("its report", lambda number=task: story(agent, number), 150)
                    ids.append(report["id"])
                finally:
                    job.end()
            (full / "ckpt-1/step-10.pt").unlink(missing_ok=True)  # somebody makes a little room
        assert len(agent.reports()) == 1
    assert ids[0] == ids[1]
    found = report["diagnosis"]
    assert found["verdict"] == "storage_fault", found
    assert f"{full} is full" in found["summary"], found
    assert "2 of 2 runs of this script failed the same way" in found["summary"], found


def story(agent: RunningAgent, tasks: int) -> Report | None:
    """The report of the array, once so many of its tasks have ended."""
    again = lambda one: sum("another run failed the same way" in line["what"] for line in one["timeline"])  # fmt: skip
    ended = (one for one in agent.reports() if one["state"] == "ended")
    return next((one for one in ended if again(one) == tasks - 1), None)
