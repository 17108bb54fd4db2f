"""A transformer block trained under DistributedDataParallel that gets stuck in one of the ways that GPUs add; started by torchrun.

EVENTS/strike.RANK comes right before the fault. SIGUSR1 wakes a rank that sleeps; EVENTS/held is the semaphore that holds the stream of
one that is `frozen`; SIGCONT does for one that is stopped: these jobs can go on. `--timeout` is that of its collectives in seconds,
`--served FOLDER` gives each rank a worker server there. `healthy` never gets stuck: it trains, evaluates and saves by turns, compiled or not.
`--cpu` does all of it small and on gloo, for tests of whoever uses this; what only a GPU can do is refused there.
"""

import argparse
import contextlib
import ctypes
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main
from torch.utils.data import DataLoader, IterableDataset

ON_CPU = "--cpu" in sys.argv
DEVICE = "cpu" if ON_CPU else "cuda"
WIDTH, LENGTH, BATCH = (32, 8, 2) if ON_CPU else (2048, 512, 16)
LARGE = 1 << (20 if ON_CPU else 26)
AGES = 100_000
HELD = 150  # seconds for which a GPU is kept busy: longer than anybody looks
CYCLES = 2_000_000_000  # of a GPU's clock, in a second
TRAINED, EVALUATED = 120, 40  # steps of one round
ROUNDS = 1_000_000


class Data(IterableDataset[torch.Tensor]):
    """Batches without end, of which one never comes."""

    def __init__(self, stuck_at: int | None, events: Path, rank: int) -> None:
        self.stuck_at, self.events, self.rank = stuck_at, events, rank

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(AGES * AGES):
            if number == self.stuck_at:
                (self.events / f"strike.{self.rank}").touch()
                read_shard()
            yield torch.randn(BATCH, LENGTH, WIDTH)


def read_shard() -> None:
    """A shard that never arrives."""
    time.sleep(AGES)


class Job:
    """One rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank = int(os.environ["RANK"])
        self.struck = self.rank == options.rank
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True, device=DEVICE
        )
        layer = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.model = torch.nn.parallel.DistributedDataParallel(layer)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.second = dist.new_group()
        self.value = torch.ones(1 << 16, device=DEVICE)
        self.large = torch.ones(LARGE // 4, device=DEVICE)
        self.batch = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE)
        workers = int(options.fault == "worker")
        stuck = options.after if self.struck and workers else None
        data = Data(stuck, options.events, self.rank)
        self.batches = iter(DataLoader(data, batch_size=None, num_workers=workers, prefetch_factor=2 if workers else None))  # fmt: skip

    def strikes(self, step: int) -> bool:
        """Is this the step at which this rank is hit? Then it is announced."""
        here = self.struck and step == self.options.after
        if here:
            (self.options.events / f"strike.{self.rank}").touch()
        return here

    def step(self) -> float:
        """Forward, backward with its collectives, the optimizer, and a look at the loss."""
        fed = self.options.fault == "worker"
        inputs = next(self.batches).to(DEVICE) if fed else self.batch
        loss = self.model(inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.item())


def train(job: Job) -> None:
    """Step until the fault strikes."""
    fault = FAULTS[job.options.fault]
    for step in range(AGES * AGES):
        if job.options.fault == "off_by_one":
            share(job, left_out=job.strikes(step))
        elif job.options.fault == "shape":
            count(job, few=job.strikes(step))
        elif job.options.fault != "worker" and job.strikes(step):
            fault(job)
        print_step(job, step, job.step())


def print_step(job: Job, step: int, loss: float) -> None:
    if job.rank == 0 and step % 20 == 0:
        print(f"step {step} loss {loss:.4f}", flush=True)


# --- the faults --------------------------------------------------------------------------------------


class WokenError(Exception):
    """Somebody has woken it."""


def sleep(job: Job) -> None:
    """It never arrives, unless it is woken."""
    signal.signal(signal.SIGUSR1, awake)
    with contextlib.suppress(WokenError):
        time.sleep(AGES)


def awake(number: int, frame: object) -> None:
    raise WokenError


def loop(job: Job) -> None:
    """A loop in Python that never ends."""
    while True:
        sum(range(1000))


def stop(job: Job) -> None:
    """Somebody has stopped it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def kill(job: Job) -> None:
    """It dies while the others wait."""
    time.sleep(2)
    os.kill(os.getpid(), signal.SIGKILL)


def mismatch(job: Job) -> None:
    """Another collective than the others'."""
    share_settings()


