"""Measured collectives as rows for a terminal, as CSV, and as metrics for the textfile collector of node_exporter."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator

from mldebug.core.units import format_size
from mldebug.probes.collectives import CollectiveResult

HEADER = (
    f"{'op':<14} {'bytes':>8} {'ranks':>5} {'median':>9} {'min':>9} {'max':>9} {'p99':>9}"
    f" {'algbw':>8} {'busbw':>8}  values"
)
UNITS = f"{'':<14} {'':>8} {'':>5} {'':>9} {'':>9} {'':>9} {'':>9} {'GB/s':>8} {'GB/s':>8}"


def row(one: CollectiveResult) -> str:
    """One result as a row of text; GB are 10^9 bytes.

    With a single rank no bandwidth is shown, as no data travels.
    """
    time = one.time_seconds
    times = " ".join(
        f"{_time_words(each):>9}" for each in (time.median, time.min, time.max, time.p99)
    )
    found = (one.algbw_bytes_per_second, one.busbw_bytes_per_second)
    speeds = " ".join(f"{each / 1e9:>8.2f}" if one.ranks > 1 else f"{'-':>8}" for each in found)
    return (
        f"{one.op:<14} {format_size(one.bytes):>8} {one.ranks:>5} {times} {speeds}  {_values(one)}"
    )


def _time_words(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.3f} s"


def _values(one: CollectiveResult) -> str:
    if one.correct is None:
        return "-"
    bad = [str(each.rank) for each in one.per_rank if each.correct is False]
    return f"WRONG on rank {','.join(bad)}" if bad else "ok"


COLUMNS = (
    *("op", "bytes", "ranks", "min_seconds", "median_seconds", "max_seconds", "p99_seconds"),
    *("algbw_bytes_per_second", "busbw_bytes_per_second", "correct"),
)


def as_csv(results: Iterable[CollectiveResult]) -> str:
    """The results as CSV with a header; `correct` is empty where there was nothing to check."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        time = result.time_seconds
        right = "" if result.correct is None else str(result.correct).lower()
        speeds = (result.algbw_bytes_per_second, result.busbw_bytes_per_second)
        times = (time.min, time.median, time.max, time.p99)
        writer.writerow([result.op, result.bytes, result.ranks, *times, *speeds, right])
    return text.getvalue()


_LABELS = 'op="{0.op}",bytes="{0.bytes}",ranks="{0.ranks}"'


_FAMILIES: tuple[tuple[str, str, Callable[[CollectiveResult], float | None]], ...] = (
    ("mldebug_probe_collective_bus_bandwidth_bytes_per_second", "Bus bandwidth of a collective, by nccl-tests' factors, from the median time.", lambda one: one.busbw_bytes_per_second),
    ("mldebug_probe_collective_algorithm_bandwidth_bytes_per_second", "Payload of a collective by its median time.", lambda one: one.algbw_bytes_per_second),
    ("mldebug_probe_collective_median_seconds", "Median over repetitions of the slowest rank's time.", lambda one: one.time_seconds.median),
    ("mldebug_probe_collective_p99_seconds", "99th percentile over repetitions of the slowest rank's time.", lambda one: one.time_seconds.p99),
    ("mldebug_probe_collective_correct", "1 where all values were right, 0 where one was not; absent where there are none.", lambda one: None if one.correct is None else float(one.correct)),
)  # fmt: skip


_MEASURED = "mldebug_probe_collective_timestamp_seconds"


def as_textfile(results: Iterable[CollectiveResult], at: float) -> str:
    """The results as Prometheus text; `at`: unix time of the measurement, which shows how old a file is."""
    return "\n".join(_lines(tuple(results), at)) + "\n"


def _lines(results: tuple[CollectiveResult, ...], at: float) -> Iterator[str]:
    for name, help_text, value in _FAMILIES:
        yield f"# HELP {name} {help_text}"
        yield f"# TYPE {name} gauge"
        for one in results:
            found = value(one)
            if found is not None:
                yield f"{name}{{{_LABELS.format(one)}}} {found:.9g}"
    yield f"# HELP {_MEASURED} Unix time of the measurement."
    yield f"# TYPE {_MEASURED} gauge"
    yield f"{_MEASURED} {at:.3f}"
