"""What a start of the command line costs: seconds of CPU of user and system, median of 15, sides alternating, beside Python and click alone."""

import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.table import Row, show

ROUNDS = 15
MLDEBUG = (sys.executable, "-m", "mldebug")
# What, its command line, and its budget in milliseconds (0: a floor)
STARTS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("Python alone", (sys.executable, "-c", "pass"), 0),
    ("Python with click", (sys.executable, "-c", "import click"), 0),
    ("mldebug --version", (*MLDEBUG, "--version"), 0),
    ("mldebug --help", (*MLDEBUG, "--help"), 100),
    ("mldebug status", (*MLDEBUG, "status"), 250),
    ("mldebug dump --help", (*MLDEBUG, "dump", "--help"), 250),
    ("mldebug reports list", (*MLDEBUG, "reports", "list"), 250),
)


def cpu(argv: Sequence[str]) -> float:
    """Milliseconds of CPU of one start and of all that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Print the table."""
    times: list[list[float]] = [[] for _ in STARTS]
    for _ in range(ROUNDS):
        for one, (_, argv, _) in zip(times, STARTS, strict=True):
            one.append(cpu(argv))
    medians = [statistics.median(one) for one in times]
    show(
        f"CPU of a start, median of {ROUNDS}",
        [
            Row(
                what,
                f"{took:.0f} ms",
                f"≤ {most} ms" if most else "",
                took <= most if most else None,
            )
            for (what, _, most), took in zip(STARTS, medians, strict=True)
        ],
    )


if __name__ == "__main__":
    main()
