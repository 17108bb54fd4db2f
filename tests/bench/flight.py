"""`mldebug flight-recorder` on 512 ranks: what the command takes, start of Python included, median of ROUNDS.

Two sizes of recorder: 100 calls, and the 2,000 that PyTorch 2.11 and newer keep by default.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.table import Row, show
from dumps import as_torch, late

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "3"))
RANKS = 512
BUDGET = 3.0  # seconds


def taken(folder: Path) -> float:
    """Seconds of one call."""
    command = [sys.executable, "-m", "mldebug", "flight-recorder", "--json", str(folder)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, check=False)
    assert b'"culprits":[300]' in done.stdout, done.stderr
    return time.monotonic() - began


def rows() -> Iterator[Row]:
    """One for each size of the recorder."""
    for count in (100, 2000):
        with tempfile.TemporaryDirectory() as place:
            made = late(300, world=RANKS, count=count)
            one, behind = (as_torch(made[rank]) for rank in (0, 300))
            for rank in range(RANKS):
                (Path(place) / f"trace_{rank}").write_bytes(behind if rank == 300 else one)
            median = statistics.median(taken(Path(place)) for _ in range(ROUNDS))
        what = f"flight-recorder, {RANKS} ranks, {count:,} calls each"
        yield Row(what, f"{median:.2f} s", f"≤ {BUDGET:.0f} s", median <= BUDGET)


def main() -> None:
    """Print the table."""
    show(f"Flight Recorder dumps, median of {ROUNDS} rounds", rows())


if __name__ == "__main__":
    main()
