"""`mldebug flight-recorder` on 512 ranks: what the command takes, start of Python included, median of ROUNDS.

Two sizes of recorder: 100 calls, and the 2,000 that PyTorch 2.11 and newer keep by default; these in all spellings.
"""

import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.table import Row, show
from shared.capture.dumps import Dump, as_json, as_torch, late

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


def median_of(count: int, spelling: Callable[[Dump], bytes]) -> float:
    """Of one folder."""
    with tempfile.TemporaryDirectory() as place:
        made = late(300, world=RANKS, count=count)
        one, behind = (spelling(made[rank]) for rank in (0, 300))
        for rank in range(RANKS):
            (Path(place) / f"trace_{rank}").write_bytes(behind if rank == 300 else one)
        return statistics.median(taken(Path(place)) for _ in range(ROUNDS))


def rows() -> Iterator[Row]:
    """One for each size of the recorder, and each spelling of a full one."""
    for count, name, spelling in (
        (100, "PyTorch's pickle", as_torch),
        (2000, "PyTorch's pickle", as_torch),
        (2000, "Python's pickle", pickle.dumps),
        (2000, "JSON", as_json),
    ):
        median = median_of(count, spelling)
        what = f"flight-recorder, {RANKS} ranks, {count:,} calls each, {name}"
        yield Row(what, f"{median:.2f} s", f"≤ {BUDGET:.0f} s", median <= BUDGET)


def main() -> None:
    """Print the table."""
    show(f"Flight Recorder dumps, median of {ROUNDS} rounds", rows())


if __name__ == "__main__":
    main()
