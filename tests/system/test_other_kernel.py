"""What the kernel of a test machine may lack, by a kernel of its own: quotas of XFS and ext4, and NFS."""

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


def test_reads_over_a_real_nfs_mount_that_became_slow_are_told_of_the_client_s_own_counters(tmp_path: Path) -> None:  # fmt: skip
    """The kernel's own server and client of NFS 4.1, and a link between them that becomes slow. Controls: before it, and afterwards."""
    found = boot(tmp_path, "nfs.py", [image(tmp_path, "ext4", 64)], seconds=420)
    print({key: one for key, one in found.items() if key != "mountstats"})
    assert [words for _, words in found["usual"]] == [[]] * 22
    took = [milliseconds for milliseconds, _ in found["slow"]]
    assert min(took) >= 50, "the link does delay"
    words = r"reads of /mnt/data sets \(nfs01:/\) take (\d+) ms instead of \S+ ms since \d\d:\d\d UTC \(.*\)"
    (reads,) = [one for one in found["slow"][-1][1] if one.startswith("reads")]
    match = re.fullmatch(words, reads)
    assert match, reads
    assert abs(int(match[1]) - sorted(took)[2]) <= 0.2 * sorted(took)[2], (
        "as the rank itself measures"
    )
    assert found["by_device"] == {found["device"]: reads}
    assert found["waiting"] >= 0.5, "of all looks the rank waits for a file"
    assert found["after"][-1][1] == []
    assert (
        "device nfs01:/ mounted on /mnt/data\\040sets with fstype nfs4 statvers=1.1"
        in found["mountstats"]
    )
