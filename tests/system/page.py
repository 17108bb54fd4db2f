"""The table of docs/rights.md: who looks (columns), what he reaches (rows), and what the page says of each cell."""

import itertools
from pathlib import Path

from system.lending import OWNER, UNIT, VISITOR, Column

DOCS = Path(__file__).parents[2] / "docs/rights.md"
NO = "\N{EN DASH}"


COLUMNS = {
    "same user and group": Column(OWNER),
    "nothing": Column(VISITOR),
    "`SYS_PTRACE`": Column(VISITOR, ("sys_ptrace",)),
    "+ `DAC_READ_SEARCH`": Column(VISITOR, ("sys_ptrace", "dac_read_search")),
    "**the unit**: + `SYSLOG`": Column(VISITOR, UNIT),
    "unit + `KILL`": Column(VISITOR, (*UNIT, "kill")),
    "unit + `DAC_OVERRIDE`": Column(VISITOR, (*UNIT, "dac_override")),
    "unit + `SYS_ADMIN`": Column(VISITOR, (*UNIT, "sys_admin")),
    "root": Column(0),
}
ROWS = {
    "state, CPU time, parent (`stat`, `status`)": "state",
    "command line": "cmdline",
    "wchan": "wchan",
    "mapped files (`maps`)": "maps",
    "memory (`process_vm_readv`)": "memory",
    "Python stacks, `py-spy dump --nonblocking`": "py-spy",
    "C stacks, `py-spy dump --native`": "py-spy-native",
    "`pystack remote --no-block`": "pystack",
    "system call with arguments": "syscall",
    "open files (`fd`)": "fd",
    "I/O counters (`io`)": "io",
    "environment: **finding the ranks**": "environ",
    "a log of mode 0600 through `/proc/PID/root`": "root",
    "a log of mode 0600 by its path": "log",
    "kernel log (`/dev/kmsg`): Xid and out-of-memory lines": "kmsg",
    "kernel stack (`stack`)": "stack",
    "signals: undoing a stop that a tool left behind": "signal",
    "writing the job's FIFO: Flight Recorder on demand": "fifo",
    "the hook's record: steps and phases": "hook-record",
    "Python stacks by the hook's signal": "hook-stacks",
    "Flight Recorder by the hook's signal": "hook-flight",
    "entering the job's network namespace": "netns",
}


def documented() -> dict[str, dict[str, bool]]:
    """Row -> column -> yes, as the page says."""
    lines = DOCS.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| rung |"))
    table = list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    rows = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}
    assert {cell for row in rows.values() for cell in row.values()} == {"yes", NO}
    return {name: {who: cell == "yes" for who, cell in row.items()} for name, row in rows.items()}


def expected(column: str) -> dict[str, bool]:
    """What the page says of one column, by the names that rungs.py uses; of a row that it lacks, nothing."""
    table = documented()
    return {rung: table[row][column] for row, rung in ROWS.items() if row in table}
