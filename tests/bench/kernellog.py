"""A storm in the kernel's log: 800,000 Xid lines of 29 texts through the source, as rounds of the agent read them.

What counts is that a round stays short, that memory does not grow, and that the count is exact.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.table import Row, show
from mldebug_agents.hardware.kernel_log import KernelLogSource

LINES = int(os.environ.get("MLDEBUG_BENCH_LINES", "800000"))
TEXTS = 29
XID = "4,{n},{micros},-;NVRM: Xid (PCI:0000:db:00): 95, pid=7194, name=python3, Uncontained: LTC TAG (0x{text:x},0x0). RST: Yes\n"
OTHER = "6,{n},{micros},-;audit: type=1400 audit(1.5:{n}): apparmor=DENIED operation=open profile=x name=y pid={n}\n"


def storm(path: Path, line: str) -> None:
    """Lines of the last minute."""
    first = time.monotonic() - 60
    with path.open("w") as file:
        for n in range(LINES):
            micros = int((first + 60 * n / LINES) * 1e6)
            file.write(line.format(n=n, micros=micros, text=n % TEXTS))


def resident() -> int:
    """Bytes of this process."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def rows(path: Path) -> Iterator[Row]:
    """Both kinds of storm: one that is an event, and one that concerns nobody."""
    for name, line, wanted in (("Xids", XID, LINES), ("lines of others", OTHER, 0)):
        storm(path, line)
        source = KernelLogSource(str(path))
        before, cpu, rounds, longest, behind = resident(), time.process_time(), 0, 0.0, True
        while behind:
            news = source.read()
            rounds, longest, behind = rounds + 1, max(longest, news.seconds), news.behind
        cpu = time.process_time() - cpu
        grown = resident() - before
        source.close()
        counted = sum(one.count for one in news.counts.xids)
        rate = f"{LINES / cpu / 1e3:,.0f} k lines/s, {rounds} rounds"
        yield Row(f"{LINES:,} {name}: in a second of CPU", rate)
        yield Row(f"{name}: longest round", f"{longest * 1e3:.0f} ms", "≤ 400 ms", longest <= 0.4)
        yield Row(f"{name}: memory", f"+{grown / (1 << 20):.1f} MiB", "≤ 8 MiB", grown <= 8 << 20)
        yield Row(f"{name}: counted", f"{counted:,}", f"{wanted:,}", counted == wanted)
        yield Row(f"{name}: events", f"{len(news.bursts)}")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        show(f"a storm of {LINES:,} lines in the kernel's log", rows(Path(folder) / "kmsg"))


if __name__ == "__main__":
    main()
