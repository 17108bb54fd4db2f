"""Which GPUs each rank's process holds, as its open files and its environment tell. GPUs and ranks are matched by this.

Runs in a worker thread. The environment is read once per process, through the reader child, since that read may block once a job
hangs.
"""

from collections.abc import Collection, Iterable, Iterator

from mldebug.core.model import RankIdentity
from mldebug.core.redact import clean
from mldebug.hardware.gpu.rank_join import RankProcess
from mldebug.hardware.gpu.visible_devices import VARIABLES
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

MAX_RANKS = 256
MAX_ENVIRONMENT = 1 << 20
MAX_NAME = 40  # characters of a program
MAX_ANCESTORS = 64  # of a process that are looked at
MPS = "nvidia-cuda-mps"  # the kernel keeps 15 characters of `nvidia-cuda-mps-server`

Process = tuple[int, int]  # pid and start


class Holders:
    """Finds the processes, device files and environment of each rank. Keep one object: it remembers environments."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host, self._reader = host, reader
        self._known: dict[Process, dict[str, str]] = {}

    def look(self, ranks: Iterable[RankIdentity]) -> tuple[RankProcess, ...]:
        """The processes of these ranks, each with its GPU device files (minor numbers) and the environment variables about
        GPUs; both are empty or None where they cannot be read.
        """
        present = list(ranks)[:MAX_RANKS]
        here = {(one.pid, one.start_ticks) for one in present}
        self._known = {key: environment for key, environment in self._known.items() if key in here}
        return tuple(
            RankProcess(
                rank=one.rank,
                pid=one.pid,
                start_ticks=one.start_ticks,
                local_rank=one.local_rank,
                open_minors=self._host.open_gpus(one.pid),
                environment=self._environment(one),
            )
            for one in present
        )

    def strangers(
        self, listed: Iterable[int], ranks: Collection[int], others: Collection[int] = ()
    ) -> frozenset[int]:
        """The listed pids that surely do not belong to a job: neither a rank nor below one, nor below the parent of one
        (its launcher, or the shell that started it). A process of which an ancestor cannot be read is not among them, nor the server of
        NVIDIA MPS.

        `ranks`: pids of the job's ranks; `others`: pids of ranks of other jobs, which may have the same parent.
        """
        parents = {
            rank: stat.ppid for rank in ranks if (stat := self._host.brief(rank)) is not None
        }
        if len(parents) < len(ranks):
            return frozenset()
        family = set(ranks) | set(parents.values())
        return frozenset(pid for pid in listed if self._outside(pid, family, others))

    def program(self, pid: int) -> str:
        """A process in words: `python3 (pid 12)`; `pid 12` where it is gone. A program may call itself anything, so its name is cleaned."""
        stat = self._host.brief(pid)
        name = clean(stat.name, MAX_NAME) if stat is not None else ""
        return f"{name} (pid {pid})" if name else f"pid {pid}"

    def _outside(self, pid: int, family: Collection[int], others: Collection[int]) -> bool:
        for one in self._line(pid):
            if one == pid and self._serves_others(pid):
                return False
            if one in others:
                return True
            if one in family:
                return False
            if one <= 1:
                return True
        return False

    def _serves_others(self, pid: int) -> bool:
        """Whether it is the server of NVIDIA MPS, which does on a GPU what other programs, and the ranks, ask of it."""
        stat = self._host.brief(pid)
        return stat is not None and stat.name.startswith(MPS)

    def _line(self, pid: int) -> Iterator[int]:
        """The process, its parent, and so on up to pid 1 or 0; it ends early where one cannot be read."""
        for _ in range(MAX_ANCESTORS):
            stat = self._host.brief(pid)
            if stat is None:
                return
            yield pid
            if pid <= 1:
                return
            pid = stat.ppid
            if pid <= 1:
                yield pid
                return

    def _environment(self, rank: RankIdentity) -> dict[str, str] | None:
        key = (rank.pid, rank.start_ticks)
        if key not in self._known:
            path = f"{self._host.proc}/{rank.pid}/environ"
            content = self._reader.read_many((path,), max_bytes=MAX_ENVIRONMENT)[path]
            if not isinstance(content, bytes):
                return None
            everything = procfs.parse_environ(content)
            self._known[key] = {one: everything[one] for one in VARIABLES if one in everything}
        return self._known[key]
