"""The exit watch on real processes: order, status, reaped children, reused numbers, bounds."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mldebug_agents.incidents.exits.pidfds import ExitWatch, ProcessExit
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import Stat

WAIT = 10.0
CHILD = "import sys; sys.stdin.readline(); "


class Watched:
    """An exit watch, and what it has told."""

    def __init__(self, limit: int = 0) -> None:
        self.reported: queue.Queue[ProcessExit] = queue.Queue()
        self.watch = ExitWatch(Host(), self.reported.put, limit)

    def next(self) -> ProcessExit:
        return self.reported.get(timeout=WAIT)


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = Watched()
    yield one
    one.watch.close()


def child(words: str) -> "subprocess.Popen[bytes]":
    """A process that ends by `words` when its standard input is closed."""
    return subprocess.Popen([sys.executable, "-S", "-c", CHILD + words], stdin=subprocess.PIPE)


def start_of(pid: int) -> int:
    stat = Host().brief(pid)
    assert stat is not None
    return stat.start_ticks


def kernel_release() -> tuple[int, ...]:
    """As (6, 15), from which on a pidfd keeps the status of who was reaped."""
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def let_end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("sys.exit(3)", 3 << 8),
        ("", 0),
        ("import os; os.kill(os.getpid(), 9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 15),
    ],
)
def test_a_zombie_tells_its_status(watched: Watched, words: str, status: int) -> None:
    process = child(words)
    watched.watch.watch(process.pid, start_of(process.pid))
    let_end(process)

    first = watched.next()

    assert (first.pid, first.status) == (process.pid, status)
    process.wait(WAIT)


class BusyHost(Host):
    """One whose first answer about a process comes only once the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def brief(self, pid: int) -> Stat | None:
        self.free.wait(WAIT)
        return super().brief(pid)


def test_who_is_reaped_before_the_thread_has_its_turn_tells_its_status() -> None:
    """The parent reaps it at once, and the agent waits for a processor: exit codes were unknown, and no report came."""
    host, reported = BusyHost(), queue.Queue[ProcessExit]()
    watch = ExitWatch(host, reported.put)
    process, gone = child("sys.exit(3)"), child("")
    start = start_of(process.pid)
    let_end(gone)
    gone.wait(WAIT)
    watch.watch(process.pid, start)
    let_end(process)
    process.wait(WAIT)
    watch.watch(gone.pid, start)  # a control: it was reaped before it was watched
    host.free.set()
    ended = {one.pid: one.status for one in (reported.get(timeout=WAIT) for _ in range(2))}
    status = 3 << 8 if kernel_release() >= (6, 15) else None
    assert ended == {process.pid: status, gone.pid: None}
    watch.close()


def test_the_order_of_exits_is_known(watched: Watched) -> None:
    processes = [child(f"sys.exit({number})") for number in range(3)]
    for process in processes:
        watched.watch.watch(process.pid, start_of(process.pid))
    results = []
    for process in (processes[2], processes[0], processes[1]):
        let_end(process)
        results.append(watched.next())  # those that one wake-up brings together have no order

    assert [one.status for one in results] == [2 << 8, 0, 1 << 8]
    assert results[0].moment < results[1].moment < results[2].moment
    assert [process.wait(WAIT) for process in processes] == [0, 1, 2]


def test_a_process_that_is_reaped_at_once_keeps_its_order_and_on_new_kernels_its_status(
    watched: Watched,
) -> None:
    grandchild = "sleep 0.3; exit 7"
    launcher = subprocess.Popen(
        ["sh", "-c", f"sh -c '{grandchild}' & echo $!; wait"], stdout=subprocess.PIPE
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    watched.watch.watch(pid, start_of(pid))
    launcher.communicate()

    first = watched.next()

    assert first.status == 7 << 8 or (kernel_release() < (6, 15) and first.status is None)


def test_a_process_that_is_gone_is_an_exit_unknown(watched: Watched) -> None:
    process = child("")
    start = start_of(process.pid)
    let_end(process)
    process.wait(WAIT)
    watched.watch.watch(process.pid, start)

    first = watched.next()

    assert (first.pid, first.status) == (process.pid, None)


def test_another_process_with_the_number_of_one_that_is_gone_is_not_watched(
    watched: Watched,
) -> None:
    process = child("sys.exit(3)")
    watched.watch.watch(process.pid, start_of(process.pid) - 1)

    first = watched.next()

    assert (first.pid, first.status) == (process.pid, None)
    let_end(process)
    process.wait(WAIT)
    assert watched.reported.empty()


def test_no_more_processes_than_there_is_room_for() -> None:
    one = Watched(limit=1)
    processes = [child("sys.exit(4)"), child("sys.exit(5)")]
    for process in processes:
        one.watch.watch(process.pid, start_of(process.pid))
    for process in processes:
        let_end(process)

    assert one.next().status == 4 << 8
    assert one.watch.left_out == 1
    one.watch.close()
    for process in processes:
        process.wait(WAIT)


def test_one_owner_s_many_processes_leave_room_for_another_s() -> None:
    """Of him who has most the newest is let go of, and of the others none."""
    one = Watched(limit=3)
    many, other = [child(f"sys.exit({number})") for number in (1, 2, 3)], child("sys.exit(9)")
    for process in many:
        one.watch.watch(process.pid, start_of(process.pid), (2002, ""))
    one.watch.watch(other.pid, start_of(other.pid), (2001, ""))
    ended = {}
    for process in (other, *many[:2]):
        let_end(process)
        gone = one.next()
        ended[gone.pid] = gone.status
    let_end(many[2])
    for process in (*many, other):
        process.wait(WAIT)
    assert ended == {other.pid: 9 << 8, many[0].pid: 1 << 8, many[1].pid: 2 << 8}
    assert one.watch.left_out == 1
    assert one.reported.empty()
    one.watch.close()


def test_closing_lets_go_of_all_descriptors() -> None:
    before = set(os.listdir("/proc/self/fd"))
    one = Watched()
    process = child("")
    one.watch.watch(process.pid, start_of(process.pid))
    let_end(process)
    one.next()
    process.wait(WAIT)
    one.watch.watch(os.getpid(), start_of(os.getpid()))
    one.watch.close()

    assert set(os.listdir("/proc/self/fd")) == before


def test_the_watch_may_end_in_the_moment_of_an_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, process = Watched(), child("")
    watched.watch.watch(process.pid)
    thread, wake = watched.watch._thread, os.eventfd_write

    def late(fd: int, value: int) -> None:
        let_end(process)
        thread.join(WAIT)  # the exit has woken it, and it has seen that it is to end
        wake(fd, value)

    watched.watch.watch(os.getpid())
    while not watched.watch._requests.empty():
        os.sched_yield()
    monkeypatch.setattr(os, "eventfd_write", late)
    watched.watch.close()
    assert not thread.is_alive()
    assert process.wait(WAIT) == 0
    watched.watch.watch(os.getpid())  # nobody is there any more, which is no error
