"""A real NFS server and client of one kernel, and a rank that reads over it: what the agent's code reads of the client's own counters
while the link is as ever, while it is slow, and afterwards.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import inside

from mldebug.config.schema import Config
from mldebug.core.model import Job, RankIdentity
from mldebug_agents.agent.children import CHILDREN
from mldebug_agents.storage.filesystems.latency import LatencyCollector
from mldebug_agents.storage.filesystems.mounts import used_mounts
from mldebug_agents.storage.slow_mounts import slow_by_device
from mldebug_agents.system.context import Context, open_context
from mldebug_agents.watch.rank_evidence import EvidenceReader

DELAY = "25ms"  # each way
SERVER, FOREVER = Path("/proc/fs/nfsd"), 2**31 - 1
FLAGS = (
    0x2000 | 0x400 | 0x2 | 0x10
)  # of an export: by number, no check of subtrees, from any port, answered before it is on disk
LEARNT, SLOW = 22, 5  # looks
MORE = 8  # looks for a row that is not there yet


def serve(folder: Path) -> Path:
    """Serve a folder by the kernel's own NFS 4.1 over the loopback interface, and mount it. What mountd tells the kernel is told it here,
    for the one client: its address, the export, and the file handle of the root.
    """
    inside.load("nfsd", "nfsv4", "sch_netem")
    inside.run("mount", "-t", "nfsd", "nfsd", str(SERVER))
    for name, words in (
        ("fs/nfsd/versions", "-2 -3 +4 +4.1"),
        ("fs/nfsd/nfsv4leasetime", "10"),
        ("fs/nfsd/nfsv4gracetime", "10"),
        ("net/rpc/auth.unix.ip/channel", f"nfsd 127.0.0.1 {FOREVER} local"),
        ("net/rpc/nfsd.export/channel", f"local {folder} {FOREVER} {FLAGS} {inside.NOBODY} {inside.NOBODY} 0"),
        ("net/rpc/nfsd.fh/channel", f"local 1 \\x00000000 {FOREVER} {folder}"),
        ("fs/nfsd/portlist", "tcp 2049"),
        ("fs/nfsd/threads", "4"),
    ):  # fmt: skip
        Path("/proc", name).write_text(f"{words}\n")
    place = Path("/mnt/data sets")
    place.mkdir()
    options = "addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.1,sec=sys,actimeo=1"
    inside.run("mount", "-i", "-t", "nfs4", "-o", options, "nfs01:/", str(place))
    return place


class Rank:
    """A process that reads when it is told to."""

    def __init__(self, file: Path) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("reader.py")), str(file)]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        )
        self.pid = self._process.pid

    def read(self) -> float:
        """Have it read once; how many milliseconds each block took it, by its own clock."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def sentences(latency: LatencyCollector) -> list[str]:
    """The sentences of what is slow."""
    return [one.sentence for one in latency.alarms()]


def looks(latency: LatencyCollector, rank: Rank, job: Job, moments: Iterable[int]) -> list[Any]:
    """What is told after each look, and how long the rank's reads took."""
    found = []
    for look in moments:
        took = rank.read()
        latency.look(15.0 * look, [job])
        found.append([took, sentences(latency)])
    return found


def row_of(latency: LatencyCollector, mount: str) -> Any:
    """What is shown of this mount, None where nothing is."""
    rows = latency.status().get("latency", ())
    return next((one for one in rows if one["mount"] == mount), None)


def waits(context: Context, rank: Rank) -> float:
    """How often the agent finds the rank waiting for a file while it reads. For which one this kernel does not show: it has no /proc/PID/syscall."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(rank.read)
        found = EvidenceReader(context.host).file_waits([rank.pid], 1.0)
        reading.result()
    return found.waited / found.looks


def find() -> Any:
    """All of it."""
    served = inside.mount("/dev/ubda", "served")
    (served / "shard").write_bytes(os.urandom(8 << 20))
    data = serve(served)
    rank = Rank(data / "shard")
    identity = RankIdentity(rank=0, world_size=1, pid=rank.pid, uid=0)
    job = Job(id="j", name="t", launcher="x", world_size=1, ranks=(identity,))
    with open_context(Config, CHILDREN) as context:
        latency = LatencyCollector(
            context, lambda: tuple(used_mounts(context.host, [job], ()).values())
        )
        usual = looks(latency, rank, job, range(LEARNT))
        inside.run("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", DELAY)
        slow = looks(latency, rank, job, range(LEARNT, LEARNT + SLOW))
        device = os.stat(data).st_dev
        by_device, waiting = slow_by_device(latency.alarms()), waits(context, rank)
        inside.run("tc", "qdisc", "del", "dev", "lo", "root")
        after = looks(latency, rank, job, range(LEARNT + SLOW, LEARNT + SLOW + 3))
        row = row_of(latency, str(data))
        for more in range(MORE):  # a read that a crowded machine gave up is made again
            if row is None:
                latency.look(15.0 * (LEARNT + SLOW + 3 + more), [job])
                row = row_of(latency, str(data))
        assert row is not None, latency.status()
    return {
        "usual": usual, "slow": slow, "after": after, "row": row["line"],
        "device": f"{os.major(device)}:{os.minor(device)}", "by_device": by_device,
        "waiting": waiting, "mountstats": Path(f"/proc/{rank.pid}/mountstats").read_text(),
    }  # fmt: skip


if __name__ == "__main__":
    inside.main(find)
