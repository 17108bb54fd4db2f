"""The parsers, on recorded texts and on torn ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug_agents.system import procfs
from mldebug_agents.system.process.syscalls import syscall_name

RECORDED = Path(__file__).parents[2] / "fixtures" / "proc"


def recorded(name: str) -> str:
    """Text of a fixture."""
    return (RECORDED / name).read_text()


def test_the_stat_line_of_a_killed_rank() -> None:
    stat = procfs.parse_stat(recorded("zombie.stat"))
    assert stat is not None
    assert (stat.pid, stat.name, stat.state, stat.ppid) == (32167, "python3", "Z", 32123)
    assert (stat.pgrp, stat.session, stat.start_ticks) == (32167, 32167, 427612)
    assert (stat.cpu_seconds, stat.exit_status, stat.image) == (1.93, 9, (0, 0, 0))


@pytest.mark.parametrize("name", ["a) S 1 (b", "tab\there", "", ") R 0 0", "new\nline"])
def test_a_name_cannot_forge_the_fields(name: str) -> None:
    stat = procfs.parse_stat(f"12 ({name}) T 77 " + "0 " * 48)
    assert stat is not None
    assert (stat.name, stat.state, stat.ppid) == (name, "T", 77)


@pytest.mark.parametrize("text", ["", "12", "12 (x) S 1 2", "x (y) S " + "0 " * 48])
def test_what_is_no_stat_line_is_none(text: str) -> None:
    assert procfs.parse_stat(text) is None


def test_status_of_a_stopped_rank_in_a_container() -> None:
    status = procfs.parse_status(recorded("rank.status"))
    assert status.uid == 1000
    assert status.tracer_pid == 4711
    assert status.pending_signals == 1 << 18  # SIGSTOP
    assert status.caught_signals == 0x108014002
    assert status.rss_bytes == 460 << 20
    assert (status.voluntary_switches, status.involuntary_switches) == (1234, 56)
    assert status.pids == (5123, 7)


def test_io_is_none_unless_it_is_whole_enough() -> None:
    assert procfs.parse_io("") is None
    io = procfs.parse_io("rchar: 5\nwchar: 6\nsyscr: 1\nsyscw: 1\nread_bytes: 7\nwrite_bytes: 8\n")
    assert io is not None
    assert (io.read_chars, io.written_chars, io.read_bytes, io.written_bytes) == (5, 6, 7, 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0x3 0x7f13 0x20000 0x0 0xffffffff 0x1 0x7ffc 0x7f6b", (0, (3, 0x7F13, 0x20000, 0, 0xFFFFFFFF, 1))),
        ("running", None),
        ("", None),
        ("-1 0x7ffc 0x7f6b", (-1, ())),
    ],
)  # fmt: skip
def test_system_calls(text: str, expected: object) -> None:
    assert procfs.parse_syscall(text) == expected


@pytest.mark.parametrize(
    ("number", "machine", "name"),
    [
        (0, "x86_64", "read"), (257, "x86_64", "openat"), (202, "x86_64", "futex"), (334, "x86_64", "rseq"),
        (232, "x86_64", "epoll_wait"), (262, "x86_64", "newfstatat"), (61, "x86_64", "wait4"),
        (63, "aarch64", "read"), (56, "aarch64", "openat"), (98, "aarch64", "futex"), (260, "aarch64", "wait4"),
        (291, "aarch64", "statx"), (79, "aarch64", "newfstatat"),
        (439, "x86_64", "faccessat2"), (437, "aarch64", "openat2"), (449, "x86_64", "futex_waitv"),
        (999, "x86_64", "syscall_999"), (5, "s390x", "syscall_5"), (250, "aarch64", "syscall_250"), (-1, "x86_64", ""),
    ],
)  # fmt: skip
def test_system_call_names(number: int, machine: str, name: str) -> None:
    assert syscall_name(number, machine) == name


def test_kernel_stack_and_wchan() -> None:
    stack = procfs.parse_kernel_stack(recorded("kernel.stack"))
    assert stack[:2] == ("anon_pipe_read", "vfs_read")
    assert len(stack) == 4
    assert procfs.parse_wchan("0") == ""
    assert procfs.parse_wchan("futex_do_wait\n") == "futex_do_wait"


@pytest.mark.parametrize(
    ("path", "point", "fstype"),
    [
        ("/home/x", "/", "ext4"),
        ("/mnt/data/a.bin", "/mnt/data", "nfs4"),
        ("/mnt/data", "/mnt/data", "nfs4"),
        ("/mnt/database", "/", "ext4"),
        ("/mnt/data/my shards/0", "/mnt/data/my shards", "fuse.s3fs"),
        ("/mnt/over/f", "/mnt/over", "lustre"),
    ],
)
def test_the_mount_that_holds_a_path(path: str, point: str, fstype: str) -> None:
    mount = procfs.mount_of(procfs.parse_mountinfo(recorded("mountinfo")), path)
    assert mount is not None
    assert (mount.point, mount.fstype) == (point, fstype)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pos:\t0\nflags:\t0100000\nmnt_id:\t24\n", ("r", 24)),
        ("pos:\t0\nflags:\t02100001\nmnt_id:\t9\n", ("w", 9)),
        ("pos:\t0\nflags:\t02\nmnt_id:\t9\n", ("rw", 9)),
        ("", ("", 0)),
    ],
)
def test_descriptor_details(text: str, expected: tuple[str, int]) -> None:
    assert procfs.parse_fdinfo(text) == expected


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("pipe:[12]", "pipe"), ("socket:[3]", "socket"), ("anon_inode:[eventpoll]", "anon"),
        ("/memfd:x (deleted)", "anon"), ("/dev/nvidia0", "gpu"), ("/dev/nvidia-uvm", "gpu"), ("/dev/kfd", "gpu"),
        ("/dev/dri/renderD128", "gpu"), ("/dev/pts/3", "tty"), ("/dev/tty", "tty"), ("/dev/null", "device"),
        ("/dev/infiniband/uverbs0", "device"), ("/dev/shm/torch_1", "file"), ("/data/a.bin", "file"),
        ("/data/a.bin (deleted)", "deleted"),
    ],
)  # fmt: skip
def test_kinds_of_descriptors(target: str, kind: str) -> None:
    assert procfs.fd_kind(target) == kind


@pytest.mark.parametrize(
    ("target", "stored"),
    [
        ("/data/step_3.pt", True),
        ("/dev/shm/step_3.pt", True),
        ("/devices/a", True),
        ("/dev/shm", False),
        ("/dev/nvidia0", False),
        ("/proc/7/fd", False),
        ("/memfd:x (deleted)", False),
        ("pipe:[7]", False),
        ("", False),
    ],
)
def test_files_in_shared_memory_take_space_and_devices_do_not(target: str, stored: bool) -> None:
    assert procfs.is_stored(target) is stored


def test_environments() -> None:
    data = b"RANK=1\0EMPTY=\0RANK=2\0novalue\0=x\0BAD=\xff\0A=b=c\0"
    assert procfs.parse_environ(data) == {"RANK": "1", "EMPTY": "", "BAD": "\ufffd", "A": "b=c"}
    assert procfs.parse_cmdline(b"python3\0-c\0\0") == ("python3", "-c")
    assert procfs.parse_cmdline(b"") == ()


@pytest.mark.parametrize(
    ("program", "python"),
    [
        ("/usr/bin/python3.11", True), ("python", True), ("/opt/conda/bin/python3.12 (deleted)", True),
        ("pypy3", True), ("/nix/store/x/bin/.python-wrapped", False), ("/bin/bash", False), ("sleep", False),
        ("python3.13t", True), ("python3-dbg", True), ("pythonista", False), ("ipython", False), ("python-helper.sh", False),
    ],
)  # fmt: skip
def test_what_counts_as_python(program: str, python: bool) -> None:
    assert procfs.is_python(program) is python


def test_libraries_tell_what_is_loaded() -> None:
    assert procfs.maps_torch(b"7f r-xp 0 0:1 1 /x/torch/lib/libtorch_cuda.so\n")
    assert procfs.maps_torch(b"7f r-xp 0 0:1 1 /x/libtorch.so.2\n")
    assert not procfs.maps_torch(b"7f r-xp 0 0:1 1 /x/libtorchish.so\n")
    assert procfs.maps_torch(b"7f r-xp 0 0:1 1 /x/jaxlib/libjax_common.so\n")
    assert procfs.maps_torch(b"7f r-xp 0 0:1 1 /x/jaxlib/xla_extension.so\n")  # until 0.6
    assert not procfs.maps_torch(b"7f r-xp 0 0:1 1 /x/jax_plugin/xla.so\n")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "exit unknown"), (9, "killed by signal 9 (SIGKILL)"), (256, "exit code 1"), (0, "exit code 0"),
        (0x80 | 11, "killed by signal 11 (SIGSEGV)"), (34, "killed by signal 34 (SIGRTMIN)"), (50, "killed by signal 50"),
    ],
)  # fmt: skip
def test_exit_reasons(status: int | None, words: str) -> None:
    assert procfs.exit_reason(status) == words


@given(st.text(), st.binary())
def test_no_text_breaks_a_parser(text: str, data: bytes) -> None:
    procfs.parse_stat(text)
    procfs.parse_stat(f"1 (x) {text}")
    procfs.parse_status(text)
    procfs.parse_io(text)
    procfs.parse_syscall(text)
    procfs.parse_kernel_stack(text)
    procfs.mount_of(procfs.parse_mountinfo(text), text)
    procfs.parse_fdinfo(text)
    procfs.fd_kind(text)
    procfs.parse_environ(data)
    procfs.parse_cmdline(data)


@pytest.mark.parametrize("end", ["\v", "\f", "\x1c", "\x85", "\u2028", "\r"])
def test_a_name_begins_no_line_of_its_own(end: str) -> None:
    """Users name control groups below their own, mounts of their namespaces, and programs: the kernel refuses or escapes a newline alone."""
    forged = f"0::/user.slice/user-7.slice/x{end}0::/system.slice/job_9/step_0\n"
    assert list(procfs.parse_cgroups(forged)) == [((), forged[3:-1])]
    status = procfs.parse_status(f"Name:\ta{end}Tracer:1{end}NSpid:\t1\nUid:\t7\t7\t7\t7\n")
    assert (status.uid, status.pids) == (7, ())
    line = f"36 35 8:1 / /a{end}37 35 8:2 / /b rw - ext4 /dev/sda rw\n"
    assert [one.id for one in procfs.parse_mountinfo(line)] == [36]
