"""What is known of a rank before its Flight Recorder is asked for: its PyTorch, its settings, its backends, its worker servers.

PyTorch's version stands in a file beside the library that is mapped; both, and the environment, are read by the reader child, once.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from mldebug.flight.ways import NAMES, SOCKET, Means, Version
from mldebug.model import OpenFile, ProcessState, RankIdentity, ThreadState
from mldebug_agents import procfs
from mldebug_agents.host import Host
from mldebug_agents.reader import Reader

MAX_MAPS = 4 << 20
MAX_ENVIRON = 1 << 20
MAX_VALUE = 4096
MAX_KNOWN = 4096  # processes
TRIES = 3  # to learn early what PyTorch a process has; some have none
SERVER_THREAD = "pt_workerserver"
BACKENDS = {"pt_nccl_watchdg": "nccl", "pt_nccl2_heartbt": "nccl2", "pt_gloo_runloop": "gloo"}
_LIBRARY = re.compile(
    rb"^\S+ \S{4} \S+ \S+ \d+ +(/[^\n]{1,1000})/lib/libtorch(?:_cpu)?\.so$", re.MULTILINE
)
_VERSION = re.compile(rb"^__version__ = '(\d{1,3})\.(\d{1,3})", re.MULTILINE)
_LISTENS = "0A"  # of /proc/net/tcp
_HERE = ("0100007F", "00000000", "0" * 32, "00000000000000000000000001000000")


class Finder:
    """Keep one: what a process has been started with is read once."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host = host
        self._reader = reader
        self._tries: Counter[tuple[int, int]] = Counter()
        self._known: dict[tuple[int, int], tuple[Version, dict[str, str]]] = {}

    def meet(self, ranks: Sequence[RankIdentity]) -> None:
        """Read early what is hard to read once a rank hangs, and gone once it has ended."""
        for one in ranks:
            key = one.pid, one.start_ticks
            if key not in self._known and self._tries[key] < TRIES:
                self._tries[key] += 1
                self._started_with(one)
        here = {(one.pid, one.start_ticks) for one in ranks}
        if len(self._tries) > MAX_KNOWN:
            self._tries = Counter({key: n for key, n in self._tries.items() if key in here})

    def means(self, one: RankIdentity, state: ProcessState | None, *, hooked: bool) -> Means:
        """All that is known of a rank now; `state` with its threads and files, None where it is gone."""
        torch, environ = self._started_with(one)
        threads = state.threads if state else ()
        return Means(
            rank=one.rank,
            torch=torch,
            environ=environ,
            hooked=hooked,
            backends=frozenset(BACKENDS[t.name] for t in threads if t.name in BACKENDS),
            servers=tuple(self._servers(one, state, environ)) if state else (),
        )

    # --- what it was started with ------------------------------------------------------------------

    def _started_with(self, one: RankIdentity) -> tuple[Version | None, dict[str, str]]:
        key = one.pid, one.start_ticks
        if key not in self._known:
            torch, environ = self._torch(one.pid), self._environ(one.pid)
            if torch is None:  # not loaded yet, or not for us
                return None, environ
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = torch, environ
        return self._known[key]

    def _environ(self, pid: int) -> dict[str, str]:
        data = self._kernel_file(f"{self._host.proc}/{pid}/environ", MAX_ENVIRON)
        found = procfs.parse_environ(data)
        return {name: found[name] for name in NAMES & found.keys() if len(found[name]) < MAX_VALUE}

    def _torch(self, pid: int) -> Version | None:
        maps = self._kernel_file(f"{self._host.proc}/{pid}/maps", MAX_MAPS)
        library = _LIBRARY.search(maps)
        if library is None:
            return None
        path = f"{self._host.root_of(pid)}{os.fsdecode(library[1])}/version.py"
        text = self._reader.read_file(path, max_bytes=1 << 16)
        found = _VERSION.search(text) if isinstance(text, bytes) else None
        return (int(found[1]), int(found[2])) if found else None

    def _kernel_file(self, path: str, limit: int) -> bytes:
        data = self._reader.read_many([path], max_bytes=limit)[path]
        return data if isinstance(data, bytes) else b""

    # --- where its worker servers listen -----------------------------------------------------------

    def _servers(
        self, one: RankIdentity, state: ProcessState, environ: dict[str, str]
    ) -> Iterator[str]:
        """Only what the server's own thread accepts on: a question on any other socket of a rank could do harm.

        Where its system call may not be read, the name in its environment has to do; who listens there is checked later.
        """
        listening = [thread for thread in state.threads if thread.name == SERVER_THREAD]
        inodes = {_inode(thread, state.files) for thread in listening} - {""}
        if listening and not inodes and environ.get(SOCKET, "").startswith("/"):
            yield f"{self._host.root_of(one.pid)}{environ[SOCKET]}"
        for inode in sorted(inodes):
            yield from self._unix(one.pid, inode)
            yield from self._tcp(one.pid, inode)

    def _unix(self, pid: int, inode: str) -> Iterator[str]:
        for line in self._host.text(pid, "net/unix").splitlines()[1:]:
            words = line.split(maxsplit=7)
            if len(words) == 8 and words[6] == inode and words[7].startswith("/"):
                yield f"{self._host.root_of(pid)}{words[7]}"

    def _tcp(self, pid: int, inode: str) -> Iterator[str]:
        """On the loopback interface, or on all of them, of our own network namespace; nothing else can be reached."""
        if self._host.link(pid, "ns/net") != self._host.link(os.getpid(), "ns/net"):
            return
        for name in ("net/tcp", "net/tcp6"):
            for line in self._host.text(pid, name).splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[3] == _LISTENS and words[9] == inode:
                    address, _, port = words[1].partition(":")
                    if address in _HERE:
                        yield f"tcp:{int(port, 16)}"


def _inode(thread: ThreadState, files: Sequence[OpenFile]) -> str:
    """The socket that this thread waits on for connections, "" where it does not, or may not be seen."""
    if thread.syscall not in ("accept", "accept4") or not thread.syscall_args:
        return ""
    target = next((one.target for one in files if one.fd == thread.syscall_args[0]), "")
    return target.removeprefix("socket:[").removesuffix("]") if target[:8] == "socket:[" else ""
