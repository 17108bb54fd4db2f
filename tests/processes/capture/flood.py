"""What one user may start on a node to keep an agent from another user's stall: false ranks by the thousand, threads, stalls, giant reports.

usage: flood.py FALSE_RANKS THREADS UP PYTHON...: starts the false ranks and one with threads, makes the file UP, and ends all with its stdin.
Every tenth false rank is a real Python, which can be sampled; the others run the program PYTHON, which only sleeps under that name.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from processes.agent.light import LightJob, light_job
from processes.harness import wait_for
from shared.system.users import system_python

SLEEPS = "import time; time.sleep(100_000)"
THREADS = """
import sys, threading, time
threading.stack_size(65536)
for _ in range(int(sys.argv[1])): threading.Thread(target=time.sleep, args=(100_000,), daemon=True).start()
time.sleep(100_000)
"""
START = """
import os, sys
ranks, threads, up, real, small, words, many = sys.argv[1:]
def start(number, *argv):
    size, job = int(ranks) // 2, {"MASTER_ADDR": "127.0.0.1"}
    if number > size:
        job |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": str(20_000 + number)}
    else:
        job |= {"RANK": str(number - 1), "WORLD_SIZE": str(size), "MASTER_PORT": "20000"}
    os.posix_spawn(argv[0], argv, job)
start(int(ranks) + 1, real, "-S", "-E", "-c", many, threads)
for number in range(1, int(ranks) + 1):
    start(number, *((real, "-S", "-E", "-c", words) if number % 10 == 0 else (small, "train.py")))
open(up, "w").close()
sys.stdin.read()
os.killpg(0, 9)
"""
SMALL = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
STALLS = 8
GIANT = 7 << 20  # bytes of a report


def as_user(uid: int) -> list[str]:
    """Words before a command that run it as this user."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


@contextmanager
def false_ranks(folder: Path, uid: int, ranks: int, threads: int) -> Iterator[None]:
    """So many idle processes of this user that call themselves ranks, half of them of one job and half of jobs of their own, and one that has so many threads."""
    small, up = folder / "small" / "python3", folder / "up"
    small.parent.mkdir()
    (folder / "small.c").write_text(SMALL)
    subprocess.run(["gcc", "-Os", "-static", "-o", str(small), str(folder / "small.c")], check=True)
    numbers = [str(ranks), str(threads), str(up)]
    python = system_python()  # everybody may start it
    argv = [*as_user(uid), python, "-S", "-E", "-c", START, *numbers, python, str(small)]
    process = subprocess.Popen([*argv, SLEEPS, THREADS], stdin=subprocess.PIPE, start_new_session=True)  # fmt: skip
    try:
        wait_for("the false ranks", lambda: up.exists() or process.poll() is not None, 300)
        assert up.exists(), "they could not be started"
        yield
    finally:
        process.communicate(timeout=60)
        wait_for("their end", lambda: not _left(process.pid), 120)


def _left(session: int) -> bool:
    """Whether a process of the group is left: those of a killed group are taken in by pid 1."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, 0)
        return True
    return False


@contextmanager
def stalls(folder: Path, uid: int, count: int = STALLS) -> Iterator[list[LightJob]]:
    """Jobs of this user that step until they are told to hang."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(light_job(folder / f"stall-{number}", prefix=as_user(uid)))
            for number in range(count)
        ]


@contextmanager
def giant_reports(state: Path, uid: int) -> Iterator[None]:
    """Makes each report of this user a giant as it comes, and asks for the list of reports all the time, as he may."""
    over = threading.Event()
    worker = threading.Thread(target=_blow_up, args=(state, uid, over), daemon=True)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join(60)


def _blow_up(state: Path, uid: int, over: threading.Event) -> None:
    done: set[Path] = set()
    ask = ["curl", "-s", "-m", "5", "--unix-socket", f"{state}/agent.sock", "http://localhost/api/v1/reports"]  # fmt: skip
    while not over.wait(0.2):
        for file in set(state.glob("reports/[!.]*/report.json")) - done:
            with suppress(OSError, ValueError):
                if file.parent.stat().st_uid == uid:
                    done.add(file)
                    _make_giant(file)
        subprocess.run([*as_user(uid), *ask], check=False, stdout=subprocess.DEVNULL)


def _make_giant(file: Path) -> None:
    report = json.loads(file.read_text())
    mine = report["diagnosis"]["culprits"] or [{"rank": 0}]
    one = len(json.dumps(mine[0]))
    report["diagnosis"]["culprits"] = [dict(mine[0], rank=rank) for rank in range(GIANT // one)]
    half = file.with_suffix(".half")  # who reads meanwhile reads a whole one
    half.write_text(json.dumps(report))
    half.replace(file)


def first_report(state: Path, uid: int, after: float) -> float | None:
    """When the first report of this user was written whole, of those that came after this moment (both wall clock)."""
    times = []
    for folder in state.glob("reports/[!.]*"):
        with suppress(OSError):
            facts = (folder / "report.json").stat()
            if folder.stat().st_uid == uid and facts.st_mtime > after:
                times.append(facts.st_mtime)
    return min(times, default=None)


def verdict_after(state: Path, uid: int, began: float, seconds: float) -> float:
    """Seconds from `began` (wall clock) to this user's first report."""
    at = wait_for("the report", lambda: first_report(state, uid, began), seconds)
    return at - began


def now() -> float:
    """Wall clock, as the times of files have it."""
    return time.time()
