"""The bandwidth of collectives over more and more nodes: which numbers of nodes are measured, and the table of the figures."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from mldebug.core.units import format_size
from mldebug.probes.collectives import CollectiveResult

HEADER = "bus bandwidth, largest payload that all have, GB/s (beside the fewest)"
COLUMNS = ("nodes", "ranks", "op", "bytes", "median_seconds", "algbw_bytes_per_second", "busbw_bytes_per_second")  # fmt: skip


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured over so many `nodes`: the first ones of those that were named."""

    nodes: int
    results: tuple[CollectiveResult, ...]


def counts(nodes: int) -> tuple[int, ...]:
    """The numbers of nodes to measure over, where there are `nodes`: 2, 4, 8 and so on, and all of them last."""
    doubled = [1 << power for power in range(1, nodes.bit_length()) if 1 << power <= nodes]
    return tuple(dict.fromkeys((*doubled, nodes)))


def compared(points: Sequence[CurvePoint]) -> list[dict[str, CollectiveResult]]:
    """For each point (a number of nodes), the results that are compared with those of the other points, by operation. They are of the
    largest payload that was measured at every point that has the operation or, where there is none, of the largest at the point with
    fewest nodes. Operations that move no data, such as barriers, are left out.
    """
    moved = [[one for one in point.results if one.busbw_bytes_per_second] for point in points]
    sizes: dict[str, set[int]] = {}
    for results in moved:
        for op in {one.op for one in results}:
            here = {one.bytes for one in results if one.op == op}
            sizes[op] = sizes.get(op, here) & here or sizes[op]
    payload = {op: max(found) for op, found in sizes.items()}
    return [{one.op: one for one in results if one.bytes == payload[one.op]} for results in moved]


def table(points: Sequence[CurvePoint]) -> Iterator[str]:
    """The figures as lines of text: a row for each number of nodes, a column for each op."""
    shown = compared(points)
    first: dict[str, CollectiveResult] = {}
    for found in shown:
        first = {**found, **first}
    ops = list(dict.fromkeys(one.op for point in points for one in point.results if one.op in first))  # fmt: skip
    if not ops:
        return
    yield HEADER
    names = " ".join(f"{f'{op} {format_size(first[op].bytes)}':>23}" for op in ops)
    yield f"{'nodes':>5} {'ranks':>5} {names}"
    for point, found in zip(points, shown, strict=True):
        cells = " ".join(f"{_cell(found.get(op), first[op]):>23}" for op in ops)
        ranks = next((one.ranks for one in point.results), 0)
        yield f"{point.nodes:>5} {ranks:>5} {cells}"


def as_csv(points: Iterable[CurvePoint]) -> str:
    """All results as CSV with a header, of each number of nodes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in points:
        for one in point.results:
            speeds = (one.algbw_bytes_per_second, one.busbw_bytes_per_second)
            median = one.time_seconds.median
            writer.writerow([point.nodes, one.ranks, one.op, one.bytes, median, *speeds])
    return text.getvalue()


def _cell(one: CollectiveResult | None, first: CollectiveResult) -> str:
    if one is None:
        return "-"
    speed = f"{one.busbw_bytes_per_second / 1e9:.2f}"
    if one is first:
        return speed
    change = one.busbw_bytes_per_second / first.busbw_bytes_per_second - 1
    return f"{speed} ({change:+.0%})"
