"""What a blocked system call works on."""

import os
from pathlib import Path

import pytest

from mldebug.core.model import OpenFile, ProcessState, ThreadState
from mldebug_agents.capture.stacks.blocked_call import blocked_on
from mldebug_agents.system.procfs import Mount
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.system.spawn import WORKERS, Spawner
from shared.system.whose import MINE

SHARD = OpenFile(fd=7, target="/data/shard-17", kind="file", mode="r", mount="/data", fstype="nfs4")


def blocked(syscall: str, *args: int) -> ProcessState:
    return ProcessState(
        pid=9, threads=(ThreadState(tid=9, syscall=syscall, syscall_args=args),), files=(SHARD,)
    )


def memory(pid: int, address: int, size: int) -> bytes:
    return {0x1000: b"/data/new\0rest", 0x2000: b"relative\0", 0x3000: b"", 0x4000: b"../up\0"}[
        address
    ]


def mounts(pid: int, path: str) -> Mount:
    return Mount(1, "/data", "nfs4", "nfs01:/data", "0:40")


def no_link(pid: int, path: str) -> bool:
    return False


def links(pid: int, name: str) -> str:
    known = {"cwd": "/data/work", "fd/8": "/data/folder", "fd/9": "/data/gone (deleted)"}
    return known.get(name, "")


@pytest.mark.parametrize(
    ("state", "target", "mount"),
    [
        (blocked("read", 7, 0, 0), "/data/shard-17", "/data"),
        (blocked("openat", 0xFFFFFF9C, 0x1000, 0), "/data/new", "/data"),
        (blocked("newfstatat", 0xFFFFFF9C, 0x2000), "/data/work/relative", "/data"),
        (blocked("newfstatat", 0xFFFFFFFFFFFFFF9C, 0x2000), "/data/work/relative", "/data"),
        (blocked("stat", 0x2000), "/data/work/relative", "/data"),
        (blocked("openat", 8, 0x2000), "/data/folder/relative", "/data"),
        (blocked("openat", 9, 0x2000), "relative", ""),
        (blocked("openat", 10, 0x2000), "relative", ""),
        (blocked("openat", 0xFFFFFF9C, 0x4000), "../up", ""),
        (blocked("open", 0x1000), "/data/new", "/data"),
    ],
)
def test_the_file_is_named(state: ProcessState, target: str, mount: str) -> None:
    found = blocked_on(state, memory, mounts, links, no_link)

    assert (found.target, found.mount) == (target, mount)


@pytest.mark.parametrize(
    "state",
    [
        None,
        ProcessState(pid=9),
        blocked("futex", 7),
        blocked("read", 8),
        blocked("openat", 1, 0x3000),
        blocked("openat", 1),
    ],
)
def test_what_cannot_be_told_is_not_told(state: ProcessState | None) -> None:
    assert blocked_on(state, memory, mounts, links, no_link) is None


@pytest.mark.parametrize(
    ("known", "mount"),
    [
        (True, ""),  # leads to another filesystem, for all we know
        (Unreadable("denied", errno=13), ""),
        (Unreadable("timed out", stuck=True), "/data"),  # that it hangs is the answer
    ],
)
def test_a_link_on_the_way_leads_to_another_mount_for_all_we_know(
    known: bool | Unreadable, mount: str
) -> None:
    lines: list[str] = []

    def second(pid: int, path: str) -> bool | Unreadable:
        lines.append(path)
        return known if path == "/data/work" else False

    state = blocked("stat", 0x2000)
    found = blocked_on(state, memory, mounts, links, second)

    assert found is not None
    assert (found.target, found.mount) == ("/data/work/relative", mount)
    assert lines == ["/data/work"]


def test_a_real_link_is_told_and_what_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with Spawner(WORKERS) as spawner, Reader(spawner) as reader:
        root = f"/proc/{os.getpid()}/root{tmp_path}"
        results = [
            reader.is_link(f"{root}/{name}", rights=MINE) for name in ("link", "file", "gone")
        ]
    assert results == [True, False, False]
