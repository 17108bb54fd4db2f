"""`make bench`: what a capture costs, side by side with the recipe people use today and with py-spy's own floor.

Every comparison alternates its sides in one run and prints medians; this machine's noise hits both sides alike.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.table import Row, show
from mldebug.config.schema import AgentConfig, CaptureConfig, Config
from mldebug.core.model import NodeCapture
from mldebug.core.report_model import Stall
from mldebug.diagnosis.diagnose import diagnose
from mldebug.incidents.report.build import build_report
from mldebug.incidents.report.html import render_html
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.stacks.pyspy import find_binary
from mldebug_agents.incidents.manual import choose, write_down
from shared.diagnosis.builders import WAITER, process, rank, still
from shared.diagnosis.builders import capture as node_capture

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "9"))

RANK = """
import sys, threading, time
def wait(depth):
    if depth: return wait(depth - 1)
    time.sleep(600)
for _ in range(3): threading.Thread(target=wait, args=(8,), daemon=True).start()
print("ready", flush=True)
wait(12)
"""

SPIN = """
import sys, time
def counters():
    with open("/proc/self/schedstat") as file:
        ran, waited, _ = map(int, file.read().split())
    return time.monotonic_ns(), ran + waited
print("ready", flush=True)
began, busy = counters()
while time.monotonic_ns() < began + float(sys.argv[1]) * 1e9: pass
ended, done = counters()
print(((ended - began) - (done - busy)) / 1e6)
"""


@contextmanager
def ranks(count: int) -> Iterator[list[int]]:
    """`count` rank processes of one plain job, asleep twelve frames deep with four Python threads each."""
    world = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29999",
    }
    started = []
    for number in range(count):
        env = {**os.environ, **world, "RANK": str(number), "LOCAL_RANK": str(number)}
        started.append(
            subprocess.Popen([sys.executable, "-c", RANK], env=env, stdout=subprocess.PIPE)
        )
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == b"ready\n"
        yield [one.pid for one in started]
    finally:
        for one in started:
            one.kill()
            one.communicate()


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def alternate(sides: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each side, run in turn."""
    for work in sides.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            times[name].append(timed(work))
    return {name: statistics.median(found) for name, found in times.items()}


def floor(pids: list[int]) -> None:
    """py-spy alone: the same dumps, the same pool, nothing else."""

    def dump(pid: int) -> None:
        argv = [find_binary(), "dump", "--pid", str(pid), "--json", "--nonblocking"]
        subprocess.run(argv, capture_output=True, check=False)

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(dump, pids))


def recipe() -> None:
    """What people type today."""
    line = f"pgrep -P {os.getpid()} | xargs -I {{}} {find_binary()} dump --pid {{}}"
    subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False)


def capture_rows(count: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as state:
        config = Config(
            agent=AgentConfig(state_dir=Path(state)),
            capture=CaptureConfig(watch=0.0, native="never"),
        )
        with open_tools(config) as tools, ranks(count) as pids:
            tools.capture.finder.find()

            def dumps() -> NodeCapture:
                found = tools.capture.finder.find()
                job = choose(found, pids[0], None)[0]
                return tools.capture.capturer().capture(job, found.children)

            def ours() -> None:
                taken = write_down(tools.capture, dumps(), time.time())
                assert len(taken.report.ranks) == count

            found = alternate(
                {"ours": ours, "dumps": dumps, "floor": lambda: floor(pids), "recipe": recipe}
            )
    ratio, all_of_it = found["dumps"] / found["floor"], found["ours"]
    budget = ("≤ 1 s", all_of_it <= 1) if count == 8 else ()
    yield Row(f"{count} ranks: capture, merge, report on disk", f"{all_of_it:.3f} s", *budget)
    yield Row(f"{count} ranks: capture only (find, /proc, stacks)", f"{found['dumps']:.3f} s")
    yield Row(f"{count} ranks: py-spy floor, same pool", f"{found['floor']:.3f} s")
    yield Row(f"{count} ranks: capture / floor", f"{ratio:.2f} x", "≤ 1.3 x", ratio <= 1.3)
    yield Row(f"{count} ranks: serial recipe (pgrep | xargs py-spy)", f"{found['recipe']:.3f} s")


def standstill_rows() -> Iterator[Row]:
    """A tight loop that never sleeps is looked at 20 times; it stood still while it neither ran nor queued for a core."""
    modes = {
        "nobody looks": None,
        "first pass (--nonblocking)": "--nonblocking",
        "default py-spy": "",
        "--native": "--native",
    }
    for name, mode in modes.items():
        found = sorted(standstill(mode) for _ in range(3))[1]
        yield Row(f"target stands still in 20 looks: {name}", f"{found:.1f} ms")


def standstill(mode: str | None) -> float:
    """Milliseconds in which the target could not run, by the kernel's own accounts (/proc/self/schedstat)."""
    target = subprocess.Popen([sys.executable, "-c", SPIN, "3"], stdout=subprocess.PIPE, text=True)
    assert target.stdout is not None
    target.stdout.readline()
    for _ in range(0 if mode is None else 20):
        argv = [find_binary(), "dump", "--pid", str(target.pid), *filter(None, [mode])]
        subprocess.run(argv, capture_output=True, check=False)
        with suppress(subprocess.TimeoutExpired):
            target.wait(0.03)
    return float(target.communicate()[0].split()[0])


def big() -> NodeCapture:
    """8,192 synthetic rank captures: one sleeps, the others wait."""
    sleeper = process(
        "load (train.py:7)", "<module> (train.py:50)", wchan="hrtimer_nanosleep", move=still()
    )
    waits = [process(*WAITER, pid=1000 + n, move=still()) for n in range(8192)]
    return node_capture(
        *[rank(n, sleeper if n == 4711 else waits[n], world=8192) for n in range(8192)]
    )


def scale_rows() -> Iterator[Row]:
    taken = big()
    judge = statistics.median(timed(lambda: diagnose([taken])) for _ in range(5))
    judgement = diagnose([taken])
    assert [culprit.rank for culprit in judgement.diagnosis.culprits] == [4711]
    stall = Stall(timeout_seconds=None, why="bench")

    def page() -> str:
        report = build_report(
            judgement, (taken,), kind="manual", trigger="manual", detected_at=0.0, reported_at=0.0, stall=stall, versions={}
        )  # fmt: skip
        return render_html(report)

    seconds, size = statistics.median(timed(page) for _ in range(3)), len(page().encode())
    megabytes = size / 1e6
    yield Row("8,192 ranks: merge and diagnose", f"{judge:.2f} s", "≤ 2 s", judge <= 2)
    yield Row("8,192 ranks: report.html, time", f"{seconds:.2f} s")
    yield Row("8,192 ranks: report.html, size", f"{megabytes:.2f} MB", "< 3 MB", megabytes < 3)


def main() -> None:
    """Print the table."""
    parts = (capture_rows(8), capture_rows(32), standstill_rows(), scale_rows())
    title = f"captures, {os.cpu_count()} cores, median of {ROUNDS} alternating rounds"
    show(title, [row for part in parts for row in part])


if __name__ == "__main__":
    main()
