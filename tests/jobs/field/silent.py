"""Trainings that print no step: each gets stuck in a way in which CPU time looks like life, or starts slowly and is well.

`python silent.py EVENTS FAULT LIBRARY`: LIBRARY is tests/jobs/fake_cuda.c as a shared object, whose `cudaStreamSynchronize` spins.
EVENTS/strike.RANK comes right before the fault.
"""

import contextlib
import ctypes
import http.server
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from loop import events, main, rank, sync, world
from torch.utils.file_baton import FileBaton

STEPS = 150
STEP_SECONDS = 0.05
LONG = 45.0  # seconds of a start-up: three timeouts of the test's agent
TRAINED = 20.0  # seconds of training behind it
PIECE = 64 * 1024


def step() -> None:
    """A collective and some work."""
    sync()
    (torch.ones(200, 200) @ torch.ones(200, 200)).sum()
    time.sleep(STEP_SECONDS)


def strike() -> None:
    (events / f"strike.{rank}").touch()


def train(seconds: float = 1e9) -> None:
    """All ranks make the same number of steps: rank 0 says when it is enough."""
    end = time.monotonic() + seconds
    go_on = torch.ones(1)
    while go_on.item():
        step()
        go_on.fill_(time.monotonic() < end)
        dist.broadcast(go_on, src=0)


def stuck(fault: Callable[[], object], who: Callable[[], bool] = lambda: True) -> None:
    """Train, and then meet the fault; the others train on, and wait."""
    for _ in range(STEPS):
        step()
    if who():
        strike()
        fault()
    train()


def is_second() -> bool:
    return rank == 1


# --- what gets stuck ---------------------------------------------------------------------------------


def find_packed_sequence_indices() -> None:
    """Wait on a pretended device for ever, in a function that nobody knows: the thread spins in C, without the interpreter's lock."""
    counts = (ctypes.c_long * 1)(0)
    library = ctypes.CDLL(sys.argv[3])
    library.cudaStreamSynchronize(counts, ctypes.c_long(1), ctypes.c_long(1))


def both_spin() -> None:
    stuck(find_packed_sequence_indices)


def one_sleeps() -> None:
    """The others spin."""
    stuck(lambda: time.sleep(1e6) if rank == 1 else find_packed_sequence_indices())


def look_again() -> None:
    """Both sides poll a collective of another group."""
    groups = [dist.new_group(), dist.new_group()]

    def part() -> None:
        work = dist.all_reduce(torch.ones(8), group=groups[rank % 2], async_op=True)
        assert work is not None
        while not work.is_completed(): pass  # fmt: skip

    stuck(part)


def dead_thread() -> None:
    """A thread trains, and fails without a word; the main thread waits for what it will never say."""
    done = threading.Event()

    def feed() -> None:
        with contextlib.suppress(ValueError):
            int("no number")
            done.set()

    def wait() -> None:
        threading.Thread(target=feed).start()
        done.wait()

    stuck(wait, is_second)


def baton() -> None:
    path = events / "lock"
    path.touch()
    stuck(lambda: FileBaton(str(path), wait_seconds=0.1).wait(), is_second)


def barrier_at_start() -> None:
    groups = [dist.new_group(), dist.new_group()]
    strike()
    dist.barrier(group=groups[rank % 2])


# --- what starts slowly ------------------------------------------------------------------------------


def first(prepare: Callable[[], object]) -> None:
    """Rank 0 prepares something while the others wait for it; then all train."""
    if rank == 0:
        prepare()
    dist.barrier()
    train(TRAINED)
    strike()


def until() -> Iterator[float]:
    """Seconds that are left of a start-up."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        yield end - time.monotonic()


def tokenize() -> None:
    words = 0
    for _ in until():
        words += sum(len(str(number)) for number in range(2000))


def read_weights() -> None:
    file = events / "weights"
    file.write_bytes(os.urandom(1 << 24))
    for _ in until():
        with file.open("rb") as opened:
            while opened.read(PIECE):
                time.sleep(0.01)


class Slow(http.server.BaseHTTPRequestHandler):
    """A server that brings half a megabyte a second."""

    def do_GET(self) -> None:
        """Piece by piece."""
        self.send_response(200)
        self.end_headers()
        for _ in until():
            self.wfile.write(bytes(PIECE))
            time.sleep(PIECE / 5e5)


def download() -> None:
    """From a process beside it, so that no thread of the rank does anything for it."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Slow)
    child = os.fork()
    if child == 0:
        os.setsid()
        server.handle_request()
        os._exit(0)
    url = f"http://127.0.0.1:{server.server_port}/model"
    with urllib.request.urlopen(url) as answer, (events / "model").open("wb") as out:
        while piece := answer.read(PIECE):
            out.write(piece)
    os.waitpid(child, 0)


FAULTS: dict[str, Callable[[], object]] = {
    one.__name__: one
    for one in (both_spin, one_sleeps, look_again, dead_thread, baton, barrier_at_start)
} | {"trains": train} | {
    one.__name__: (lambda one=one: first(one)) for one in (tokenize, read_weights, download)
}  # fmt: skip

if __name__ == "__main__":
    assert world == 2
    main(FAULTS)
