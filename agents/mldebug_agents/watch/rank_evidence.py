"""Measures of one rank what may explain that it is slow, while its stack is sampled: files of the kernel alone, no process is stopped."""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from mldebug.core.redact import clean
from mldebug.diagnosis.classify.tables.kernel_waits import STORAGE_WAITS
from mldebug.goodput.evidence import RankEvidence
from mldebug_agents.jobs.ranks.rank_processes import ProcessTree
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from mldebug_agents.watch.cgroups import Cgroup, CgroupMounts

LOOKS = 5.0  # a second at what it waits for in the kernel
MAX_CHILDREN = 8  # processes of a rank that are looked at
BUSY = 0.8  # of the time on a CPU, from which on a child is so nearly all the time
CROWDED = 0.05  # of the time without a free CPU, from which on it is looked for who has it
MAX_PIDS = 20_000
MAX_NAME = 40  # characters of a program, which may call itself anything
PERIOD_DEFAULT = 100_000


class KernelCounters(NamedTuple):
    """Counters of the kernel at one moment. `throttled`: seconds by folder of a control group; `stalled`: seconds on the node."""

    at: float
    throttled: dict[str, float]
    major_faults: int
    stalled: float
    delayed: float


class FileWaits(NamedTuple):
    """How often a rank was found waiting for a file: `waited` times in `looks` looks. `mount`: the mount of the file for
    which it was most often found waiting, and `device` its device number. `worker`: pid of the child
    that was found waiting most often, 0 where it was the rank itself; `busy`: how many of its children were on a CPU nearly all the time.
    """

    waited: int
    looks: int
    mount: str
    worker: int = 0
    busy: int = 0
    device: str = ""


class _WaitedFor(NamedTuple):
    """A mount for which a process waits: `/data (nfs4)`, and its device number, `0:52`."""

    name: str = ""
    device: str = ""


NO_MOUNT = _WaitedFor()


