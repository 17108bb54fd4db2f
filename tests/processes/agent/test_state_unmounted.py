"""The file system below the state dir of an agent stops, is unmounted or read-only, and comes back."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes.agent.light import light_job
from processes.agent.test_hard_times import STALL, knows, reports_of
from processes.capture.flood import as_user
from processes.harness import User, folder_for, wait_for
from processes.incidents.watching import settings, start, stop, watching
from shared.storage.disks import SIZES, disk

# Not of the machine itself: whoever makes a mount namespace there meanwhile keeps a copy of what is mounted, and so the device
pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where everybody may pass through."""
    with folder_for(User()) as made:
        made.chmod(0o711)
        yield made


def mounted(folder: Path, image: Path) -> None:
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)


def is_held(image: Path) -> bool:
    """Whether a loop device of this image is left, which goes with the file system."""
    done = subprocess.run(["losetup", "-j", str(image)], check=True, capture_output=True)
    return bool(done.stdout)


def test_nothing_is_held_of_a_state_dir_that_was_unmounted_where_the_folder_below_is_root_s(
    folder: Path,
) -> None:
    """The socket stayed open there: the kernel kept the file system, and a new mount of the device showed it again, read-only."""
    with disk(folder, "ext4", SIZES["ext4"]) as elsewhere:
        subprocess.run(["umount", str(elsewhere)], check=True)
        image, state = folder / "image", folder / "state"
        state.mkdir(mode=0o755)
        mounted(state, image)
        try:
            agent = start(folder, settings(folder), User("nobody"))
            subprocess.run(["mount", "-o", "remount,abort", str(state)], check=True)
            wait_for("the log says how", lambda: "umount -l" in agent.log, 60)
            subprocess.run(["umount", "-l", str(state)], check=True)
            wait_for("nothing holds it", lambda: not is_held(image), 90)
            assert "is not there any more" in agent.log
            mounted(state, image)
            wait_for("it is asked again", lambda: agent.snapshot() is not None, 90)
            stop(agent)
            assert "Traceback" not in agent.log
        finally:
            agent.process.kill()
            agent.process.wait(20)
            subprocess.run(["umount", "-l", str(state)], check=False)


@contextmanager
def read_only(state: Path) -> Iterator[None]:
    """The path of the state dir shows the same folder, where nothing can be written, until the end of the block."""
    subprocess.run(["mount", "--bind", str(state), str(state)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(state)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


@pytest.mark.long  # of a full disk: test_agent_life.py; of errors: tests/unit/state/test_writer_thread.py
@pytest.mark.parametrize("user", [User(), User("nobody")], ids=["root", "unit"])
def test_a_state_dir_that_becomes_read_only_costs_reports_until_it_is_writable(
    folder: Path, user: User
) -> None:
    folder.chmod(0o777)
    with (
        watching(folder, settings(folder, stall=STALL), user) as agent,
        light_job(folder / "job", prefix=as_user(62_001)) as job,
    ):
        wait_for("it is known", lambda: knows(agent, job), 90)
        with read_only(agent.state):
            os.kill(job.ranks[1], signal.SIGSTOP)
            job.hang()
            wait_for("the trouble is told", lambda: "Read-only file system" in agent.log, 90)
            assert agent.process.poll() is None
            assert agent.snapshot() is not None, "it goes on answering"
            assert reports_of(agent, job) == []
        (report,) = wait_for("the report", lambda: reports_of(agent, job), 90)
        assert "Traceback" not in agent.log
    assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [1]