def share_settings() -> None:
    settings = torch.zeros(LARGE, device=DEVICE)
    dist.broadcast(settings, src=0)
    settings.sum().item()


def count(job: Job, few: bool) -> None:
    """One line and one collective, of another size on one rank: so small that NCCL takes another protocol for it, and none ends."""
    dist.all_reduce(job.large[: 8 if few else None]), job.large[0].item()


def share(job: Job, left_out: bool) -> None:
    """One line, two groups of the same ranks; a rank that leaves out one of them waits at the same line as the others."""
    for group in (None, job.second)[left_out:]:
        dist.all_reduce(job.value, group=group), job.value[0].item()


def kernel(job: Job) -> None:
    """A kernel that does not end, and a step behind it."""
    torch.cuda._sleep(HELD * CYCLES)  # type: ignore[no-untyped-call]
    job.step()


def oom(job: Job) -> None:
    """Every batch is too large from now on, and left out by an `except` that says nothing."""
    while True:
        try:
            torch.empty(1 << 42, device=DEVICE)
            job.step()
        except torch.OutOfMemoryError:
            continue


def frozen(job: Job) -> None:
    """All have called the same collective, and one rank's stream is held by a function of the host."""
    runtime = ctypes.CDLL(cuda_runtime())
    libc = ctypes.CDLL(None)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    function = ctypes.cast(libc.sem_wait, ctypes.c_void_p)
    error = runtime.cudaLaunchHostFunc(stream, function, semaphore(job.options.events / "held"))
    if error:
        raise OSError(error, "cudaLaunchHostFunc")
    job.step()


def semaphore(file: Path) -> ctypes.c_void_p:
    """One that lies in a file, so that another process can post it; it stays mapped."""
    file.write_bytes(bytes(mmap.PAGESIZE))
    with file.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), mmap.PAGESIZE)
    held.append(mapped)
    place = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
    ctypes.CDLL(None).sem_init(place, 1, 0)
    return place


held: list[mmap.mmap] = []


def cuda_runtime() -> str:
    """The path of the one that PyTorch has loaded."""
    maps = Path("/proc/self/maps").read_text().split()
    return next(one for one in maps if "libcudart" in one)


FAULTS: dict[str, Callable[[Job], Any]] = {
    "sleep": sleep, "loop": loop, "stop": stop, "kill": kill, "mismatch": mismatch, "shape": sleep, "kernel": kernel,
    "oom": oom, "frozen": frozen, "off_by_one": sleep, "worker": sleep, "healthy": sleep,
}  # fmt: skip
ONLY_GPU = ("kernel", "oom", "frozen")


# --- nothing wrong -----------------------------------------------------------------------------------


def healthy(job: Job) -> None:
    """Train, evaluate on rank 0 alone, save, and train compiled; the phases last for seconds, and differ between ranks."""
    compiled = torch.compile(job.model) if not ON_CPU else job.model
    plain, step = job.model, 0
    for number in range(ROUNDS):
        job.model = compiled if number % 2 else plain
        for _ in range(TRAINED):
            print_step(job, step, job.step())
            step += 1
        evaluate(job)
        save(job)
        dist.barrier()


def evaluate(job: Job) -> None:
    """Without the others, on rank 0 for longer."""
    with torch.no_grad():
        for _ in range(EVALUATED * (4 if job.rank == 0 else 1)):
            job.model.eval()(job.batch).sum().item()
    job.model.train()


def save(job: Job) -> None:
    """Rank 0 writes all that it knows, and the others wait."""
    if job.rank == 0:
        file = job.options.events / "checkpoint"
        states = {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}
        for _ in range(4):
            with file.open("wb") as out:
                torch.save(states, out)
                os.fsync(out.fileno())
        file.unlink()


def main() -> None:
    """Join the job, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--after", type=int, default=60)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--served", type=Path)
    options = parser.parse_args()
    if options.cpu and options.fault in ONLY_GPU:
        parser.error("that takes a GPU")
    if not options.cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "gloo" if options.cpu else "nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=options.timeout))
    job = Job(options)
    with served(options.served):
        healthy(job) if options.fault == "healthy" else train(job)


def served(folder: Path | None) -> contextlib.AbstractContextManager[object]:
    """PyTorch's worker server on a socket of this rank's own."""
    if folder is None:
        return contextlib.nullcontext()
    os.environ["TORCH_WORKER_SERVER_SOCKET"] = str(folder / f"server{os.environ['RANK']}")
    return worker_main()


if __name__ == "__main__":
    main()
