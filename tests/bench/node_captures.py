"""What one report over many nodes costs the one who asks: read the answers, merge, diagnose, write; 64 and 1,024 nodes of 8 ranks.

The answers are synthetic, as they come over the wire: one rank sleeps, the others wait. Median of ROUNDS.
"""

import os
import resource
import statistics
import time
from collections.abc import Iterator

from bench.table import Row, show
from mldebug.cluster.merge import MergedRun, NodeReplies, merge
from mldebug.cluster.slimming import slim
from mldebug.cluster.wire import ReplyLines, encode, read_line
from mldebug.core.report_model import Stall
from mldebug.diagnosis.diagnose import diagnose
from mldebug.incidents.report.build import build_report
from mldebug.incidents.report.html import render_html
from shared.cluster.nodes import replies, run, sleeper

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "5"))
EACH = 8
BUDGET = 2.0  # seconds for merge and diagnosis of 8,192 ranks


def sent(nodes: int) -> dict[str, list[bytes]]:
    """The lines of every node."""
    odd = nodes * EACH // 2
    found = replies(run(nodes, EACH, {odd: sleeper()}))
    return {name: list(encode(slim(reply))) for name, reply in found.items()}


def read(lines: dict[str, list[bytes]]) -> NodeReplies:
    """As the collector does."""
    found = {}
    for name, mine in lines.items():
        pieces = ReplyLines()
        for line in mine:
            if piece := read_line(line):
                pieces.add(piece)
        found[name] = pieces.reply()
    return NodeReplies(found)


def page(one: MergedRun) -> str:
    """The report as HTML."""
    report = build_report(
        diagnose(*one), one.captures, kind="manual", trigger="manual", detected_at=0.0,
        reported_at=0.0, stall=Stall(timeout_seconds=None, why="bench"), versions={}, queried=one.queried,
    )  # fmt: skip
    return render_html(report)


def rows(nodes: int) -> Iterator[Row]:
    """Of so many nodes."""
    lines, times = sent(nodes), []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        content = read(lines)
        there = time.perf_counter()
        (one,) = merge(content, "Slurm").runs
        judgement = diagnose(*one)
        judged = time.perf_counter()
        html = page(one)
        times.append((there - began, judged - there, time.perf_counter() - judged))
    assert [found.rank for found in judgement.diagnosis.culprits] == [nodes * EACH // 2]
    reading, judging, writing = (statistics.median(column) for column in zip(*times, strict=True))
    size = sum(len(line) for mine in lines.values() for line in mine)
    what = f"{nodes:,} nodes of {EACH} ranks"
    budget = ("≤ 2 s", judging <= BUDGET) if nodes == 1024 else ()
    yield Row(f"{what}: merge and diagnose", f"{judging:.2f} s", *budget)
    yield Row(f"{what}: read the answers", f"{reading:.2f} s, {size / nodes / 1000:.1f} kB each")
    yield Row(
        f"{what}: diagnose again, report and HTML", f"{writing:.2f} s, {len(html) / 1e6:.2f} MB"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row(f"{what}: memory of this process at most", f"{peak:.0f} MiB")


def main() -> None:
    """Print the table."""
    show(f"many nodes, median of {ROUNDS} rounds", [*rows(64), *rows(1024)])


if __name__ == "__main__":
    main()
