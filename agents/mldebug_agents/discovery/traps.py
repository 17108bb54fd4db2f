"""The known traps of the jobs on this node. Versions are read once for each job, node facts every ten minutes.

A job with many ranks costs one read where they share a file system, and no read takes longer than `TIMEOUT`: what does not
answer stays unknown.
"""

import errno
import time
from collections.abc import Callable, Collection, Mapping

from mldebug.model import Job, RankIdentity
from mldebug.traps.facts import NodeFacts, Software
from mldebug.traps.finding import Ran, Trap, find_traps
from mldebug.traps.nccllog import NcclSaid
from mldebug_agents.discovery.nodefacts import TIMEOUT, read_node
from mldebug_agents.discovery.programs import (
    Libraries,
    Program,
    header_file,
    header_version,
    numbered,
    software,
    version_file,
)
from mldebug_agents.host import Host
from mldebug_agents.reader import Piece, Reader, Unreadable

AGAIN = 600.0  # seconds between two looks at the node
MAX_VERSION_FILE = 64 << 10  # PyTorch's has some hundred bytes
MAX_HEADER = 8 << 10  # bytes of nccl.h: the version stands at its top
MAX_READS = 8  # different places of one job

Key = tuple[str, Libraries]  # mount namespace


class TrapFinder:
    """Keep one: it remembers what was read."""

    def __init__(
        self, host: Host, reader: Reader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._reader = reader
        self._clock = clock
        self._known: dict[str, dict[Key, Software]] = {}  # by job
        self._node = NodeFacts()
        self._due = -AGAIN

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all jobs but these."""
        self._known = {job: known for job, known in self._known.items() if job in jobs}

    def of(
        self,
        job: Job,
        programs: Mapping[int, Program],
        said: NcclSaid | None = None,
        *,
        read: bool = True,
        gpu: bool | None = None,
    ) -> tuple[Trap, ...]:
        """The traps of one job; `gpu`: has a rank of it a GPU open? Without `read` no file is opened: it may hang."""
        ran = [
            Ran(
                rank=rank.rank,
                software=self._software(job, rank, programs[rank.pid].libraries, read=read),
                settings=programs[rank.pid].settings,
            )
            for rank in job.ranks
            if rank.pid in programs
        ]
        return find_traps(job, ran, self._node_facts() if read else self._node, said, gpu)

    def _node_facts(self) -> NodeFacts:
        if self._clock() >= self._due:
            self._node, self._due = read_node(self._host, self._reader), self._clock() + AGAIN
        return self._node

    def _software(self, job: Job, rank: RankIdentity, loaded: Libraries, *, read: bool) -> Software:
        """From memory, or by reading; several ranks mostly share what is read for one."""
        known = self._known.setdefault(job.id, {})
        key = (self._host.link(rank.pid, "ns/mnt") or str(rank.pid), loaded)
        if key in known:
            return known[key]
        if not read or loaded == Libraries() or len(known) >= MAX_READS:
            return Software(nccl=numbered(loaded.nccl))
        found, final = self._read(rank.pid, loaded)
        if final:
            known[key] = found
        return found

    def _read(self, pid: int, loaded: Libraries) -> tuple[Software, bool]:
        """What the files say, and whether that is all there is to know."""
        root = self._host.root_of(pid)
        text: bytes | Unreadable = b""
        if loaded.torch:
            path = f"{root}{version_file(loaded.torch)}"
            text = self._reader.read_file(path, max_bytes=MAX_VERSION_FILE, timeout=TIMEOUT)
        nccl, head = numbered(loaded.nccl), b""
        if loaded.nccl and not nccl and not _stuck(text):
            path = f"{root}{header_file(loaded.nccl)}"
            piece = self._reader.read_from(path, 0, max_bytes=MAX_HEADER, timeout=TIMEOUT)
            head = piece.data if isinstance(piece, Piece) else b""
        told = "" if isinstance(text, Unreadable) else text.decode(errors="replace")
        nccl = nccl or header_version(head.decode(errors="replace"))
        again = isinstance(text, Unreadable) and text.errno == errno.EAGAIN
        return software(told, nccl), not again


def _stuck(answer: bytes | Unreadable) -> bool:
    return isinstance(answer, Unreadable) and answer.stuck
