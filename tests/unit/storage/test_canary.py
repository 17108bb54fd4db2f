"""Test writes on real filesystems: full, out of inodes, read-only, not there; what is left behind, and whose it is."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import CanaryConfig as Wanted
from mldebug.config.storage import StorageConfig
from mldebug.storage.filesystems.canary import CanaryResult, CanaryWrite, sentence
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.child.messages import MountAnswer, MountRequest
from mldebug_agents.storage.collectors import storage_collectors
from mldebug_agents.storage.filesystems.canary import SECONDS, CanaryCollector
from shared.storage.disks import delayed
from shared.storage.nodetools import with_config
from shared.system.hung import hung_mount, wait_until
from shared.system.patience import PATIENCE
from unit.storage.test_filesystems import mount, mounted


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


def look(tools: NodeTools, folder: Path) -> CanaryCollector:
    config = Config(storage=StorageConfig(canary=Wanted(paths=(str(folder),))))
    part = CanaryCollector(with_config(tools.context, config), tools.filesystem_probe)
    part.look(1.0, [])
    return part


def alerts_of(part: CanaryCollector) -> list[tuple[str, str]]:
    return [(one.kind, one.sentence.partition(": ")[2]) for one in part.alarms()]


def name() -> str:
    return f".mldebug-canary-{os.uname().nodename}-{os.geteuid()}"


def test_it_writes_and_leaves_nothing(tools: NodeTools, tmp_path: Path) -> None:
    part = look(tools, tmp_path)
    assert alerts_of(part) == []
    assert list(tmp_path.iterdir()) == []
    (row,) = part.status()["test_writes"]
    assert "64 KiB written and synced in" in str(row["line"])
    figures = {one.metric: one.value for one in part.samples()}
    assert figures["mldebug_filesystem_canary_failed"] == 0
    assert figures["mldebug_filesystem_canary_seconds"] > 0


def test_it_is_nowhere_unless_told_so_and_never_in_a_command(tools: NodeTools) -> None:
    assert Config().storage.canary.paths == ()
    assert "canary" not in {
        part.name for part in storage_collectors(tools.context, tools.filesystem_probe)
    }


def test_full_and_out_of_inodes_and_read_only_are_told_apart(
    tools: NodeTools, tmp_path: Path
) -> None:
    with mounted(tmp_path / "data", "size=64k,nr_inodes=8") as folder:
        (folder / "all").write_bytes(bytes(60 << 10))
        assert alerts_of(look(tools, folder)) == [
            ("canary_full", "a test write failed: no space is left")
        ]
        (folder / "all").unlink()
        for number in range(7):
            (folder / str(number)).touch()
        assert alerts_of(look(tools, folder)) == [
            ("canary_full", "a test write failed: no inode is left")
        ]
        for number in range(7):
            (folder / str(number)).unlink()
        assert alerts_of(look(tools, folder)) == []
        mount(folder, "", flags=0x20 | 1)  # remount, read-only
        assert alerts_of(look(tools, folder)) == [
            ("canary_read_only", "a test write failed: it is read-only")
        ]


def test_what_an_earlier_run_left_goes_and_nothing_else_does(
    tools: NodeTools, tmp_path: Path
) -> None:
    (tmp_path / name()).write_bytes(b"half")
    assert alerts_of(look(tools, tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "precious").write_text("data")
    (tmp_path / name()).symlink_to("precious")
    assert [kind for kind, _ in alerts_of(look(tools, tmp_path))] == ["canary_failed"]
    assert (tmp_path / "precious").read_text() == "data"
    (tmp_path / name()).unlink()
    os.link(tmp_path / "precious", tmp_path / name())
    assert [kind for kind, _ in alerts_of(look(tools, tmp_path))] == ["canary_failed"]
    assert (tmp_path / name()).exists()


def test_a_fuse_mount_that_is_slow_shows_in_seconds_and_one_that_hangs_is_stuck_until_it_answers(
    tools: NodeTools, tmp_path: Path
) -> None:
    with hung_mount(tmp_path) as mount:
        part = look(tools, mount.target)

        def seconds() -> float:
            part.look(1.0, [])
            return next(one.value for one in part.samples() if one.metric.endswith("_seconds"))

        usual = min(seconds() for _ in range(3))
        with delayed(mount.server):
            # the server pauses now and then: of some writes one meets a pause
            assert any(seconds() > usual + 0.04 for _ in range(60))
        mount.hang()
        began = time.monotonic()
        part.look(2.0, [])
        assert time.monotonic() - began < 3 * SECONDS * PATIENCE
        assert [kind for kind, _ in alerts_of(part)] == ["canary_stuck"]
        mount.recover()
        wait_until(lambda: part.look(3.0, []) or not alerts_of(part))
        assert list(mount.source.iterdir()) == []


def test_a_folder_that_is_not_there_is_a_gap(tools: NodeTools, tmp_path: Path) -> None:
    part = look(tools, tmp_path / "nowhere")
    (gap,) = part.gaps()
    assert gap.what.endswith("/nowhere")
    assert gap.reason == "No such file or directory"
    assert [one.value for one in part.samples()] == [1.0]


def test_df_lies_and_quotas_are_said() -> None:
    lying = CanaryWrite(
        path="/data", result=CanaryResult(errno=28, available=12 << 40, inodes=10, inodes_free=5)
    )
    assert sentence(lying, 65536) == (
        "/data: a test write failed: no space is left, though the filesystem tells of 12 TiB"
    )
    quota = CanaryWrite(path="/data", result=CanaryResult(errno=122))
    assert (quota.outcome, sentence(quota, 1).endswith("a quota is used up")) == ("quota", True)
    stuck = CanaryWrite(path="/data", stuck=74.2)
    assert (stuck.outcome, sentence(stuck, 1)) == (
        "stuck",
        "/data: a test write has not come back for 74 s",
    )


def test_a_folder_that_is_a_link_to_another_filesystem_is_written_to(
    tools: NodeTools, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        (tmp_path / "link").symlink_to(elsewhere)
        paths = (str(tmp_path / "link"),)
        config = Config(storage=StorageConfig(canary=Wanted(paths=paths)))
        desk = CanaryCollector(with_config(tools.context, config), tools.filesystem_probe)
        desk.look(1.0, [])
        assert not desk.gaps()
        assert [row["outcome"] for row in desk.status()["test_writes"]] == ["ok"]


@pytest.mark.parametrize(("written", "slow"), [(0.0, 1), (300 << 20, 0)])
def test_test_writes_that_take_longer_three_times_in_a_row_are_slow_but_not_beside_a_checkpoint(
    tools: NodeTools, tmp_path: Path, written: float, slow: int
) -> None:
    config = Config(storage=StorageConfig(canary=Wanted(paths=(str(tmp_path),))))
    load = [0.0]
    part = CanaryCollector(with_config(tools.context, config), SlowedProbe(), lambda: load[0])  # type: ignore[arg-type]
    for look in range(33):
        SlowedProbe.seconds, load[0] = (0.9, written) if look >= 30 else (0.03, 0.0)
        assert list(part.alarms()) == []
        part.look(60.0 * look, [])
    found = list(part.alarms())
    assert len(found) == slow
    for one in found:
        assert (one.kind, one.operation) == ("slow", "write")
        assert one.sentence == f"writes of {tmp_path} take 900 ms instead of 30 ms since 00:30 UTC"


class SlowedProbe:
    """A mount child whose test writes take as long as it is told."""

    seconds = 0.0

    def ask(self, places: Sequence[MountRequest], seconds: float) -> list[MountAnswer]:
        wrote = CanaryResult(seconds=self.seconds)
        return [MountAnswer(mount=1, wrote=wrote) for _ in places]
