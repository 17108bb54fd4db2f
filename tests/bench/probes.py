"""What the collectives probe adds to an operation: its loop against a bare one, gloo with 2 to 8 ranks, in thousands of short turns.

The difference is the median of the pairs' quotients, with its 95 % interval by the binomial: outliers, of which gloo has many where ranks share
cores, count as one each. The probe's own work in a repetition is measured directly as well, with an operation that does nothing.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.table import Row, show
from mldebug_agents.probes.measurement import free_port

HERE = Path(__file__).parent
PAIRS = {2: 4000, 4: 2000, 8: 2000}  # by ranks
SCALE = float(os.environ.get("MLDEBUG_BENCH_PAIRS", "1"))  # so many times that
BUDGET = 2.0  # percent
SIZE = 1 << 20


def rounds(
    ranks: int,
    device: str,
    ops: list[str],
    sizes: list[int],
    repeats: int,
    number: int,
    seconds: float,
) -> list[Any]:
    """What the ranks of `probesinside.py` say of each op and size; raises where they fail."""
    return events_of("probesinside", "rounds", ranks, device=device, ops=ops, sizes=sizes, repeats=repeats, rounds=number, seconds=seconds)  # fmt: skip


def events_of(script: str, event: str, ranks: int, **more: Any) -> list[Any]:
    """Start that many ranks of a script and collect what they say."""
    order = {
        "ranks": list(range(ranks)), "world": ranks, "address": "127.0.0.1", "port": free_port(),
        "seconds": 1500, "timeout": 60, "dtype": "float32", "memory": None, "warmup": 5,
        **more,
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, str(HERE / f"{script}.py"), json.dumps(order)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    return [one for one in events if one["event"] == event]


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval by the binomial."""
    ordered = sorted(values)
    reach, middle = round(0.98 * len(ordered) ** 0.5), len(ordered) // 2
    low, high = ordered[max(0, middle - reach)], ordered[min(len(ordered) - 1, middle + reach)]
    return statistics.median(ordered), low, high


def row(ranks: int, found: Any) -> Row:
    """How much longer an operation takes by the probe's loop, in percent."""
    more, low, high = (100 * (one - 1) for one in interval(found["quotients"]))
    met = True if high < BUDGET else False if low > BUDGET else None
    return Row(
        f"all_reduce of 1 MiB, {ranks} ranks, gloo: more than a bare loop, {len(found['quotients'])} pairs",
        f"{more:+.2f} % ({low:+.2f} … {high:+.2f})",
        f"< {BUDGET:g} %",
        met,
    )


def own_row(ranks: int, found: Any) -> Row:
    """The probe's own work in a repetition of nothing, as a share of the bare operation."""
    share = found["work"] / found["bare"] * 100
    return Row(
        f"the probe's own work in each repetition, {ranks} ranks",
        f"{found['work'] * 1e6:.2f} us of {found['bare'] * 1e6:.0f} us = {share:.3f} %",
        f"< {BUDGET:g} %",
        share < BUDGET,
    )


def main() -> None:
    """Measure and show."""
    rows = [
        make(ranks, found)
        for ranks, pairs in PAIRS.items()
        for found in events_of("probepairs", "pairs", ranks, device="cpu", ops=["all_reduce"], sizes=[SIZE], rounds=round(SCALE * pairs))
        for make in (row, own_row)
    ]  # fmt: skip
    show("The collectives probe", rows)


if __name__ == "__main__":
    main()
