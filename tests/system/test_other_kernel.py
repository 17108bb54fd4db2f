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
