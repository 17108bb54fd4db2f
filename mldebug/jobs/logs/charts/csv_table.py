"""Tables with a line for each step: `metrics.csv` of Lightning and its kin, `progress.csv` of Stable-Baselines3."""

import csv
from collections.abc import Iterator, Mapping

from mldebug.jobs.logs.charts.chart_parser import ChartParser, step_record
from mldebug.jobs.logs.records import LogRecord, number, whole

MAX_LINE = 64 << 10
MAX_COLUMNS = 1000
_STEP_COLUMNS = ("step", "global_step", "trainer/global_step", "iteration", "iter", "total_timesteps", "time/total_timesteps")  # fmt: skip


class CsvParser(ChartParser):
    """Parses `metrics.csv` of Lightning and similar tables: a line of column names, then a line for each step or evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] = ()
        self._dropping = False

    def restart(self) -> None:
        """The next bytes are the beginning of a file, where the names of the columns stand."""
        super().restart()
        self._names, self._dropping = (), False

    def preface(self, data: bytes) -> None:
        """Take the names of the columns from the first line."""
        line, end, _ = data.partition(b"\n")
        if end:
            self._names = tuple(name.strip() for name in _row(line))

    def resync(self, at: int = 0) -> None:
        """Go on at offset `at` of the file: the cut-off line is skipped. Column names that were read stay; without them the rows
        of this file are ignored.
        """
        names = self._names
        super().resync(at)
        self._names = names or (("",) if at else ())
        self._dropping = at > 0

    def _take(self) -> Iterator[LogRecord]:
        *complete, self._held = self._held.split(b"\n")
        if len(self._held) > MAX_LINE:
            self.oversized += 1
            self._held = b""
        if complete and self._dropping:
            del complete[0]
            self._dropping = False
        for line in complete:
            row = _row(line)
            if not row:
                continue
            self.lines += 1
            if not self._names:
                self._names = tuple(name.strip() for name in row)
                continue
            record = _of_row(dict(zip(self._names, row, strict=False)))
            if record is not None:
                yield record


def _row(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line[:MAX_LINE].decode(errors="replace").strip("\r")]), [])[
            :MAX_COLUMNS
        ]
    except csv.Error:
        return []


def _of_row(row: Mapping[str, str]) -> LogRecord | None:
    column = next((name for name in _STEP_COLUMNS if row.get(name, "").strip()), None)
    if column is None:
        return None
    step = whole(row[column].strip().removesuffix(".0"))
    values = {
        name: number(value) for name, value in row.items() if name != column and value.strip()
    }
    return step_record(step, values, "csv")
