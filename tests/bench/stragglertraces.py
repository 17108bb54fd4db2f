"""Our decision on ByteDance's public straggler traces (github.com/ByteDance-Seed/StragglerAnalysis), beside their own analysis.

    PYTHONPATH=. python tests/bench/stragglertraces.py FOLDER    # their folder `data`; needs pandas and pyarrow

A rank counts as waiting in what is no computation. Each run of consecutive recorded steps is a stretch; rows of 8 of them are judged,
once over all ranks and once over the ranks of each pipeline stage. Theirs: M_W, the part of the slowdown that goes when the
slowest 3 % of workers are as fast as the others, and M_S, that of the last stage.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas  # type: ignore[import-not-found]

from mldebug.goodput.evidence import RankShares
from mldebug.goodput.straggler import MOST, SampledStretch, find_slow_ranks

SAMPLES = 100
WORK = ("forward-compute", "backward-compute", "optimizer", "gc")
EXCHANGE = ("forward-send", "forward-recv", "backward-send", "backward-recv")


def stretches(trace: Any) -> list[SampledStretch]:
    """One for each step."""
    return [_stretch(step) for _, step in trace.groupby("step")]


def _stretch(step: Any) -> SampledStretch:
    begin = step.start_ts.min()
    seconds = float((step.start_ts + step.duration).max() - begin)
    works = step[step.optype.isin(WORK)].groupby("rank").duration.sum()
    exchanges = step[step.optype.isin(EXCHANGE)].groupby("rank").duration.sum()
    ranks = tuple(
        _shares(int(rank), works.get(rank, 0.0) / seconds, exchanges.get(rank, 0.0) / seconds)
        for rank in sorted(step["rank"].unique())
    )
    return SampledStretch(at=float(begin) + seconds, seconds=seconds, ranks=ranks)


def _shares(rank: int, works: float, exchanges: float) -> RankShares:
    waiting = max(0.0, 1.0 - works)
    return RankShares(
        rank=rank, samples=SAMPLES, waiting=waiting, exchanging=min(waiting, exchanges)
    )


def of_ranks(row: Sequence[SampledStretch], ranks: Iterable[int]) -> list[SampledStretch]:
    """The same with these ranks alone."""
    kept = set(ranks)
    return [
        SampledStretch(
            at=one.at, seconds=one.seconds, ranks=tuple(r for r in one.ranks if r.rank in kept)
        )
        for one in row
    ]


def judged(row: Sequence[SampledStretch]) -> Counter[str]:
    """What rows of 8 stretches show, and how often."""
    found: Counter[str] = Counter()
    for at in range(0, len(row) - MOST + 1, MOST):
        one = find_slow_ranks(row[at : at + MOST])
        named = ", ".join(f"{slow.rank} (loss {100 * one.loss:.0f} %)" for slow in one.ranks)
        found[named or f"nobody: {one.why_nobody}"] += 1
    return found


def main(folder: Path) -> None:
    """Print what is found in each trace."""
    for file in sorted(folder.glob("trace-*.parquet")):
        name = file.stem.partition("-")[2]
        theirs = {
            key: json.loads((folder / f"{key}-{name}.json").read_text())
            for key in ("mw", "ms", "result")
        }
        trace = pandas.read_parquet(file)
        row = stretches(trace)
        print(f"{name}: {trace['rank'].nunique()} ranks, {len(row)} steps; theirs: slowdown {theirs['result']['blocking_slowdown']:.2f}, "
              f"M_W {100 * theirs['mw']['Mw']:.0f} %, M_S {100 * theirs['ms']['Ms']:.0f} %")  # fmt: skip
        print(f"  all ranks: {dict(judged(row))}")
        for stage, part in trace.groupby("stage"):
            print(f"  stage {stage}: {dict(judged(of_ranks(row, part['rank'].unique())))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
