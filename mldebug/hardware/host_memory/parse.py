"""Parsers of the kernel's files about memory.

All figures are bytes. Pure: an incomplete text gives None, or what it holds.

Memory that the kernel can reclaim is not counted as used: page cache, pages of mapped files,
reclaimable slab. Shared memory counts as used: it can go nowhere but to swap. Sources: proc(5),
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

import re

from mldebug.core.model import MeasuredData

NO_LIMIT = 1 << 60  # version 1 says so by a number like this
_ROW = re.compile(r"^(\w[\w()]{0,60}):?\s+(\d{1,20})(?: kB)?", re.MULTILINE)
_TAKEN_BACK = {
    2: ("inactive_file", "active_file", "slab_reclaimable"),
    1: ("total_inactive_file", "total_active_file"),
}


class RankMemory(MeasuredData, frozen=True, kw_only=True):
    """Memory of one process, in bytes.

    `anon` and `shmem` are its own; `file` is mapped, and can be dropped and read again, so it is no
    leak.
    """

    run: str = ""
    rank: int = -1
    anon: int = 0
    shmem: int = 0
    file: int = 0
    swap: int = 0
    pss: int | None = None  # its share of all that it maps; None: not asked for, or not readable
    growth: float | None = None  # bytes a second of anon, shmem and swap; None: not known yet

    @property
    def own(self) -> int:
        """Bytes that the process holds and the kernel cannot drop: anonymous, shared and swapped memory."""
        return self.anon + self.shmem + self.swap


class Level(MeasuredData, frozen=True, kw_only=True):
    """A limit of memory and how much of it is used, in bytes: the host's own, or that of a cgroup."""

    scope: str  # host, cgroup
    name: str  # "" for the host; the path of the group
    limit: int
    used: int  # without what the kernel takes back
    cached: int = 0  # what it takes back
    high: int | None = None  # from where on a group of version 2 is slowed down
    oom_kills: int | None = None  # so far, as the group tells


def table(text: str) -> dict[str, int]:
    """Lines such as `name 12` and `Name: 12 kB` as numbers by name. Units are ignored."""
    return {name: int(value) for name, value in _ROW.findall(text)}


def parse_host(meminfo: str) -> Level | None:
    """The host's memory from the text of /proc/meminfo; None where total or available memory is missing."""
    rows = table(meminfo)
    total, free = rows.get("MemTotal", 0) << 10, rows.get("MemAvailable", -1) << 10
    if total <= 0 or free < 0:
        return None
    cached = max(0, free - (rows.get("MemFree", 0) << 10))
    return Level(scope="host", name="", limit=total, used=total - free, cached=cached)


def parse_rank(status: str) -> RankMemory | None:
    """A process's memory from the text of /proc/PID/status; None for a process that is gone, or on a kernel before 4.5."""
    rows = table(status)
    if "RssAnon" not in rows:
        return None
    anon, file, shmem, swap = (rows.get(name, 0) << 10 for name in ("RssAnon", "RssFile", "RssShmem", "VmSwap"))  # fmt: skip
    return RankMemory(anon=anon, file=file, shmem=shmem, swap=swap)


def parse_pss(rollup: str) -> int | None:
    """Bytes of proportional set size (Pss) from the text of /proc/PID/smaps_rollup; None where it has no Pss line."""
    found = table(rollup).get("Pss")
    return None if found is None else found << 10


def parse_group(version: int, name: str, files: dict[str, str]) -> Level | None:
    """The limit and use of one cgroup.

    `version`: 1 or 2; `files`: texts of its memory files, by name. None where it has no limit or no
    usage.
    """
    old = version == 1
    limit = _number(files.get("memory.limit_in_bytes" if old else "memory.max", ""))
    current = _number(files.get("memory.usage_in_bytes" if old else "memory.current", ""))
    if limit is None or current is None or limit >= NO_LIMIT:
        return None
    rows = table(files.get("memory.stat", ""))
    cached = min(current, sum(rows.get(one, 0) for one in _TAKEN_BACK[version]))
    events = table(files.get("memory.oom_control" if old else "memory.events", ""))
    return Level(
        scope="cgroup",
        name=name,
        limit=limit,
        used=current - cached,
        cached=cached,
        high=None if old else _number(files.get("memory.high", "")),
        oom_kills=events.get("oom_kill"),
    )


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
