"""What the agent and its children cost: counted from /proc, never falling, and absent where the kernel lists nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mldebug_agents.system.host import Host
from mldebug_agents.system.service.usage import EVERY, MEMORY_EVERY, Usage
from shared.system.clocks import Clock

PAGE = os.sysconf("SC_PAGE_SIZE")


def process(
    root: Path, pid: int, children: dict[int, str], ticks: tuple[int, int], pages: int
) -> None:
    """A process with threads and their children, (own, waited for) CPU ticks and resident pages."""
    for thread, listed in children.items():
        task = root / f"proc/{pid}/task/{thread}"
        task.mkdir(parents=True, exist_ok=True)
        (task / "children").write_text(listed)
    own, waited = ticks
    fields = ["S", "1", *["0"] * 9, str(own), "0", str(waited), "0", *["0"] * 30]
    (root / f"proc/{pid}/stat").write_text(f"{pid} (a) b ({') '}{' '.join(fields)}\n")
    (root / f"proc/{pid}/statm").write_text(f"900 {pages} 0 0 0 0 0\n")
    (root / f"proc/{pid}/smaps_rollup").write_text(
        f"0-1 ---p [rollup]\nRss: 9 kB\nPss:  {pages} kB\nPss_Anon: 4 kB\n"
    )


def test_children_of_all_threads_and_their_children_are_counted(tmp_path: Path) -> None:
    process(tmp_path, 10, {10: "11 ", 12: "20 "}, (900, 50), 7)
    process(tmp_path, 11, {11: "30 "}, (100, 25), 3)
    process(tmp_path, 20, {20: ""}, (200, 0), 5)
    process(tmp_path, 30, {30: ""}, (300, 0), 11)
    usage = Usage(Host(str(tmp_path)), pid=10)
    found = usage.children()
    assert found is not None
    assert (found.count, found.memory_bytes) == (3, 26 * 1024)
    assert found.cpu_seconds == (50 + 125 + 200 + 300) / 100
    assert usage.rss_bytes() == 7 * PAGE


def test_the_cpu_of_children_never_falls(tmp_path: Path) -> None:
    clock = Clock(0.0)
    process(tmp_path, 10, {10: "11"}, (0, 0), 7)
    process(tmp_path, 11, {11: ""}, (500, 0), 3)
    usage = Usage(Host(str(tmp_path)), pid=10, clock=clock)
    usage.children()
    process(tmp_path, 10, {10: ""}, (0, 0), 7)  # nobody has waited for it
    clock.now += EVERY
    found = usage.children()
    assert found is not None
    assert (found.count, found.cpu_seconds) == (0, 5.0)


def test_memory_is_weighed_once_a_minute_for_that_costs_the_most(tmp_path: Path) -> None:
    clock = Clock(0.0)
    process(tmp_path, 10, {10: "11"}, (0, 0), 7)
    process(tmp_path, 11, {11: ""}, (0, 0), 3)
    usage = Usage(Host(str(tmp_path)), pid=10, clock=clock)
    weighed = []
    for clock.now in (0.0, EVERY, MEMORY_EVERY - 1.0, MEMORY_EVERY + EVERY):
        found = usage.children()
        assert found is not None
        weighed.append((found.count, found.memory_bytes))
        process(tmp_path, 10, {10: ""}, (0, 0), 7)
    assert weighed == [(1, 10 * 1024), (0, 10 * 1024), (0, 10 * 1024), (0, 7 * 1024)]


def test_the_memory_of_a_child_that_is_stuck_is_not_asked_for(tmp_path: Path) -> None:
    process(tmp_path, 10, {10: "11"}, (0, 0), 7)
    process(tmp_path, 11, {11: ""}, (0, 0), 30)
    stat = tmp_path / "proc/11/stat"
    stat.write_text(stat.read_text().replace(") S ", ") D "))
    found = Usage(Host(str(tmp_path)), pid=10).children()
    assert found is not None
    assert (found.count, found.memory_bytes) == (1, 7 * 1024)


def test_they_are_counted_every_few_seconds_only(tmp_path: Path) -> None:
    clock = Clock(0.0)
    process(tmp_path, 10, {10: ""}, (0, 0), 7)
    usage = Usage(Host(str(tmp_path)), pid=10, clock=clock)
    before = usage.children()
    process(tmp_path, 10, {10: "10"}, (0, 0), 7)
    clock.now += EVERY - 0.1
    assert usage.children() is before


def test_a_kernel_that_lists_no_children_is_no_zero(tmp_path: Path) -> None:
    assert Usage(Host(str(tmp_path)), pid=10).children() is None


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="not listed"
)
def test_a_real_child_is_seen() -> None:
    work = "import time; x = bytearray(30 << 20); t = time.process_time()\nwhile time.process_time() < t + 0.3: pass\nprint(1, flush=True); input()"  # fmt: skip
    argv = [sys.executable, "-c", work]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = Usage(Host()).children()
        child.communicate(b"\n")
    assert found is not None
    assert found.count >= 1
    assert (found.memory_bytes or 0) > 30 << 20
    assert found.cpu_seconds >= 0.3
