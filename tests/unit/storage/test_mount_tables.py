"""What a user mounts in a namespace of his own costs the agent no more than a container's mounts do."""

import os
from pathlib import Path

import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug_agents.storage.filesystems import mounts
from mldebug_agents.storage.filesystems.mounts import MAX_TABLE, mount_table, used_mounts
from mldebug_agents.system.host import Host

LINE = "36 35 8:1 / /data{} rw,relatime - ext4 /dev/sda1{} rw\n"
RANK, OTHER, FIRST = 41, 42, 1


def job_of(pid: int, uid: int) -> Job:
    rank = RankIdentity(rank=0, world_size=1, pid=pid, uid=uid)
    return Job(id=f"j{pid}", name="train", launcher="environment", uid=uid, ranks=(rank,))


def node(root: Path, tables: dict[int, str], own: str = "mnt:[1]") -> Host:
    """A node on which each process has a namespace of its own with these mounts; that of `FIRST` and of the agent is `own`."""
    for pid, text in (tables | {0: LINE.format("", "")}).items():
        folder = root / "proc" / (str(pid) if pid else "self")
        (folder / "ns").mkdir(parents=True)
        (folder / "mountinfo").write_text(text)
        (folder / "ns/mnt").symlink_to(own if pid in (0, FIRST) else f"mnt:[{pid}]")
        (folder / "root").symlink_to("/")
    return Host(str(root))


def test_a_table_of_a_hundred_thousand_mounts_is_none(tmp_path: Path) -> None:
    """10,000 with names of 4 KiB took 26 s and 320 MB of the agent, and any user may make 100,000."""
    giant = LINE.format("x" * 4000, "y" * 4000)
    host = node(tmp_path, {RANK: giant * (MAX_TABLE // len(giant) + 1), OTHER: giant * 9})
    assert mount_table(host, str(RANK)) == ()
    assert len(mount_table(host, str(OTHER))) == 9


def test_the_node_s_own_may_be_large(tmp_path: Path) -> None:
    """On a node with many containers each is mounted there."""
    many = LINE.format("", "z" * 500) * (MAX_TABLE // 400)
    host = node(tmp_path, {FIRST: many})
    assert len(mount_table(host, str(FIRST))) == MAX_TABLE // 400


def test_one_owner_s_many_namespaces_cost_another_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "MAX_OF_OWNER", 1000)
    read: list[str] = []
    table = mounts._table

    def counted(host: Host, pid: str) -> bytes:
        read.append(pid)
        return table(host, pid)

    monkeypatch.setattr(mounts, "_table", counted)
    text = LINE.format("", "z" * 400)
    host = node(tmp_path, dict.fromkeys((*range(100, 150), RANK), text))
    jobs = [*(job_of(pid, uid=7) for pid in range(100, 150)), job_of(RANK, uid=8)]
    used_mounts(host, jobs, ())
    assert len([one for one in read if one not in (str(RANK), "self")]) == 3
    assert str(RANK) in read
    assert os.getpid() not in map(str, read)
