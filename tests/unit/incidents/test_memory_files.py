"""The file in which a rank's hook wrote who held its CUDA memory: one that is not believed is told as a gap, none is none."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mldebug.core.model import MemoryFailure, RankIdentity
from mldebug.jobs.heartbeat import OOM, record_name
from mldebug_agents.jobs.hook import memory as module
from mldebug_agents.jobs.hook.memory import MemoryFailures
from mldebug_agents.system.reader_answers import FilePiece, Unreadable

RANK = RankIdentity(rank=3, world_size=8, pid=4711, start_ticks=99, uid=os.getuid())
GOOD = json.dumps({"layout": 1, "at": 1.0, "device": 0, "requested": 5, "snapshot": {}}).encode()


def left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rank: RankIdentity = RANK
) -> tuple[dict[int, MemoryFailure], list[str]]:
    """What is read of this rank from a folder in the place of /dev/shm, and the gaps."""
    monkeypatch.setattr(module, "FOLDER", str(folder))
    host: Any = SimpleNamespace(rights=SimpleNamespace(of=lambda _: None, roots=lambda _: [""]))
    gaps: list[str] = []
    failures = MemoryFailures(host, cast("Any", SimpleNamespace(read_from=read)))
    return failures.left_behind([rank], gaps), gaps


def read(path: str, offset: int, *, max_bytes: int, **_: Any) -> FilePiece | Unreadable:
    """As the reader does, without its child."""
    file = Path(path)
    if not file.exists():
        return Unreadable("no such file")
    stat = file.stat()
    return FilePiece(
        data=file.read_bytes()[offset:][:max_bytes], size=stat.st_size, mtime=stat.st_mtime,
        inode=stat.st_ino, device=stat.st_dev, uid=stat.st_uid, mode=stat.st_mode,
    )  # fmt: skip


def file_in(folder: Path, data: bytes, mode: int = 0o600) -> Path:
    path = folder / (record_name(RANK.pid, RANK.start_ticks) + OOM)
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_a_good_file_is_read_and_a_rank_without_one_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left(tmp_path, monkeypatch) == ({}, [])
    file_in(tmp_path, GOOD)
    found, gaps = left(tmp_path, monkeypatch)
    assert (found[3].requested, gaps) == (5, [])


@pytest.mark.parametrize(
    ("data", "mode", "why"),
    [
        (GOOD[:-9], 0o600, "it is not what it should be"),
        (b" " * (module.MAX_BYTES + 1), 0o600, "it has "),
        (GOOD, 0o622, "others may write it"),
    ],
)
def test_a_file_that_is_not_believed_is_told_with_its_rank_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, mode: int, why: str
) -> None:
    file_in(tmp_path, data, mode)
    found, gaps = left(tmp_path, monkeypatch)
    assert found == {}
    assert len(gaps) == 1
    assert "CUDA memory of rank 3" in gaps[0]
    assert why in gaps[0]


def test_a_file_of_another_user_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_in(tmp_path, GOOD)
    stranger = RankIdentity(rank=3, world_size=8, pid=4711, start_ticks=99, uid=os.getuid() + 1)
    found, gaps = left(tmp_path, monkeypatch, stranger)
    assert found == {}
    assert "belongs to user" in gaps[0]