class EvidenceReader:
    """Reads what the kernel counts of ranks. May be used from any thread."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def counters(self, pid: int) -> KernelCounters:
        """The counters of a process, its control groups and the node now; what cannot be read is 0."""
        fields = self._host.text(pid, "stat").rpartition(")")[2].split()
        return KernelCounters(
            at=time.monotonic(),
            throttled={one.folder: self._throttled(one) for one in self._groups(pid)},
            major_faults=_integer(fields[9]) if len(fields) > 9 else 0,
            stalled=_pressure(self._host.node_text("pressure/memory")),
            delayed=procfs.parse_schedstat(self._host.text(pid, f"task/{pid}/schedstat")),
        )

    def file_waits(self, pids: Sequence[int], seconds: float) -> FileWaits:
        """For `seconds`, look again and again whether one of these processes, all of one rank, waits for a file in the
        kernel, and return how often it was so.
        """
        begun, looks = time.monotonic(), 0
        until, waited = begun + seconds, 0
        mounts, waiting = Counter[_WaitedFor](), Counter[int]()
        pids = pids[: 1 + MAX_CHILDREN]
        used = {pid: self._cpu_seconds(pid) for pid in pids[1:]}
        while time.monotonic() < until:
            looks += 1
            stuck = next((one for one in pids if self._waits_for_file(one)), None)
            if stuck is not None:
                waited += 1
                mounts[self._mount(stuck)] += 1
                waiting[stuck] += 1
            time.sleep(1 / LOOKS)
        named = next((one for one, _ in mounts.most_common() if one.name), NO_MOUNT)
        most = next((pid for pid, _ in waiting.most_common(1)), 0)
        worker = 0 if most in pids[:1] else most
        enough = BUSY * (time.monotonic() - begun)
        busy = sum(0 < enough <= self._cpu_seconds(pid) - used[pid] for pid in used)
        return FileWaits(waited, looks, named.name, worker, busy, named.device)

    def evidence(
        self, pid: int, before: KernelCounters, files: FileWaits, ours: Collection[int]
    ) -> RankEvidence:
        """Return why the rank with this pid may be slow: CPU limits, page faults, memory pressure and file waits since the
        counters `before` were read. `files`: how often it was found waiting for a file. `ours`: pids of the same job,
        which are not named as neighbours on its CPUs.
        """
        now = self.counters(pid)
        seconds = max(0.001, now.at - before.at)
        throttled = (now.throttled[one] - before.throttled.get(one, 0.0) for one in now.throttled)
        status = self._host.text(pid, "status")
        cpus = _cpu_set(_field(status, "Cpus_allowed_list"))
        crowded = (now.delayed - before.delayed) / seconds >= CROWDED
        return RankEvidence(
            throttled=min(1.0, max(0.0, max(throttled, default=0.0) / seconds)),
            quota=min((q for one in self._groups(pid) if (q := self._quota(one))), default=None),
            cpus=len(cpus) or None,
            neighbour=self._neighbour(cpus, ours) if crowded else "",
            major_faults=max(0, now.major_faults - before.major_faults) / seconds,
            swapped=_integer(_field(status, "VmSwap").partition(" ")[0]) * 1024,
            memory_pressure=min(1.0, max(0.0, (now.stalled - before.stalled) / seconds)),
            file_waiting=files.waited / files.looks if files.looks else 0.0,
            mount=files.mount,
            mount_device=files.device,
            worker=files.worker,
            busy_workers=files.busy,
        )

    # --- control groups ----------------------------------------------------------------------------

    def _groups(self, pid: int) -> list[Cgroup]:
        return list(CgroupMounts(self._host, "cpu").of(pid))

    def _throttled(self, group: Cgroup) -> float:
        """Seconds in which a group has had no CPU time left."""
        text = self._host.kernel_text(f"{group.folder}/cpu.stat")
        values = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        if group.version == 2:
            return _integer(values.get("throttled_usec", "")) / 1e6
        return _integer(values.get("throttled_time", "")) / 1e9

    def _quota(self, group: Cgroup) -> float | None:
        """CPUs that a group may use; None: as many as there are."""
        if group.version == 2:
            words = self._host.kernel_text(f"{group.folder}/cpu.max").split()
            quota, period = words if len(words) == 2 else ("max", "")
        else:
            quota = self._host.kernel_text(f"{group.folder}/cpu.cfs_quota_us").strip()
            period = self._host.kernel_text(f"{group.folder}/cpu.cfs_period_us").strip()
        limit = _integer(quota)
        return limit / (_integer(period) or PERIOD_DEFAULT) if limit > 0 else None

    # --- files, and who else runs ------------------------------------------------------------------

    def _waits_for_file(self, pid: int) -> bool:
        wchan = procfs.parse_wchan(self._host.text(pid, "wchan"))
        return bool(wchan) and STORAGE_WAITS.fullmatch(wchan.partition(".")[0]) is not None

    def _cpu_seconds(self, pid: int) -> float:
        stat = procfs.parse_stat(self._host.text(pid, "stat"))
        return stat.cpu_seconds if stat is not None else 0.0

    def _mount(self, pid: int) -> "_WaitedFor":
        """The mount of the file that the call is about, in which the process stands; `NO_MOUNT` where it is about none."""
        call = procfs.parse_syscall(self._host.text(pid, "syscall"))
        if call is None or not call[1]:
            return NO_MOUNT
        path = self._host.link(pid, f"fd/{call[1][0]}")
        found = self._host.mount_at(pid, path) if procfs.is_stored(path) else None
        return _WaitedFor(f"{found.point} ({found.fstype})", found.device) if found else NO_MOUNT

    def _neighbour(self, cpus: Collection[int], ours: Collection[int]) -> str:
        """The program of another job that has used most CPU time of those running on these CPUs now; "" for none. What this agent
        has started is none: it samples the ranks.
        """
        running = max(self._running(cpus, {*ours, *self._agent()}), default=None)
        return f"{clean(running[1], MAX_NAME)} (pid {running[2]})" if running is not None else ""

    def _agent(self) -> Iterator[int]:
        """This process and its descendants, as /proc numbers them."""
        own = procfs.parse_stat(self._host.self_text("stat"))
        if own is not None:
            yield own.pid
            yield from ProcessTree(self._host.briefs()).descendants(own.pid)

    def _running(
        self, cpus: Collection[int], ours: Collection[int]
    ) -> Iterator[tuple[float, str, int]]:
        for pid in self._host.pids()[:MAX_PIDS]:
            text = self._host.text(pid, "stat")
            stat, fields = procfs.parse_stat(text), text.rpartition(")")[2].split()
            if stat is None or stat.state != "R" or pid in ours or len(fields) < 37:
                continue
            if _integer(fields[36]) in cpus and not stat.flags & procfs.KERNEL_THREAD:
                yield stat.cpu_seconds, stat.name, pid


def _cpu_set(text: str) -> frozenset[int]:
    """The CPUs of a list like `0-3,8`."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d{1,5})(?:-(\d{1,5}))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _pressure(text: str) -> float:
    """Seconds in which some task has waited for memory, of /proc/pressure/memory."""
    found = re.search(r"^some .*total=(\d{1,20})", text, re.MULTILINE)
    return int(found[1]) / 1e6 if found else 0.0


def _field(text: str, key: str) -> str:
    found = re.search(rf"^{key}:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def _integer(text: str) -> int:
    return int(text) if text.isdecimal() else 0
