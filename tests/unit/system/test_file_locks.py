"""Who holds the lock on a file that a process wants: real processes, real locks, the kernel's own words."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mldebug.core.model import FileLock, LockHolder
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.file_locks import SECONDS, FileLocks, parse_locks
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import WORKERS, Spawner
from shared.system.patience import PATIENCE

LISTED = """\
1: FLOCK  ADVISORY  WRITE 4711 fd:00:1396547 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4712 fd:00:1396547 0 EOF
1:  -> FLOCK  ADVISORY  WRITE 4713 fd:00:1396547 0 EOF
2: POSIX  ADVISORY  READ  4711 08:01:77 0 10
3: OFDLCK ADVISORY  WRITE -1 00:2b:78 0 0
4: LEASE  ACTIVE    READ  4711 00:2b:79 0 EOF
5: POSIX  *NOINODE* READ 1
lock:\t1: FLOCK  ADVISORY  WRITE 1 00:1b:9 0 EOF
"""


def test_the_kernels_list_is_read() -> None:
    rows = [(row.number, row.kind, row.pid, row.inode, row.blocked) for row in parse_locks(LISTED)]
    assert rows == [
        ("1:", "flock", 4711, 1396547, False),
        ("1:", "flock", 4712, 1396547, True),
        ("1:", "flock", 4713, 1396547, True),
        ("2:", "lockf", 4711, 77, False),
        ("3:", "ofd", -1, 78, False),
        ("1:", "flock", 1, 9, False),
    ]


TAKE = {
    "flock": "fcntl.flock(file, fcntl.{0})",
    "lockf": "fcntl.lockf(file, fcntl.{0})",
    "ofd": "fcntl.fcntl(file, 38, struct.pack('hhqqi4x', 1 if '{0}' == 'LOCK_EX' else 0, 0, 0, 0, 0))",
}
SCRIPT = "import fcntl,struct,sys,time,os; file = open(sys.argv[1], 'r+'); {take}; print('held', flush=True); {then}time.sleep(1000)"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "cache.lock"
    file.touch()
    return file


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Starts a process that takes the lock, or waits for it; all are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def one(kind: str, how: str = "LOCK_EX", then: str = "") -> "subprocess.Popen[str]":
        script = SCRIPT.format(take=TAKE[kind].format(how), then=then)
        argv = [sys.executable, "-c", script, str(path), "--api-key", "sk-verysecret"]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner(WORKERS) as spawner, Reader(spawner) as reader:
        yield reader


def held(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process.pid


def blocked(pid: int) -> int:
    until = time.monotonic() + 30 * PATIENCE
    while f"{pid} " not in " ".join(_wanting()):
        assert time.monotonic() < until, Path("/proc/locks").read_text()
        time.sleep(0.02)
    return pid


def _wanting() -> list[str]:
    return [line for line in Path("/proc/locks").read_text().splitlines() if "->" in line]


def asleep(pid: int) -> int:
    """An OFD lock is nobody's in the kernel's list: its process is found by where it sleeps."""
    until = time.monotonic() + 30 * PATIENCE
    while "setlk" not in Path(f"/proc/{pid}/wchan").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    return pid


def wait_of(pid: int, reader: Reader, job: dict[int, LockHolder] | None = None) -> FileLock:
    host = Host()
    state = host.process_state(pid, files=True)
    assert state is not None
    found = FileLocks(host, reader, job or {}).wait_of(state, state.main)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["flock", "lockf", "ofd"])
def test_the_holder_is_found(kind: str, path: Path, start: Start, reader: Reader) -> None:
    holder = held(start(kind))
    waiter = (asleep if kind == "ofd" else blocked)(start(kind).pid)
    found = wait_of(waiter, reader)
    assert (found.kind, found.path) == (kind, str(path))
    assert [one.pid for one in found.holders] == [holder]
    assert "sk-verysecret" not in found.holders[0].command
    assert "import fcntl" in found.holders[0].command


def test_a_rank_that_holds_it_is_called_by_its_number(start: Start, reader: Reader) -> None:
    holder = held(start("flock"))
    rank = LockHolder(pid=holder, rank=3)
    assert wait_of(blocked(start("flock").pid), reader, {holder: rank}).holders == (rank,)


def test_of_those_that_wait_in_a_queue_each_finds_the_holder(start: Start, reader: Reader) -> None:
    holder = held(start("flock"))
    waiters = [blocked(start("flock").pid) for _ in range(3)]
    assert {one.pid for pid in waiters for one in wait_of(pid, reader).holders} == {holder}


def test_all_who_share_it_are_in_the_way(start: Start, reader: Reader) -> None:
    readers = {held(start("flock", "LOCK_SH")) for _ in range(2)}
    found = wait_of(blocked(start("flock").pid), reader)
    assert {one.pid for one in found.holders} == readers


def test_an_inherited_lock_is_held_by_the_child_that_has_the_file(
    start: Start, reader: Reader
) -> None:
    """The kernel's list still names the parent, which has closed it."""
    parent = start("flock", then="os.fork() and (print(0, flush=True), file.close()); ")
    held(parent)
    (child,) = _children(parent.pid)
    found = wait_of(blocked(start("flock").pid), reader)
    os.kill(child, 9)
    assert [one.pid for one in found.holders] == [child]


