"""`make bench`: all benchmarks but the soak and those of GPUs, one after the other, and one table of what was measured.

python tests/bench/all.py [NAME ...]   # effect, watch, latency ...
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.table import OUT, read, show

NAMES = (
    "starts",
    "run",
    "watch",
    "latency",
    "effect",
    "hook",
    "histories",
    "hookeffect",
    "logs",
    "kernellog",
    "flight",
    "node_captures",
    "peers",
    "announcements",
    "scrape",
    "series",
    "mounts",
    "trees",
    "probes",
    "fair_shares",
    "hub",
)


def main() -> None:
    """Run them, show the table, and name what missed its budget."""
    names, began = sys.argv[1:] or NAMES, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        file.touch()
        failed = [name for name in names if not ran(name, file)]
        rows = read(file)
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    python = platform.python_version()
    minutes = (time.monotonic() - began) / 60
    show(
        f"mldebug bench: {os.cpu_count()} cores, Linux {platform.release()}, Python {python},"
        f" load {load}, {minutes:.1f} min",
        rows,
    )
    missed = [row.what for row in rows if row.met is False]
    print("missed: " + "; ".join(missed) if missed else "no budget is missed")
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


def ran(name: str, file: Path) -> bool:
    """Run one; its rows come through the file."""
    script = Path(__file__).with_name(f"{name}.py")
    environment = {**os.environ, OUT: str(file)}
    return (
        subprocess.run([sys.executable, str(script)], env=environment, check=False).returncode == 0
    )


if __name__ == "__main__":
    main()
