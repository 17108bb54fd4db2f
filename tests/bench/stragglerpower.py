"""How often the decision names whom, on stretches that `bench.stragglerrecords` has recorded of real ranks.

    MLDEBUG_BENCH_ROUNDS=2000 python -m bench.stragglerpower FILE...

Where a recording has glances, an hour of an agent's looks is drawn as well, each of which begins with one.

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
from typing import NamedTuple

import msgspec

from bench.stragglerrecords import RecordedStretch
from bench.stragglers import CASES
from bench.table import Row, show
from mldebug.goodput.comparison.blocked_calls import GlanceMemory
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.sample_rows import SampleRows
from mldebug.goodput.straggler import STRETCHES, SampledStretch, find_slow_ranks

MOST_LOOKS = 12  # an hour, five minutes apart
LOOKS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "500"))


def look(recorded: Sequence[SampledStretch], draw: random.Random) -> tuple[tuple[int, ...], int]:
    """The ranks that one look names, and how many stretches it took."""
    rows, taken = SampleRows(least=STRETCHES), 0
    while True:
        taken += 1
        found = rows.add(draw.choice(recorded), known=False)
        if found is not None:
            return tuple(one.rank for one in found.ranks), taken


class Hour(NamedTuple):
    """What an agent makes of one run in an hour: the ranks that it names first, after how many looks, and how many stretches all looks took."""

    named: tuple[int, ...]
    looks: int
    stretches: int


def hour(recorded: Sequence[RecordedStretch], draw: random.Random) -> Hour:
    """`MOST_LOOKS` looks as an agent has them: a glance, and stretches where it wants them. They end with the first rank that is named."""
    rows, glances, taken = SampleRows(), GlanceMemory(), 0
    shares: tuple[RankShares, ...] = ()
    for number in range(1, MOST_LOOKS + 1):
        if not glances.wants_stacks(draw.choice(recorded).glance, shares):
            continue
        found = None
        while found is None:
            taken += 1
            stretch = draw.choice(recorded).stretch
            alike = glances.shows_alike(find_slow_ranks((stretch,)).shares)
            found = rows.add(stretch, known=False, alike=alike)
        glances.sampled()
        shares = found.shares
        if found.ranks:
            return Hour(tuple(one.rank for one in found.ranks), number, taken)
    return Hour((), MOST_LOOKS, taken)


def watched(name: str, recorded: Sequence[RecordedStretch]) -> Row:
    """What agents name of one case within an hour, and what that takes."""
    draw, slow = random.Random(name), CASES[name].slow
    hours = [hour(recorded, draw) for _ in range(max(1, LOOKS // 4))]
    right = sum(one.named == slow for one in hours)
    at_once = sum(one.named == slow and one.looks == 1 for one in hours)
    wrong = sum(not set(one.named) <= set(slow) for one in hours)
    words = f"{'named' if slow else 'nobody'} in {right / len(hours):.2%}, another in {wrong / len(hours):.2%}"
    if slow:
        words += f"; at the first look in {at_once / len(hours):.1%}, look {fmean(one.looks for one in hours):.2f} in the mean"
    else:
        words += f"; {fmean(one.stretches for one in hours) / MOST_LOOKS:.2f} stretches a look"
    return Row(f"{name}, an hour of an agent's looks", words)


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
    cases: dict[str, list[RecordedStretch]] = defaultdict(list)
    for file in map(Path, sys.argv[1:]):
        for line in file.read_bytes().splitlines():
            one = msgspec.json.decode(line, type=RecordedStretch)
            if len(one.stretch.ranks) == one.stretch.world_size:
                cases[one.case].append(one)
    rows = [judged(name, [one.stretch for one in some]) for name, some in cases.items()]
    whole = {name: [one for one in some if one.glance.ranks] for name, some in cases.items()}
    rows += [watched(name, some) for name, some in whole.items() if some]
    show(f"{LOOKS} looks at recorded stretches", rows)


if __name__ == "__main__":
    main()
