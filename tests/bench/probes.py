"""What the collectives probe adds to an operation: its loop against a bare one, gloo with 2 to 8 ranks, alternating.

On a machine with fewer cores than ranks gloo's own times scatter by several times the budget: then the comparison cannot tell. The probe's
own work in a repetition is measured directly as well, with an operation that does nothing.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.table import Row, show
from mldebug_agents.probing.measuring import free_port

INSIDE = Path(__file__).with_name("probesinside.py")
ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "21"))
BUDGET = 2.0  # percent
SIZE = 1 << 20


def rounds(
    ranks: int, device: str, ops: list[str], sizes: list[int], repeats: int, number: int = ROUNDS
) -> list[Any]:
    """What the ranks say; raises where they fail."""
    order = {
        "ranks": list(range(ranks)),
        "world": ranks,
        "address": "127.0.0.1",
        "port": free_port(),
        "seconds": 500,
        "device": device,
        "dtype": "float32",
        "timeout": 60,
        "memory": None,
        "warmup": 5,
        "repeats": repeats,
        "rounds": number,
        "ops": ops,
        "sizes": sizes,
    }
    ended = subprocess.run(
        [sys.executable, str(INSIDE), json.dumps(order)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    return [one for one in events if one["event"] == "rounds"]


def row(ranks: int, found: Any) -> Row:
    """The median of the differences in percent, with the 95 % interval of that median by the binomial."""
    more = sorted((one["probe"] / one["bare"] - 1) * 100 for one in found["rounds"])
    reach = round(0.98 * len(more) ** 0.5)
    middle = len(more) // 2
    low, high = more[max(0, middle - reach)], more[min(len(more) - 1, middle + reach)]
    met = True if high < BUDGET else False if low > BUDGET else None
    told = f"{statistics.median(more):+.2f} % ({low:+.2f} … {high:+.2f})"
    return Row(
        f"all_reduce of 1 MiB, {ranks} ranks, gloo: more than a bare loop",
        told,
        f"< {BUDGET:g} %",
        met,
    )


def own_row(ranks: int, found: Any) -> Row:
    """The probe's own work in a repetition of nothing, as a share of the bare operation."""
    bare = statistics.median(one["bare"] for one in found["rounds"])
    share = found["work"] / bare * 100
    told = f"{found['work'] * 1e6:.2f} us of {bare * 1e6:.0f} us = {share:.3f} %"
    return Row(
        f"the probe's own work in each repetition, {ranks} ranks",
        told,
        f"< {BUDGET:g} %",
        share < BUDGET,
    )


def main() -> None:
    """Measure and show."""
    rows = [
        make(ranks, found)
        for ranks in (2, 4, 8)
        for found in rounds(ranks, "cpu", ["all_reduce"], [SIZE], 50)
        for make in (row, own_row)
    ]
    show("The collectives probe", rows)


if __name__ == "__main__":
    main()
