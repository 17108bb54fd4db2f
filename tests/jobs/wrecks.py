"""A small job on two GPUs that is wrecked in one of the ways that collectives and CUDA have; started by torchrun, or by hand.

EVENTS/strike.RANK comes right before the fault, after `--after` seconds of training. The struck rank, 1:

kernel     launches a kernel on all multiprocessors that does not end, and joins the next collective behind it
assert     fails an assertion on its GPU, and sleeps: only the watchdog's thread can tell
illegal    writes where nothing is, and sleeps likewise
oom        asks for more memory than there is, and dies of it
exit       leaves without a word, in the middle of a collective of the others
skew       expects less in an all_to_all than is sent to it

`--cpu` does what needs no GPU (`exit`, `skew`) on gloo, for tests of whoever uses this.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

ON_CPU = "--cpu" in sys.argv
DEVICE = "cpu" if ON_CPU else "cuda"
SIDE = 64 if ON_CPU else 8192
LARGE, FEW = (1 << 12 if ON_CPU else 1 << 24), 8
AGES = 100_000
STRUCK = 1
HELD = 150.0  # seconds for which a GPU is kept busy: longer than anybody looks
CYCLES = 2_000_000_000  # of a GPU's clock, in a second
BLOCKS, THREADS = 132 * 8, 256
SOURCE = r"""
extern "C" __global__ void forever(float* out, long long cycles) {
  long long end = clock64() + cycles;
  float some = threadIdx.x, more = blockIdx.x;
  while (clock64() < end)
    for (int i = 0; i < 1024; i++) { some = some * 1.0001f + 0.5f; more = more * 0.9999f - 0.5f; }
  out[blockIdx.x * blockDim.x + threadIdx.x] = some + more;
}
extern "C" __global__ void nowhere(long long where) { *(int*)where = 1; }
"""


def launched(name: str, blocks: int, threads: int, *arguments: object) -> None:
    """One kernel of SOURCE on the stream that PyTorch uses."""
    import cupy

    kernel = cupy.RawModule(code=SOURCE).get_function(name)
    with cupy.cuda.Device(torch.cuda.current_device()), cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):  # fmt: skip
        kernel((blocks,), (threads,), arguments)


def kernel(value: torch.Tensor) -> None:
    out = torch.empty(BLOCKS * THREADS, device=DEVICE)
    launched("forever", BLOCKS, THREADS, out.data_ptr(), int(HELD * CYCLES))
    share(value)


def fail_an_assertion(value: torch.Tensor) -> None:
    value.index_select(0, torch.tensor([value.numel()], device=DEVICE))
    wait_for_the_watchdog(value)


def illegal(value: torch.Tensor) -> None:
    launched("nowhere", 1, 1, 16)
    wait_for_the_watchdog(value)


def wait_for_the_watchdog(value: torch.Tensor) -> None:
    dist.all_reduce(value, async_op=True)
    time.sleep(AGES)


def oom(value: torch.Tensor) -> None:
    torch.empty(1 << 42, device=DEVICE)


def leave(value: torch.Tensor) -> None:
    time.sleep(2)
    os._exit(7)


def skew(value: torch.Tensor) -> None:
    exchange(expected=FEW)


def exchange(expected: int = LARGE) -> None:
    """All to all; `expected`: elements from the other rank."""
    rank = dist.get_rank()
    parts = [LARGE, LARGE]
    parts[1 - rank] = expected
    sent = torch.ones(2 * LARGE, device=DEVICE)
    got = torch.empty(sum(parts), device=DEVICE)
    dist.all_to_all_single(got, sent, parts, [LARGE, LARGE])
    got.sum().item()


FAULTS: dict[str, Callable[[torch.Tensor], None]] = {
    "kernel": kernel, "assert": fail_an_assertion, "illegal": illegal, "oom": oom, "exit": leave, "skew": skew,
}  # fmt: skip
WITHOUT_GPU = ("exit", "skew")


def share(value: torch.Tensor) -> float:
    """What ranks do together, and a look at it."""
    dist.all_reduce(value)
    return float(value[0].item())


def train(options: argparse.Namespace) -> None:
    """Step; when it is time, all ranks agree on it and one is struck."""
    rank = dist.get_rank()
    value, weights = torch.ones(1 << 10, device=DEVICE), torch.randn(SIDE, SIDE, device=DEVICE)
    begin = time.monotonic()
    for step in range(AGES * AGES):
        for _ in range(8):
            weights = (weights @ weights) / weights.norm()
        over = torch.tensor(float(time.monotonic() - begin > options.after), device=DEVICE)
        dist.all_reduce(over)
        if over.item() == dist.get_world_size():
            (options.events / f"strike.{rank}").touch()
            if rank == STRUCK:
                FAULTS[options.fault](value)
            elif options.fault == "skew":
                exchange()
        share(value.fill_(1.0))
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {1 / (step + 1):.4f}", flush=True)


def main() -> None:
    """Join the job, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--after", type=float, default=15.0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--timeout", type=float, default=600.0)
    options = parser.parse_args()
    if options.cpu and options.fault not in WITHOUT_GPU:
        parser.error("that takes a GPU")
    if not options.cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if options.cpu else "nccl", timeout=timedelta(seconds=options.timeout))  # fmt: skip
    train(options)


if __name__ == "__main__":
    main()