def _children(pid: int) -> list[int]:
    until = time.monotonic() + 30 * PATIENCE
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return [int(one) for one in found]


def test_of_another_users_process_nothing_is_passed_on(
    path: Path, start: Start, reader: Reader
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    path.chmod(0o666)
    for folder in path.parents:
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/pytest"):
            folder.chmod(0o755)
    holder = start("flock", then="os.setuid(65534); print('other', flush=True); ")
    held(holder)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "other\n"
    assert wait_of(blocked(start("flock").pid), reader).holders == (LockHolder(),)


MANY = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
for byte in range(24_000): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * (24_000 - byte))
print("held", flush=True)
time.sleep(1000)
"""


def test_somebody_s_thousands_of_locks_hide_no_holder(
    tmp_path: Path, start: Start, reader: Reader
) -> None:
    """/proc/locks had more than a megabyte before the line of this one."""
    argv = [sys.executable, "-c", MANY, str(tmp_path / "other")]
    holder = held(start("flock"))
    waiter = blocked(start("flock").pid)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        held(other)
        assert len(Path("/proc/locks").read_text()) > 1 << 20
        found = wait_of(waiter, reader)
        other.kill()
    assert [one.pid for one in found.holders] == [holder]


def test_a_search_among_thousands_of_descriptors_ends(start: Start, reader: Reader) -> None:
    """Of 512 processes with 16,000 descriptors each it took minutes of a capture."""
    now, searches = [0.0], []

    class Slow(Host):
        """A third of the time for each process."""

        def descriptors(self, pid: int) -> list[int]:
            now[0] += SECONDS / 3
            searches.append(pid)
            return []

    held(start("flock"))
    host = Slow()
    state = host.process_state(blocked(start("flock").pid), files=True)
    assert state is not None
    searches.clear()
    locks = FileLocks(host, reader, dict.fromkeys(range(1, 50), LockHolder()), lambda: now[0])
    for _ in range(3):  # as many ranks of one capture
        found = locks.wait_of(state, state.main)
        assert found is not None
        assert found.holders == ()
    assert len(searches) <= 6


def test_who_sleeps_wants_no_lock(start: Start, reader: Reader) -> None:
    state = Host().process_state(held(start("flock")), files=True)
    assert state is not None
    assert FileLocks(Host(), reader, {}).wait_of(state, state.main) is None


def test_a_lock_that_no_line_tells_of_has_no_holder(
    tmp_path: Path, start: Start, reader: Reader
) -> None:
    """As on NFS, where another node holds it."""
    held(start("flock"))
    host = Host()
    state = host.process_state(blocked(start("flock").pid), files=True)
    assert state is not None
    found = FileLocks(Host(str(tmp_path)), reader, {}).wait_of(state, state.main)
    assert found is not None
    assert found.holders == ()
