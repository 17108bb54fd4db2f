"""What the agent and its children cost: counted of real processes, never falling, and absent where the kernel lists nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from mldebug_agents.system.host import Host
from mldebug_agents.system.service.usage import EVERY, MEMORY_EVERY, Usage
from processes.harness import wait_for
from shared.system.clocks import Clock

LISTED = Path(f"/proc/self/task/{os.getpid()}/children").exists()
BURNS = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.3: pass\n"
FAMILY = f"""
import subprocess, sys, threading, time
some = []
def start():
    some.append(subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE))
    time.sleep(1000)
threading.Thread(target=start, daemon=True).start()
x = bytearray(30 << 20)
{BURNS}
while not some: time.sleep(0.01)
print(some[0].pid, flush=True)
for line in sys.stdin:
    some[0].kill()
    if line == "wait\\n": some[0].wait()
    print("done", flush=True)
"""
SLEEPS_IN_THE_KERNEL = "import ctypes, time; ctypes.CDLL(None).vfork(); time.sleep(1000)"
pytestmark = pytest.mark.skipif(not LISTED, reason="this kernel lists no children")


@contextmanager
def family(grandchild: str = "input()") -> Iterator["subprocess.Popen[str]"]:
    """A process with 30 MiB that has computed for 0.3 s, and a child of one of its threads."""
    argv = [sys.executable, "-c", FAMILY, grandchild]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
            process.kill()


def tell(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    process.stdout.readline()


def test_children_of_all_threads_and_their_children_are_counted() -> None:
    with family() as process:
        found = Usage(Host()).children()
        below = Usage(Host(), process.pid)
        counted = below.children()
        own = psutil.Process(process.pid)
        assert below.rss_bytes() == pytest.approx(own.memory_info().rss, rel=0.2)
    assert found is not None
    assert counted is not None
    assert (counted.count, found.count >= 2) == (1, True)
    assert found.cpu_seconds >= 0.3
    assert (counted.memory_bytes or 0) > 30 << 20


def test_the_cpu_of_children_never_falls() -> None:
    clock = Clock(0.0)
    with family(f"{BURNS}input()") as process:
        usage = Usage(Host(), process.pid, clock=clock)

        def burnt() -> float:
            clock.now += EVERY
            found = usage.children()
            return found.cpu_seconds if found else 0.0

        before = wait_for("the grandchild's work", lambda: (now := burnt()) >= 0.3 and now, 30)
        tell(process, "kill")  # nobody has waited for it
        clock.now += EVERY
        found = usage.children()
        assert found is not None
        assert found.cpu_seconds >= before
        tell(process, "wait")
        clock.now += EVERY
        found = usage.children()
        assert found is not None
        assert (found.count, found.cpu_seconds >= before) == (0, True)


def test_memory_is_weighed_once_a_minute_for_that_costs_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed: list[int] = []
    real = psutil.Process.memory_full_info
    monkeypatch.setattr(psutil.Process, "memory_full_info", lambda one: weighed.append(one.pid) or real(one))  # fmt: skip
    clock = Clock(0.0)
    with family() as process:
        usage, counts = Usage(Host(), process.pid, clock=clock), []
        for clock.now in (0.0, EVERY, MEMORY_EVERY - 1.0, MEMORY_EVERY + EVERY):
            usage.children()
            counts.append(len(weighed))
    assert counts == [2, 2, 2, 4]


def test_the_memory_of_a_child_that_sleeps_in_the_kernel_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed: list[int] = []
    real = psutil.Process.memory_full_info
    monkeypatch.setattr(psutil.Process, "memory_full_info", lambda one: weighed.append(one.pid) or real(one))  # fmt: skip
    with ExitStack() as stack:
        process = stack.enter_context(family(SLEEPS_IN_THE_KERNEL))
        (child,) = psutil.Process(process.pid).children()
        wait_for("state D", lambda: child.status() == psutil.STATUS_DISK_SLEEP, 30)
        found = Usage(Host(), process.pid).children()
        (clone,) = child.children()
    assert found is not None
    assert found.count == 2
    assert sorted(weighed) == sorted((process.pid, clone.pid))


def test_they_are_counted_every_few_seconds_only() -> None:
    clock = Clock(0.0)
    with family() as process:
        usage = Usage(Host(), process.pid, clock=clock)
        before = usage.children()
        tell(process, "wait")
        clock.now += EVERY - 0.1
        assert usage.children() is before


def test_a_kernel_that_lists_no_children_is_no_zero(tmp_path: Path) -> None:
    assert Usage(Host(str(tmp_path))).children() is None


def test_a_process_that_is_gone_costs_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        usage = Usage(Host(), process.pid)
        process.send_signal(signal.SIGKILL)
    assert usage.rss_bytes() == 0
    assert usage.children() is None
    assert usage.cpu_seconds() > 0.0
