"""Reads how much memory the host, the control groups of the ranks and the ranks use, and how that grows. Runs in a worker thread.

All files are the kernel's own. Only `smaps_rollup` walks a process's memory under its lock, which may take long: it is read through
the reader child, seldom, and only where it is wanted.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from mldebug.core.model import Gap, Job
from mldebug.hardware.host_memory.parse import (
    Level,
    RankMemory,
    parse_group,
    parse_host,
    parse_pss,
    parse_rank,
)
from mldebug.hardware.host_memory.state import LevelState, NodeMemory, judged
from mldebug.hardware.host_memory.trend import LEAST, NOISE, SPACING, Trend
from mldebug_agents.system.host import Host, Paths
from mldebug_agents.watch.cgroups import Cgroup, CgroupMounts

PSS_EVERY = 60.0
PSS_BYTES = 4096
PSS_TIMEOUT = 1.0
MAX_RANKS = 1024
WAY_OUT = "let the agent's user read /sys/fs/cgroup"
FILES = {
    2: ("memory.max", "memory.current", "memory.stat", "memory.high", "memory.events"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "memory.oom_control"),
}
MAX_GROUPS = 64


class MemoryOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to read the memory of the node. `horizon`: alert where memory is forecast to be full within so many seconds.
    `pss`: also read the proportional set size (Pss) of each rank, which is slow.
    """

    jobs: tuple[Job, ...] = ()
    horizon: float = 1800.0
    pss: bool = False


class MemoryWatch:
    """Reads memory of the host, of cgroups and of ranks, and keeps trends. `least`: seconds of readings that a forecast needs.
    `spacing`: seconds between two readings of a trend.
    """

    def __init__(self, host: Host, reader: Paths, clock: Callable[[], float] = time.monotonic, *, least: float = LEAST, spacing: float = SPACING) -> None:  # fmt: skip
        self._host = host
        self._reader = reader
        self._clock = clock
        self._new = partial(Trend, least, spacing)
        self._levels: dict[tuple[str, str, int], Trend] = {}
        self._ranks: dict[tuple[int, int], Trend] = {}
        self._pss: dict[int, int] = {}
        self._pss_at = -PSS_EVERY

    def look(self, order: MemoryOrder) -> NodeMemory:
        """Read the memory of the host, the cgroups and the ranks of these jobs once, in bytes; what cannot be read is listed in
        `gaps` with the reason.
        """
        now = self._clock()
        pids = [rank.pid for job in order.jobs for rank in job.ranks][:MAX_RANKS]
        self._share(pids, order, now)
        ranks = tuple(one for job in order.jobs for one in self._of(job, now))
        groups = groups_of(self._host, pids)
        levels = self._limits(groups)
        states = tuple(self._state(one, order.horizon, now) for one in levels)
        wanted = {(level.scope, level.name, level.limit) for level in levels}
        self._levels = {key: trend for key, trend in self._levels.items() if key in wanted}
        processes = {(rank.pid, rank.start_ticks) for job in order.jobs for rank in job.ranks}
        self._ranks = {key: trend for key, trend in self._ranks.items() if key in processes}
        gaps = tuple(self._closed(groups))
        return NodeMemory(at=self._host.clock(), levels=states, ranks=ranks, unread=len(pids) - len(ranks), gaps=gaps)  # fmt: skip

    def _limits(self, groups: Iterable[Cgroup]) -> list[Level]:
        found = [parse_host(self._host.node_text("meminfo"))]
        found += [self._group(group) for group in groups]
        return [one for one in found if one is not None]

    def _closed(self, groups: Iterable[Cgroup]) -> Iterator[Gap]:
        """A limit that may not be read is not the same as none."""
        for group in groups:
            paths = (f"{group.folder}/{name}" for name in FILES[group.version][:2])
            if why := next((why for path in paths if (why := self._host.denied(path))), ""):
                yield Gap(what=f"memory of cgroup {group.name}", reason=why, way_out=WAY_OUT)

    def _group(self, group: Cgroup) -> Level | None:
        files = {name: self._host.kernel_text(f"{group.folder}/{name}") for name in FILES[group.version]}  # fmt: skip
        return parse_group(group.version, group.name, files)

    def _state(self, level: Level, horizon: float, now: float) -> LevelState:
        trend = self._levels.setdefault((level.scope, level.name, level.limit), self._new())
        trend.add(now, level.used)
        return judged(level, trend.growth(NOISE * level.limit), horizon)

    def _of(self, job: Job, now: float) -> Iterable[RankMemory]:
        for rank in job.ranks[:MAX_RANKS]:
            one = parse_rank(self._host.text(rank.pid, "status"))
            if one is None:
                continue
            trend = self._ranks.setdefault((rank.pid, rank.start_ticks), self._new())
            trend.add(now, one.own)
            fields = {"run": job.id, "rank": rank.rank, "growth": trend.growth(1 << 20)}
            yield msgspec.structs.replace(one, **fields, pss=self._pss.get(rank.pid))

    def _share(self, pids: list[int], order: MemoryOrder, now: float) -> None:
        if not order.pss:
            self._pss = {}
        elif now - self._pss_at >= PSS_EVERY:
            self._pss_at = now
            paths = {f"{self._host.proc}/{pid}/smaps_rollup": pid for pid in pids}
            read = self._reader.read_many(list(paths), max_bytes=PSS_BYTES, timeout=PSS_TIMEOUT)
            texts = {paths[path]: data for path, data in read.items() if isinstance(data, bytes)}
            shares = {pid: parse_pss(data.decode(errors="replace")) for pid, data in texts.items()}
            self._pss = {pid: share for pid, share in shares.items() if share is not None}


def groups_of(host: Host, pids: Iterable[int]) -> list[Cgroup]:
    """The memory control groups of these processes and all groups above them, each once; at most `MAX_GROUPS`."""
    mounts = CgroupMounts(host, "memory")
    return list(dict.fromkeys(group for pid in pids for group in mounts.of(pid)))[:MAX_GROUPS]
