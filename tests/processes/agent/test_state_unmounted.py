"""The file system below the state dir of an agent that is not root stops, is unmounted, and comes back."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.harness import User, folder_for, wait_for
from processes.incidents.watching import settings, start, stop
from shared.storage.disks import SIZES, disk

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.system,
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
