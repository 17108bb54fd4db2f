"""The collectives probe on real GPUs: its bus bandwidths against a bare torch loop put through the published formulas.

    PYTHONPATH=.:agents:exporters:tests python3 tests/gpu/probes.py [NPROC]

First the command itself, as a person calls it; then, in one process group, its timing and a bare loop in turns: within 3 % for payloads from
64 MiB. With one GPU nothing travels: then times are compared, of what takes 0.2 ms (a launch alone takes 20 to 60 µs, and scatters). Exit
code 1 where something was wrong or apart.
"""

import json
import statistics
import subprocess
import sys
from typing import Any

from bench.probes import pairs
from mldebug.probing.formulas import busbw

OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
SIZES = [64 << 20, 256 << 20, 1 << 30]
APART = 0.03
SHORT = 2e-4  # seconds


def gpus() -> int:
    """How many there are, by nvidia-smi."""
    told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return sum(line.startswith("GPU ") for line in told.stdout.splitlines())


def command_works(ranks: int) -> bool:
    """All collectives by the command; print its table, and tell whether all values were right."""
    words = [sys.executable, "-m", "mldebug", "probe", "collectives", "--device", "cuda"]
    ended = subprocess.run(
        [*words, "--nproc", str(ranks), "--sizes", "1KiB,1MiB,1GiB", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = json.loads(ended.stdout or "[]")
    return (
        ended.returncode == 0
        and bool(found)
        and all(one["correct"] in (True, None) for one in found)
    )


def line(ranks: int, found: Any) -> tuple[str, bool]:
    """One op and size, and whether both agree."""
    own = statistics.median(one[2] for one in found["pairs"])
    bare = statistics.median(one[1] for one in found["pairs"])
    apart = own / bare - 1
    probe, raw = (busbw(found["op"], found["bytes"], one, ranks) / 1e9 for one in (own, bare))
    told = f"{found['op']:<15} {found['bytes'] >> 20:>5} MiB  probe {own * 1e3:9.4f} ms {probe:8.2f} GB/s"
    return f"{told}  bare {bare * 1e3:9.4f} ms {raw:8.2f} GB/s  {apart:+.2%}", abs(
        apart
    ) <= APART or bare < SHORT


def main() -> int:
    """Run both, and print what agrees."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else gpus()
    fine = command_works(ranks)
    print("the command:", "fine" if fine else "WRONG")
    for found in pairs(ranks, "cuda", OPS, SIZES, 20):
        told, agrees = line(ranks, found)
        fine = fine and agrees
        print(told, "" if agrees else "APART")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
