"""What a blocked system call works on."""

import pytest

from mldebug.model import OpenFile, ProcessState, ThreadState
from mldebug_agents.capturing.blocked import blocked_on
from mldebug_agents.procfs import Mount

SHARD = OpenFile(fd=7, target="/data/shard-17", kind="file", mode="r", mount="/data", fstype="nfs4")


def blocked(syscall: str, *args: int) -> ProcessState:
    return ProcessState(
        pid=9, threads=(ThreadState(tid=9, syscall=syscall, syscall_args=args),), files=(SHARD,)
    )


def memory(pid: int, address: int, size: int) -> bytes:
    return {0x1000: b"/data/new\0rest", 0x2000: b"relative\0", 0x3000: b""}[address]


def mounts(pid: int, path: str) -> Mount:
    return Mount(1, "/data", "nfs4", "nfs01:/data", "0:40")


@pytest.mark.parametrize(
    ("state", "target", "mount"),
    [
        (blocked("read", 7, 0, 0), "/data/shard-17", "/data"),
        (blocked("openat", 0xFFFFFF9C, 0x1000, 0), "/data/new", "/data"),
        (blocked("newfstatat", 0xFFFFFF9C, 0x2000), "relative", ""),
        (blocked("open", 0x1000), "/data/new", "/data"),
    ],
)
def test_the_file_is_named(state: ProcessState, target: str, mount: str) -> None:
    found = blocked_on(state, memory, mounts)

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
    assert blocked_on(state, memory, mounts) is None
