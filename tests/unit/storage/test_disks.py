"""Real disks of ext4 and XFS that fill, run out of inodes, turn read-only and freeze: what desk and test writes say."""

import contextlib
import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import CanaryConfig as Wanted
from mldebug.config.storage import StorageConfig
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.child.messages import QuotaOwners
from mldebug_agents.storage.child.quota import read_blocks
from mldebug_agents.storage.filesystems import canary
from mldebug_agents.storage.filesystems.canary import CanaryCollector
from mldebug_agents.storage.filesystems.collector import FilesystemCollector
from shared.storage.disks import disk, frozen
from shared.storage.nodetools import with_config
from shared.system.hung import missing

pytestmark = pytest.mark.timeout(120)
KINDS = ("ext4", "xfs")


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


class FolderProbe:
    """Looks at one folder, and writes there."""

    def __init__(self, tools: NodeTools, folder: Path) -> None:
        paths = (str(folder),)
        config = Config(storage=StorageConfig(paths=paths, canary=Wanted(paths=paths)))
        context, probe = with_config(tools.context, config), tools.filesystem_probe
        self.filesystems, self.canary = (
            FilesystemCollector(context, probe),
            CanaryCollector(context, probe),
        )
        self.folder = folder
        self.now = 0.0

    def kinds(self) -> set[str]:
        """Alarms of this moment."""
        self.now += 30
        for part in (self.filesystems, self.canary):
            part.look(self.now, [])
        found = (*self.filesystems.alarms(), *self.canary.alarms())
        return {one.kind for one in found if str(self.folder) in one.subject}


def fill(file: Path) -> None:
    """As root, who may take the reserve, too."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(1 << 20))
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as stream:
        while True:
            stream.write(bytes(512))


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_fills_and_turns_read_only(tools: NodeTools, tmp_path: Path, kind: str) -> None:
    with disk(tmp_path, kind) as folder:
        desk = FolderProbe(tools, folder)
        assert desk.kinds() == set()
        fill(folder / "all")
        assert {"too_full", "canary_full"} <= desk.kinds()
        (folder / "all").unlink()
        os.sync()
        assert desk.kinds() == set()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert desk.kinds() == {"read_only", "canary_read_only"}


def test_a_disk_without_inodes(tools: NodeTools, tmp_path: Path) -> None:
    with disk(tmp_path, "ext4", 1 << 20) as folder:
        desk = FolderProbe(tools, folder)
        with contextlib.suppress(OSError):
            for number in range(100_000):
                os.mknod(folder / str(number))
        assert {"inodes", "canary_full"} <= desk.kinds()
        assert [one.sentence.partition(": ")[2] for one in desk.canary.alarms()] == [
            "a test write failed: no inode is left"
        ]


def test_a_frozen_disk_is_found_by_the_test_write_alone_and_forgiven(
    tools: NodeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "SECONDS", 1.0)
    with disk(tmp_path, "ext4") as folder:
        desk = FolderProbe(tools, folder)
        with frozen(folder):
            assert desk.kinds() == {"canary_stuck"}
            assert desk.kinds() == {"canary_stuck"}  # the same write: no second one is begun
        for _ in range(100):
            if not desk.kinds():
                break
        assert desk.kinds() == set()
        assert {one.name for one in folder.iterdir()} == {"lost+found"}


def test_quotas_of_a_real_disk(tmp_path: Path) -> None:
    """Only where this kernel keeps quotas at all."""
    features = ("-O", "quota,project", "-E", "quotatype=usrquota:grpquota:prjquota")
    with quota_disk(tmp_path, features) as folder:
        subprocess.run(
            ["setquota", "-u", "12345", "500", "1000", "0", "10", str(folder)], check=True
        )
        (folder / "his").write_bytes(bytes(300 << 10))
        os.chown(folder / "his", 12345, 12345)
        os.sync()
        handle = os.open(folder, os.O_RDONLY)
        try:
            (block,) = read_blocks(handle, QuotaOwners(((0, 12345),)))
        finally:
            os.close(handle)
        assert (block.limit, block.inodes, block.inodes_limit) == (500 << 10, 1, 10)
        assert 300 << 10 <= block.used < 400 << 10


def kernel_config() -> str:
    """As it tells it; "" where it does not."""
    with contextlib.suppress(OSError), gzip.open("/proc/config.gz", "rt") as file:
        return file.read()
    return ""


@contextlib.contextmanager
def quota_disk(folder: Path, features: tuple[str, ...]) -> Iterator[Path]:
    """Skips where the kernel has none, which is no fault of the test bed."""
    if os.geteuid() != 0 or not shutil.which("setquota"):
        pytest.skip("needs root and setquota")
    image, target = folder / "image", folder / "disk"
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", *features, str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop,usrquota", str(image), str(target)], check=False, capture_output=True).returncode:  # fmt: skip
        if "CONFIG_QFMT_V2=y" in kernel_config():
            missing("this kernel keeps quotas, and mounts no ext4 with them")
        pytest.skip("this kernel keeps no quotas of ext4 (CONFIG_QFMT_V2), or does not say")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)
