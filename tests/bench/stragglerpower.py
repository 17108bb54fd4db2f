"""How often the decision names whom, on stretches that `bench.stragglerrecords` has recorded of real ranks.

    MLDEBUG_BENCH_ROUNDS=2000 python -m bench.stragglerpower FILE...

A look draws its stretches at random from all that were recorded of a case (they are independent of each other: see
`mldebug.goodput.comparison.rank_differences`), and lets `SampleRows` decide as `mldebug slow` does.
"""

import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from bench.stragglerrecords import RecordedStretch
from bench.stragglers import CASES
from bench.table import Row, show
from mldebug.goodput.sample_rows import SampleRows
from mldebug.goodput.straggler import STRETCHES, SampledStretch

LOOKS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "500"))


def look(recorded: Sequence[SampledStretch], draw: random.Random) -> tuple[tuple[int, ...], int]:
    """The ranks that one look names, and how many stretches it took."""
    rows, taken = SampleRows(least=STRETCHES), 0
    while True:
        taken += 1
        found = rows.add(draw.choice(recorded), known=False)
        if found is not None:
            return tuple(one.rank for one in found.ranks), taken


def judged(name: str, recorded: Sequence[SampledStretch]) -> Row:
    """What all looks of one case name."""
    draw, slow = random.Random(name), CASES[name].slow
    looks = [look(recorded, draw) for _ in range(LOOKS)]
    right = sum(named == slow for named, _ in looks)
    wrong = sum(not set(named) <= set(slow) for named, _ in looks)
    taken = fmean(taken for _, taken in looks)
    words = f"{'named' if slow else 'nobody'} in {right / LOOKS:.2%}, another in {wrong / LOOKS:.2%}, {taken:.1f} stretches"
    least = CASES[name].budget
    return Row(f"{name} ({len(recorded)} stretches)", words, f"{least:.0%}, another in 0 %" if least else "",
               None if least is None else right >= least * LOOKS and not wrong)  # fmt: skip


def main() -> None:
    """Judge what the files hold."""
    cases: dict[str, list[SampledStretch]] = defaultdict(list)
    for file in map(Path, sys.argv[1:]):
        for line in file.read_bytes().splitlines():
            one = msgspec.json.decode(line, type=RecordedStretch)
            if len(one.stretch.ranks) == one.stretch.world_size:
                cases[one.case].append(one.stretch)
    show(f"{LOOKS} looks at recorded stretches", [judged(*one) for one in cases.items()])


if __name__ == "__main__":
    main()
