"""What the kernel of a test machine may lack, by a kernel of its own: quotas of XFS and ext4."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shared.system.hung import missing
from system.other_kernel import boot

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(900)]


def image(folder: Path, kind: str, mib: int, *options: str) -> Path:
    """A file with an empty filesystem."""
    file = folder / f"{kind}.img"
    with file.open("wb") as out:
        out.truncate(mib << 20)
    tool = shutil.which(f"mkfs.{kind}", path="/usr/sbin:/sbin:/usr/bin")
    if tool is None:
        missing(f"needs mkfs.{kind}")
    subprocess.run([str(tool), "-q", *options, str(file)], check=True)
    return file


def test_quotas_of_the_kernel_are_no_go_before_a_run(tmp_path: Path) -> None:
    disks = [image(tmp_path, "xfs", 320), image(tmp_path, "ext4", 128, "-O", "quota")]
    found = boot(tmp_path, "quotas.py", disks, seconds=420)
    print(found)
    assert found["free"] == {"code": 0, "failed": []}
    small, enough = found["user"]
    assert small == {"code": 1, "failed": ["/mnt/xfs has 60 MiB left of a quota, too little for 2 checkpoints of 40 MiB"]}  # fmt: skip
    assert enough == {"code": 0, "failed": []}
    assert found["project"] == {"code": 1, "failed": ["/mnt/xfs/project has 30 MiB left, too little for 2 checkpoints of 20 MiB"]}  # fmt: skip
    (ext4,) = found["group of ext4"]["failed"]
    assert re.fullmatch(r"/mnt/ext4 has (30|29\.\d+) MiB left of a quota, too little for 2 checkpoints of 20 MiB", ext4)  # fmt: skip


def test_ranks_that_die_of_a_quota_of_the_kernel_are_told_whose_it_is(tmp_path: Path) -> None:
    """Of a user, a group and a project; the control is a disk that is simply full, on which a quota of others is used up."""
    disks = [image(tmp_path, "xfs", 320), image(tmp_path, "ext4", 64, "-O", "quota", "-m", "0")]
    found = boot(tmp_path, "used_up.py", disks, seconds=420)
    print(found)
    exceeded = "OSError: [Errno 122] Disk quota exceeded"
    errors = {case: one["error"] for case, one in found.items()}
    assert errors == {
        "user": exceeded, "group": exceeded, "project": "OSError: [Errno 28] No space left on device",
        "group of ext4": exceeded, "full ext4": "OSError: [Errno 28] No space left on device",
    }  # fmt: skip
    assert {one["verdict"] for one in found.values()} == {"storage_fault"}
    for case, whose, place, look in (
        ("user", "user nobody", "/mnt/xfs", "quota -s"),
        ("group", "group 4321", "/mnt/xfs", "quota -g"),
        ("project", "project 7", "/mnt/xfs", "xfs_quota -x"),
        ("group of ext4", "group 4321", "/mnt/ext4", "quota -g"),
    ):
        summary = found[case]["summary"]
        words = rf"the quota of {whose} on {place} is used up \((30|29\.\d+) MiB of 30 MiB\); "
        assert re.match(words, summary), summary
        assert "the next attempt will fail alike while the quota is used up" in summary
        assert re.search(r"checkpoint step-4\.pt was cut: \S+ MiB of about 8 MiB", summary), summary
        assert found[case]["step"].startswith(look)
    assert found["full ext4"]["summary"].startswith("/mnt/ext4 is full")
