"""Log lines per second: our parser against a bare `re` loop over the same lines, alternating in one run.

What the agent must manage is 100,000 lines a second.
"""

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from bench.table import Row, show
from mldebug.core.plugins import create_all
from mldebug.jobs.logs.parser import LogParser

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "9"))
LINES = 100_000
CHUNK = 512 << 10
BARE = re.compile(
    r"iteration\s+(\d+)/\s*(\d+) .*elapsed time per iteration \((ms|s)\): ([\d.E+-]+).*lm loss: (\S+)"
)
MEGATRON = (
    " iteration {n:8d}/  159576 | consumed samples: {n:12d} | elapsed time per iteration (ms): 29503.7 | learning rate:"
    " 1.000E-05 | global batch size:    16 | lm loss: 1.247680E+01 | loss scale: 4096.0 | grad norm: 1.204 |\n"
)
NOISE = "[rank3]: INFO worker {n}: read shard-{n:05d}.tar from the cache in 0.12 s, queue 7/16\n"


SIMPLE = re.compile(r"step (\d+) loss (\S+)")


def bare(data: bytes, pattern: re.Pattern[str]) -> int:
    """What a small script does with the one format that it knows: decode, split, search."""
    count = 0
    for line in data.decode(errors="replace").split("\n"):
        match = pattern.search(line)
        if match:
            _ = int(match[1]), float(match[pattern.groups])
            count += 1
    return count


def ours(data: bytes) -> int:
    """All formats, as the agent feeds them."""
    parser = LogParser(create_all("logs"))
    for start in range(0, len(data), CHUNK):
        parser.feed(data[start : start + CHUNK])
    return parser.records


def rate(side: Callable[[bytes], int], data: bytes) -> float:
    """Lines per second of CPU time."""
    began = time.process_time()
    side(data)
    return LINES / (time.process_time() - began)


def logs() -> dict[str, str]:
    """The texts that are parsed."""
    numbers = range(LINES)
    return {
        "records": "".join(MEGATRON.format(n=n) for n in numbers),
        "one record in ten": "".join((NOISE if n % 10 else MEGATRON).format(n=n) for n in numbers),
        "step N loss X": "".join(f"step {n} loss {n / 7:.4f}\n" for n in numbers),
    }


def rows() -> Iterator[Row]:
    """The median of each side for each text."""
    for name, text in logs().items():
        data = text.encode()
        pattern = SIMPLE if text.startswith("step") else BARE
        script_side = partial(bare, pattern=pattern)
        sides = [(rate(script_side, data), rate(ours, data)) for _ in range(ROUNDS)]
        script, parser = (statistics.median(side) for side in zip(*sides, strict=True))
        sentence = f"{parser / 1e3:,.0f} k lines/s (bare re: {script / 1e3:,.0f} k)"
        yield Row(
            f"log lines parsed in a second of CPU: {name}", sentence, "≥ 100 k", parser >= LINES
        )


def main() -> None:
    """Print the table."""
    show(f"{LINES:,} log lines, median of {ROUNDS} alternating rounds", rows())


if __name__ == "__main__":
    main()
