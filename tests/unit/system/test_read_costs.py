"""Files of /proc that a process makes as long as it likes: reading them is put down to its owner, and what all of them cost is bounded."""

import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mldebug_agents.system.child.job_paths import NO_RIGHTS
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.details import MOST_SECONDS
from mldebug_agents.system.process.read_costs import DEAR, LONG, MOST, REGAINED, ReadCosts

HOSTILE, OTHER = 7, 8
TEXT = "x" * (LONG + 1)
FULL = os.sysconf("SC_OPEN_MAX")


class Machine:
    """A clock, and the CPU time of the thread that reads."""

    def __init__(self) -> None:
        self.now = self.used = 0.0
        self.reads = 0

    def reading(self, seconds: float, text: str = TEXT) -> Callable[[], str]:
        def read() -> str:
            self.reads += 1
            self.used += seconds
            return text

        return read


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def costs(machine: Machine) -> ReadCosts:
    return ReadCosts(lambda pid: (pid, ""), clock=lambda: machine.now, used=lambda: machine.used)


def test_who_owes_too_much_is_not_read_and_another_is(machine: Machine, costs: ReadCosts) -> None:
    answers = [costs.read(HOSTILE, machine.reading(0.1)) for _ in range(100)]
    assert answers.count(TEXT) == machine.reads == int(MOST / 0.1) + 1
    assert costs.read(OTHER, machine.reading(0.1)) == TEXT


def test_he_is_read_again_after_a_while(machine: Machine, costs: ReadCosts) -> None:
    while costs.read(HOSTILE, machine.reading(0.1)):
        pass
    machine.now += MOST / 2 / REGAINED
    assert costs.read(HOSTILE, machine.reading(0.1)) == ""
    machine.now += 3 * MOST / REGAINED
    assert costs.read(HOSTILE, machine.reading(0.1)) == TEXT


def test_cheap_reads_cost_nothing_however_many(machine: Machine, costs: ReadCosts) -> None:
    assert all(costs.read(OTHER, machine.reading(DEAR / 2)) for _ in range(10_000))


def test_a_slow_machine_is_nobody_s_fault(machine: Machine, costs: ReadCosts) -> None:
    """Emulated, or with a kernel that checks each access: there a usual file takes some milliseconds."""
    assert all(
        costs.read(
            OTHER,
            machine.reading(5 * DEAR, "Uid: 8\n"),
        )
        for _ in range(1000)
    )


# --- real processes --------------------------------------------------------------------------------------

EPOLL = """
import os, select, time
epoll, one = select.epoll(), os.eventfd(0)
several = [os.dup(one) for _ in range(NUMBER)]
for fd in several: epoll.register(fd, select.EPOLLIN)
for fd in several: os.close(fd)
for _ in range(NUMBER): os.dup(epoll.fileno())
"""
LOCKS = """
import fcntl, os, tempfile, time
file = tempfile.TemporaryFile()
for byte in range(6000): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * byte)
for _ in range(NUMBER): os.dup(file.fileno())
"""
GROUPS = """
import os, threading, time
os.setgroups(range(4_000_000_000, 4_000_065_536))
threading.stack_size(65536)
for _ in range(300): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""


@contextmanager
def process_of(code: str) -> Iterator[int]:
    """A process that has done this, and sleeps."""
    number = min(4000, FULL - 200)
    words = code.replace("NUMBER", str(number)) + "\nprint('ready', flush=True)\ntime.sleep(1000)\n"
    with subprocess.Popen([sys.executable, "-S", "-c", words], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def seconds_of(look: Callable[[], object]) -> float:
    """CPU seconds of this process, whose threads read."""
    begun = time.process_time()
    look()
    return time.process_time() - begun


@pytest.mark.parametrize("code", [pytest.param(EPOLL, id="epoll"), pytest.param(LOCKS, id="locks")])
def test_thousands_of_descriptors_with_long_facts_cost_little(code: str) -> None:
    """They took 18 s of CPU time, and a minute."""
    host = Host()
    with process_of(code) as pid:
        took = seconds_of(lambda: host.process_state(pid, threads=False, files=True))
        again = seconds_of(lambda: [host.process_state(pid, threads=False, files=True) for _ in range(4)])  # fmt: skip
    assert took < 3 * (MOST_SECONDS + MOST)
    assert again < 16 * MOST_SECONDS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses its groups")
def test_a_process_of_all_groups_costs_little() -> None:
    """300 threads took 8 s of CPU time: each names them."""
    host = Host(steady=lambda: 0.0)  # nothing is forgiven, however slow this machine is
    with process_of(GROUPS) as pid:
        assert Host().rights.now(pid) == NO_RIGHTS  # each read would name them all
        assert seconds_of(lambda: host.process_state(pid)) < 3 * (MOST_SECONDS + MOST)
        seconds_of(lambda: [host.status(pid) for _ in range(100)])
        assert seconds_of(lambda: [host.status(pid) for _ in range(100)]) < 2 * MOST
        assert host.status(pid).uid == -1  # nobody's, rather than root's
        assert host.rights.closed(pid)
        assert host.process_state(pid) is None


def test_an_ordinary_process_is_read_whole() -> None:
    """A control: its threads, and files with their mounts and modes."""
    host = Host()
    with open(__file__, encoding="utf-8") as file, select.epoll():
        fcntl.flock(file, fcntl.LOCK_SH)
        state = host.process_state(os.getpid(), files=True)
        assert state is not None
        mine = next(one for one in state.files if one.fd == file.fileno())
    assert (mine.kind, mine.mode) == ("file", "r")
    assert mine.mount
    assert state.main is not None
    assert host.status(os.getpid()).uid == os.getuid()
