"""The collectives probe on real GPUs, beside a bare torch loop and beside the way of timing of the benchmark that it comes from.

    PYTHONPATH=.:agents:exporters:tests python3 tests/gpu/probes.py [NPROC]

First the command itself, as a person calls it; then, in one process group, on the same payloads, the three ways in turns, each put through
the published formulas: what the probe tells may differ from neither by more than 3 %. With one GPU nothing travels: then times are compared. What is
too short is shown, and not judged: a launch takes 20 to 60 µs and scatters, and the third way has one in each operation, since it lets nothing
queue: how many µs longer it is in its mean, its median and its best trial tells whether that is all. Exit code 1 where something was wrong or apart.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bench.probes import rounds
from mldebug.probes.collectives import busbw

OPS = [
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"),
    "send_recv",
]
SIZES = [64 << 20, 256 << 20, 1 << 30, 4 << 30]
ONE_GPU = [256 << 20, 1 << 30, 8 << 30]
REPEATS, ROUNDS = 20, 15
SECONDS = 200.0  # for all of them
WAYS = {"own": "probe", "bare": "bare", "seed": "seed"}
APART = 0.03
SHORT = {
    "bare": 4e-4,
    "seed": 5e-3,
}  # seconds; up to 0.11 ms of what the third way measures is the start after its barrier


def gpus() -> int:
    """How many there are, by nvidia-smi; none without it."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


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
    """One op and size by all ways, and whether the probe agrees with the others."""
    took = {way: statistics.median(one[way] for one in found["rounds"]) for way in WAYS}
    text = f"{found['op']:<15} {found['bytes'] >> 20:>5} MiB"
    for way, seconds in took.items():
        speed = busbw(found["op"], found["bytes"], seconds, ranks) / 1e9
        text += f"  {WAYS[way]} {seconds * 1e3:9.4f} ms {speed:8.2f} GB/s"
    fine = True
    for way, short in SHORT.items():
        apart = took["own"] / took[way] - 1
        fine = fine and (took[way] < short or abs(apart) <= APART)
        text += f"  against {way} {apart:+.2%}{' (short)' if took[way] < short else ''}"
    return text + why(found), fine


def why(found: Any) -> str:
    """Whether the seeds' way takes longer by its start after each barrier, in all its trials, or by a few of them, which its mean takes in."""
    pairs = [(one["own"], one) for one in found["rounds"]]
    more = {
        name: statistics.median(one[name] - own for own, one in pairs) * 1e6
        for name in ("seed", "seed_median", "seed_least")
    }
    return (
        f"  (seed - probe: mean {more['seed']:+.0f} us, median trial {more['seed_median']:+.0f} us,"
        f" best trial {more['seed_least']:+.0f} us; rounds {spread(found['rounds'])})"
    )


def spread(rounds: list[Any]) -> str:
    """The least and the most that a round of the probe is apart from the same round of the seeds' way."""
    apart = sorted(one["own"] / one["seed"] - 1 for one in rounds)
    return f"{apart[0]:+.1%} .. {apart[-1]:+.1%}"


def compared(ranks: int) -> Iterator[tuple[str, bool]]:
    """A line for each op and size, and whether it is as it should be."""
    sizes = SIZES if ranks > 1 else ONE_GPU
    for found in rounds(ranks, "cuda", OPS, sizes, REPEATS, ROUNDS, SECONDS):
        yield line(ranks, found)


def main() -> int:
    """Run both, and print what agrees."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else gpus()
    fine = command_works(ranks)
    print("the command:", "fine" if fine else "WRONG", flush=True)
    for value, agrees in compared(ranks):
        fine = fine and agrees
        print(value, "" if agrees else "APART", flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
