"""What can go wrong on one rank: each function gets stuck for ever, the way real training scripts do."""

import ctypes
import itertools
import mmap
import os
import pdb  # noqa: T100
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

AGES = 1_000_000  # seconds


def slow_data_source(job: Any) -> None:
    time.sleep(AGES)


def evaluate(job: Any) -> None:
    total = 0
    while True:
        total = (total * 31 + 7) % 1_000_003


def prepare_or_poll(job: Any) -> None:
    """The first struck rank prepares an index for ever; the others look for it now and then."""
    if job.rank == min(job.options.ranks):
        evaluate(job)
    while not (job.events / "index").exists():
        time.sleep(0.2)


def call_c_library(job: Any) -> None:
    """C code that sleeps and never gives the GIL back."""
    ctypes.PyDLL(None).sleep(AGES)


def parse_log_line(job: Any) -> None:
    """C code that computes for ages and holds the GIL."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def stop_itself(job: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def read_config_pipe(job: Any) -> None:
    path = job.events / "config.fifo"
    os.mkfifo(path)
    path.read_text()


def ask_operator(job: Any) -> None:
    input("continue? ")


def inspect_tensor(job: Any) -> None:
    pdb.set_trace()  # noqa: T100


def update_cache_twice(job: Any) -> None:
    """Take the same lock twice."""
    lock = threading.Lock()
    with lock, lock:
        pass


def swap_locks(job: Any) -> None:
    """Two threads take two locks in opposite order."""
    first, second = threading.Lock(), threading.Lock()
    taken = threading.Event()

    def background() -> None:
        with second:
            taken.set()
            first.acquire()

    with first:
        threading.Thread(target=background, name="prefetch", daemon=True).start()
        taken.wait()
        second.acquire()


def stop_data_worker(job: Any) -> None:
    """Stop the DataLoader's only worker; its prefetched batches last a few more steps."""
    worker = job.batches._workers[0].pid
    job.announce("worker", str(worker))
    os.kill(worker, signal.SIGSTOP)


def leave_quietly(job: Any) -> None:
    """Exit with status 0 while a forked helper keeps the sockets, so that no peer notices."""
    if os.fork() == 0:
        while True:
            signal.pause()
    os._exit(0)


def crash_quietly(job: Any) -> None:
    """Die of a signal while a forked helper keeps the sockets: the others wait for ever."""
    if os.fork() == 0:
        while True:
            signal.pause()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)


def start_program(job: Any) -> None:
    """Wait in state D: posix_spawn suspends its caller until the child has opened the FIFO."""
    path = job.events / "spawn.fifo"
    os.mkfifo(path)
    opening = (os.POSIX_SPAWN_OPEN, 0, str(path), os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["/bin/true"], {}, file_actions=[opening])


def read_shard(job: Any) -> None:
    """Read a file of a file system whose server stops."""
    with Path(job.options.path).open("rb", buffering=0) as shard:
        os.kill(job.options.server_pid, signal.SIGSTOP)
        shard.read(100)


def open_shard(job: Any) -> None:
    """Open a file of a file system whose server stops."""
    os.kill(job.options.server_pid, signal.SIGSTOP)
    Path(job.options.path).with_name("shard-1").read_bytes()


def log_everything(job: Any) -> None:
    """Print more than the pipe holds that nobody reads."""
    while True:
        print("debug " * 200, flush=True)


def fail_with_live_thread(job: Any) -> None:
    """Raise while a thread that is no daemon never ends: the interpreter waits for it at exit."""
    never = threading.Event()
    threading.Thread(target=never.wait, name="uploader").start()
    raise RuntimeError("loss is not finite")


def sleep_beside_chatter(job: Any) -> None:
    """A thread of the struck rank goes on logging while its main thread hangs."""
    threading.Thread(target=chatter, name="uploader", daemon=True).start()
    slow_data_source(job)


def sleep_beside_thread(job: Any) -> None:
    """A thread of the struck rank computes now and then while its main thread hangs."""
    threading.Thread(target=measure, args=(0.12, 0.25), name="monitor", daemon=True).start()
    slow_data_source(job)


