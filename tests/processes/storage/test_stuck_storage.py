"""A filesystem that freezes, and one whose server stops, under a real job: the mount is named, with what is mounted there."""

import re
from pathlib import Path

import pytest

from processes.harness import (
    JOBS,
    SCRIPTS,
    Plan,
    RunningJob,
    User,
    folder_for,
    free_port,
    state_of,
    wait_for,
)
from processes.incidents.watching import Report, RunningAgent, settings, watching
from processes.needs import need_torch
from processes.storage.kubelet import asked_all_the_time
from shared.storage.disks import disk, frozen
from shared.system.hung import hung_mount

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]
need_torch("the scenarios train with PyTorch")

STORAGE = "storage: {interval: 1s}\n"


class SavingJob(RunningJob):
    """Two ranks, of which the first saves into a folder again and again."""

    def start_in(self, target: Path) -> None:
        """Train there, and return when both agent and people could see steps."""
        torchrun = f"{SCRIPTS / 'torchrun'} --standalone --nproc-per-node 2"
        train = f"{torchrun} {JOBS / 'filling.py'} --events {self.events} --every 1"
        self._spawn(["sh", "-c", f"cd {target} && exec {train}"], {})

    def trains(self) -> bool:
        """Has it made some steps?"""
        return "step 20 " in self.log.read_text(errors="replace")


def storage_report(agent: RunningAgent) -> Report | None:
    """The first report, once it is there."""
    return next(iter(agent.reports()), None)


def evidence(report: Report, target: Path) -> str:
    """The sentence about the rank; the culprit must be that mount and nothing else."""
    found = report["diagnosis"]
    assert found["verdict"] == "storage_fault", found
    ((kind, rank, reason),) = [
        (one["kind"], one["rank"], one["reason"]) for one in found["culprits"]
    ]
    assert (kind, rank) == ("mount", 0)
    assert str(target) in reason
    return str(found["evidence"][0])


def test_a_frozen_disk_under_a_rank_is_named_and_no_kubelet_would_kill_the_witness() -> None:
    port = free_port()
    with folder_for(User()) as folder, disk(folder, "ext4", 400 << 20) as target:
        job = SavingJob(Plan(world_size=2), folder)
        with watching(folder, settings(folder, listen=f"127.0.0.1:{port}") + STORAGE) as agent:
            try:
                job.start_in(target)
                wait_for("some steps", job.trains, 90)
                with frozen(target), asked_all_the_time(port) as kubelet:
                    report = wait_for("the report", lambda: storage_report(agent), 90)
                    rank = report["diagnosis"]["culprits"][0]["pid"]
                    assert state_of(rank) == "D"
                assert kubelet.count > 20
                assert kubelet.failed == []
                result = evidence(report, target)
                assert re.match(rf"rank 0 waits in \w+ of {target}/\S+ on /dev/loop\d+, stuck \d+ s", result), result  # fmt: skip
            finally:
                job.end()


def test_a_server_that_stops_under_a_rank_is_named_by_what_the_agent_saw_too() -> None:
    with folder_for(User()) as folder, hung_mount(folder) as mount:
        job = SavingJob(Plan(world_size=2), folder)
        with watching(folder, settings(folder) + STORAGE) as agent:
            try:
                job.start_in(mount.target)
                wait_for("some steps", job.trains, 90)
                mount.hang()
                report = wait_for("the report", lambda: storage_report(agent), 90)
                result = evidence(report, mount.target)
                pattern = rf"rank 0 waits in \w+ of {mount.target}/\S+ on {mount.source}, which has not answered the agent for \d+ s"  # fmt: skip
                assert re.match(pattern, result), result
                alarms = {one.kind for one in agent.snapshot().storage.alarms}  # type: ignore[union-attr]
                assert "stuck" in alarms
            finally:
                mount.recover()
                job.end()
