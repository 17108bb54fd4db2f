"""Which PyTorch and NCCL the ranks of a job run: read once for each place that they are installed in.

A job with many ranks costs one read where they share a file system, and no read takes longer than `TIMEOUT`: what does not
answer stays unknown. Any thread may ask.
"""

import errno
import threading
from collections.abc import Collection

from mldebug.jobs.known_issues.model import Software
from mldebug_agents.jobs.ranks.libraries import (
    Libraries,
    header_file,
    header_version,
    numbered,
    software,
    version_file,
)
from mldebug_agents.jobs.ranks.node_facts import TIMEOUT
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import FilePiece, Reader, Unreadable

MAX_VERSION_FILE = 64 << 10  # PyTorch's has some hundred bytes
MAX_HEADER = 8 << 10  # bytes of nccl.h: the version stands at its top
MAX_READS = 8  # different places of one job

Key = tuple[str, Libraries]  # mount namespace


class Installed:
    """Keep one: it remembers what was read."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host = host
        self._reader = reader
        self._lock = threading.Lock()
        self._known: dict[str, dict[Key, Software]] = {}  # by job

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all jobs but these."""
        with self._lock:
            self._known = {job: known for job, known in self._known.items() if job in jobs}

    def of(self, job: str, pid: int, loaded: Libraries, *, read: bool = True) -> Software:
        """From memory, or by reading; several ranks mostly share what is read for one. Without `read` no file is opened."""
        key = (self._host.link(pid, "ns/mnt") or str(pid), loaded)
        with self._lock:
            known = self._known.setdefault(job, {})
        if key in known:
            return known[key]
        if not read or loaded == Libraries() or len(known) >= MAX_READS:
            return Software(nccl=numbered(loaded.nccl))
        found, final = self._read(pid, loaded)
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
            head = piece.data if isinstance(piece, FilePiece) else b""
        told = "" if isinstance(text, Unreadable) else text.decode(errors="replace")
        nccl = nccl or header_version(head.decode(errors="replace"))
        again = isinstance(text, Unreadable) and text.errno == errno.EAGAIN
        return software(told, nccl), not again


def _stuck(answer: bytes | Unreadable) -> bool:
    return isinstance(answer, Unreadable) and answer.stuck
