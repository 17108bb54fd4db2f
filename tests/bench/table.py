"""What a benchmark has found: rows of what, measured, budget and whether it is met. All benchmarks print the same table.

Where $MLDEBUG_BENCH_OUT names a file, the rows are added to it too, one JSON object a line, so that `all.py` can show them
side by side.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUT = "MLDEBUG_BENCH_OUT"


@dataclass(frozen=True)
class Row:
    """One figure. `met` is None where there is no budget, or where the noise is too large to tell (`budget` says which)."""

    what: str
    measured: str
    budget: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """In one word."""
        if self.met is None:
            return "cannot tell" if self.budget else ""
        return "met" if self.met else "MISSED"


def show(title: str, rows: Iterable[Row]) -> None:
    """Print the rows, and hand them on."""
    found = list(rows)
    table = Table(title=title)
    for name in ("what", "measured", "budget", ""):
        table.add_column(name, no_wrap=name != "what")
    for row in found:
        table.add_row(row.what, row.measured, row.budget, row.verdict)
    Console(width=110).print(table)
    if OUT in os.environ:
        with Path(os.environ[OUT]).open("a") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in found)


def read(file: Path) -> list[Row]:
    """All rows that benchmarks have handed on."""
    return [Row(**json.loads(line)) for line in file.read_text().splitlines()]
