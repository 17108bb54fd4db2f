"""Parses what GPFS's own tool prints: `mmpmon -p` with the requests `fs_io_s` and `rhist s` (IBM Storage Scale, "Monitoring with mmpmon").

Pure. `fs_io_s` counts operations and bytes of each filesystem, without their times. Times are in the request histogram alone, of the
node's filesystems together, where the site has switched that on (`rhist on`, which costs the daemon something: nothing here does it).
"""

import re
from collections.abc import Iterator, Mapping

from mldebug.storage.filesystems.operation_counters import (
    MAX_TEXT,
    METADATA,
    OPEN,
    READ,
    WRITE,
    Counts,
    OperationCount,
)

REQUESTS = b"fs_io_s\nrhist s\n"
_PAIR = re.compile(r"(_[a-z]{1,8}_) (\S{1,256})", re.ASCII | re.IGNORECASE)
_LATENCY = re.compile(
    r"^_L_ (\d{1,9}(?:\.\d{1,3})?) (\d{1,9}(?:\.\d{1,3})?) _NL_ (\d{1,18})$", re.ASCII
)
_KINDS = {"r": READ, "w": WRITE}


def mmpmon_counts(text: str) -> dict[str, Counts]:
    """The counts of each GPFS filesystem, by its device name (`gpfs0`).

    They have no times, but for reads and writes of the only filesystem of a node whose request histogram is on: those are the middles
    of the histogram's ranges.
    """
    lines = text[:MAX_TEXT].splitlines()
    found = dict(_filesystems(lines))
    times = _times(lines)
    if len(found) != 1 or not times:
        return found
    ((name, counts),) = found.items()
    timed = {
        kind: OperationCount(*times[kind], one.bytes) if kind in times else one
        for kind, one in counts.items()
    }
    return {name: timed}


def _filesystems(lines: list[str]) -> Iterator[tuple[str, Counts]]:
    for line in lines:
        if not line.startswith("_fs_io_s_ "):
            continue
        fields = dict(_PAIR.findall(line))
        numbers = {
            key: int(one) for key, one in fields.items() if one.isdecimal() and len(one) <= 20
        }
        if (
            fields.get("_rc_") != "0"
            or "_fs_" not in fields
            or not {"_br_", "_rdc_"} <= numbers.keys()
        ):
            continue
        yield (
            fields["_fs_"],
            {
                READ: _count(numbers, "_rdc_", of="_br_"),
                WRITE: _count(numbers, "_wc_", of="_bw_"),
                OPEN: _count(numbers, "_oc_"),
                METADATA: _count(numbers, "_cc_", "_dir_", "_iu_"),
            },
        )


def _count(numbers: Mapping[str, int], *keys: str, of: str = "") -> OperationCount:
    operations = sum(numbers.get(key, 0) for key in keys)
    return OperationCount(operations, 0.0, numbers.get(of, 0), timed=False)


def _times(lines: list[str]) -> dict[str, tuple[int, float]]:
    """Of reads and writes: how many, and how many seconds together."""
    found: dict[str, tuple[int, float]] = {}
    kind = ""
    for line in lines:
        if line.startswith("_"):
            kind = kind if line.startswith(("_R_", "_L_")) else _kind(line)
        latency = _LATENCY.match(line.strip())
        if latency is None or not kind:
            continue
        low, high, number = float(latency[1]), float(latency[2]), int(latency[3])
        middle = (low + high) / 2 if high > low else low  # the last range has no end
        count, seconds = found.get(kind, (0, 0.0))
        found[kind] = count + number, seconds + number * middle / 1000
    return found


def _kind(line: str) -> str:
    fields = dict(_PAIR.findall(line)) if line.startswith("_rhist_ ") else {}
    return _KINDS.get(fields.get("_k_", ""), "") if fields.get("_rc_") == "0" else ""