def sleep_beside_child(job: Any) -> None:
    """A child of the struck rank looks at the node now and then while the rank hangs."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; import faults; faults.measure(0.04, 0.4)"
    subprocess.Popen([sys.executable, "-c", code])
    slow_data_source(job)


def measure(works: float, rests: float) -> None:
    """Use so many seconds of CPU time, rest, and begin anew."""
    while True:
        end = time.thread_time() + works
        while time.thread_time() < end:
            pass
        time.sleep(rests)


def lag_behind(job: Any) -> None:
    """No hang at all: this rank is only slower than the others, every step."""
    time.sleep(0.05)


# --- what looks like a hang and is none: each of these comes back -----------------------------------


def once(job: Any) -> bool:
    """True at the first call only."""
    first = not getattr(job, "paused", False)
    job.paused = True
    return first


def save_checkpoint(job: Any) -> None:
    """Write a growing file while the others wait in their next collective."""
    if not once(job):
        return
    with (job.events / "checkpoint.pt").open("wb") as file:
        for _ in range(200):
            file.write(os.urandom(1 << 20))
            file.flush()
            time.sleep(0.2)
    job.announce("done")


def save_in_pieces(job: Any) -> None:
    """Seven large writes, each to the disk and with a rest behind it; half a minute in all."""
    if not once(job):
        return
    with (job.events / "checkpoint.pt").open("wb") as file:
        for _ in range(7):
            file.write(os.urandom(64 << 20))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(4)
    job.announce("done")


def evaluate_model(job: Any) -> None:
    """Evaluate for a minute, a third of the time, without a line in the log, while the others wait."""
    if not once(job):
        return
    end = time.monotonic() + 60
    while time.monotonic() < end:
        rests = time.monotonic() + 0.03
        while time.monotonic() < rests:
            job.model(torch.randn(64, 16))
        time.sleep(0.06)
    job.announce("done")


def vary_pace(job: Any) -> None:
    """Steps of 0.05 to 3 s, without any order."""
    time.sleep(random.choice((0.05, 0.1, 0.4, 1.0, 3.0)))


def ramp_up(job: Any) -> None:
    """Every step takes a little longer than the one before."""
    job.pace = min(3.0, getattr(job, "pace", 0.05) * 1.1)
    time.sleep(job.pace)


def compile_kernels(job: Any) -> None:
    """Wait for a compiler, as torch.compile does, while the others wait."""
    if once(job):
        subprocess.run([str(job.events / "cc1plus")], check=True)
    job.announce("done")


def evaluate_in_child(job: Any) -> None:
    """Wait for a program that works, while the others wait."""
    if once(job):
        subprocess.run([str(job.events / "evaluate")], check=True)
    job.announce("done")


def copy_checkpoint(job: Any) -> None:
    """Wait for a program that copies a file and computes nothing, as `rsync` does, while the others wait."""
    if once(job):
        source, target = job.events / "saved.pt", job.events / "copied.pt"
        source.write_bytes(os.urandom(2 << 20))
        code = "import shutil, sys, time\nfor _ in range(160):\n    shutil.copyfile(*sys.argv[1:])\n    time.sleep(0.25)"
        subprocess.run([sys.executable, "-c", code, str(source), str(target)], check=True)
    job.announce("done")


def chat_and_train(job: Any) -> None:
    """A thread logs without end while training goes on."""
    if once(job):
        threading.Thread(target=chatter, name="uploader", daemon=True).start()
    time.sleep(0.05)


def chatter() -> None:
    """Lines that are no progress, though they count."""
    for count in itertools.count():
        print(f"heartbeat thread: {count} uploads queued", flush=True)
        print(f"waiting for shard: iteration {count}, elapsed: {count * 0.5:.0f}", flush=True)
        print(f"gpu util: step {count}: util=0.0", flush=True)
        print(f"[rank3] data queue empty, iter {count}", flush=True)
        time.sleep(0.5)


STRIKES: dict[str, Callable[[Any], None]] = {
    "prepare": prepare_or_poll,
    "thread": slow_data_source,
    "sleep": slow_data_source,
    "chatty": sleep_beside_chatter,
    "loop": evaluate,
    "gil": call_c_library,
    "regex": parse_log_line,
    "stopped": stop_itself,
    "fifo": read_config_pipe,
    "input": ask_operator,
    "pdb": inspect_tensor,
    "lock": update_cache_twice,
    "lock_order": swap_locks,
    "dataloader": stop_data_worker,
    "dead": leave_quietly,
    "crashed": crash_quietly,
    "spawn": start_program,
    "fuse": read_shard,
    "fuse_open": open_shard,
    "full_pipe": log_everything,
    "slow": lag_behind,
    "teardown": fail_with_live_thread,
    "checkpoint": save_checkpoint,
    "checkpoint_pieces": save_in_pieces,
    "evaluation": evaluate_model,
    "irregular": vary_pace,
    "ramp": ramp_up,
    "compile": compile_kernels,
    "child": evaluate_in_child,
    "copy": copy_checkpoint,
    "busy_thread": sleep_beside_thread,
    "busy_child": sleep_beside_child,
    "healthy_chatty": chat_and_train,
    "silent": lag_behind,
    "done": lag_behind,
}


class Device:
    """A pretended GPU: a rank's collective is done when all ranks have launched it; the wait spins."""

    def __init__(self, job: Any) -> None:
        self.rank, self.world_size = job.rank, job.world_size
        library = ctypes.CDLL(job.options.library)
        self.synchronize = library.cudaStreamSynchronize
        self.launched = 0
        with (job.events / "device").open("a+b") as file:
            file.truncate(8 * self.world_size)
            self.counts = mmap.mmap(file.fileno(), 8 * self.world_size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.counts))

    def all_reduce(self) -> None:
        """Launch one collective; returns at once, as NCCL does."""
        self.launched += 1
        struct.pack_into("q", self.counts, 8 * self.rank, self.launched)

    def item(self) -> float:
        """Wait for the device."""
        self.synchronize(
            ctypes.c_void_p(self.address),
            ctypes.c_long(self.world_size),
            ctypes.c_long(self.launched),
        )
        return 0.0


def device_step(job: Any, step: int) -> None:
    """One step of a job whose collectives run on a device and whose only host wait is a spinning `.item()`."""
    if step == 0:
        job.device = Device(job)
    if job.strikes("spin", step):
        slow_data_source(job)
    job.device.all_reduce()
    job.device.item()
    pace = job.options.pace
    if job.rank == 0 and step % (max(1, round(2.5 / pace)) if pace else 50) == 0:
        print(f"step {step}", flush=True)
