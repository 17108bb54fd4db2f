"""Measured collectives as a table for spreadsheets."""

import csv
import io
from collections.abc import Iterable

from mldebug.probes.collectives import Collective

COLUMNS = (
    *("op", "bytes", "ranks", "min_seconds", "median_seconds", "max_seconds", "p99_seconds"),
    *("algbw_bytes_per_second", "busbw_bytes_per_second", "correct"),
)


def as_csv(results: Iterable[Collective]) -> str:
    """A header and one line for each result; `correct` is empty where there was nothing to check."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in results:
        time = one.time_seconds
        right = "" if one.correct is None else str(one.correct).lower()
        speeds = (one.algbw_bytes_per_second, one.busbw_bytes_per_second)
        times = (time.min, time.median, time.max, time.p99)
        writer.writerow([one.op, one.bytes, one.ranks, *times, *speeds, right])
    return text.getvalue()
