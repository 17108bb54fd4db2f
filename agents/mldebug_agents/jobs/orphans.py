"""Finds processes that outlived their job. It only reads; no process is ended.

Environments are read through the reader child, once for each process and program.
`mldebug.jobs.schedulers.orphans` decides which process is an orphan.
"""

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from mldebug.core.redact import safe_line
from mldebug.jobs.schedulers.model import Orphan
from mldebug.jobs.schedulers.orphans import (
    VARIABLES,
    LivingJobs,
    OrphanReason,
    OrphanSuspect,
    find_orphans,
    step_job,
)
from mldebug_agents.jobs.ranks.rank_processes import ProcessTree
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import Stat
from mldebug_agents.system.reader import Reader

SETTLED = 5.0  # seconds of age from which a process is looked at: before it may still become another program
MAX_ENVIRONMENT = 1 << 20
MOST = 64  # orphans that are reported
BATCH = 256
KTHREADD = 2

Key = tuple[int, int, object]  # pid, start, program


class OrphanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An order to search for orphans.

    `alive`: as in `LivingJobs`; `gpus`: bytes of GPU memory (None: not known) by pid and GPU uuid;
    `grace`: seconds.
    """

    alive: frozenset[str] | None
    gpus: dict[int, dict[str, int | None]] = {}
    grace: float = 120.0


class OrphanFinder:
    """Finds processes whose job is over.

    There is one per agent: it remembers environments, and since when a process has been without its
    job.
    """

    def __init__(
        self, host: Host, reader: Reader, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._host, self._reader, self._steady = host, reader, steady
        self._environments: dict[Key, dict[str, str]] = {}
        self._since: dict[tuple[int, int], tuple[float, float]] = {}  # monotonic and unix

    def look(self, order: OrphanRequest) -> tuple[Orphan, ...]:
        """The processes that have been without their job for `grace` seconds, as far as this finder
        has seen; at most `MOST`.
        """
        stats = {pid: stat for pid, stat in self._host.briefs().items() if stat.state not in "ZX"}
        tree, living = ProcessTree(stats), self._known_jobs(stats, order.alive)
        found = list(find_orphans(list(self._suspects(stats, tree, order)), living))
        now, moment = self._steady(), self._host.clock()
        since = {(one.pid, one.start_ticks): (now, moment) for one, _ in found}
        self._since = {key: self._since.get(key, at) for key, at in since.items()}
        due = [pair for pair in found if now - self._since[pair[0].pid, pair[0].start_ticks][0] >= order.grace]  # fmt: skip
        return tuple(self._orphan(one, gone, order) for one, gone in due[:MOST])

    def _known_jobs(self, stats: Mapping[int, Stat], alive: frozenset[str] | None) -> LivingJobs:
        steps = [pid for pid, stat in stats.items() if stat.name.startswith("slurmstepd")]
        paths = [f"{self._host.proc}/{pid}/cmdline" for pid in steps]
        answers = self._reader.read_many(paths, max_bytes=4096) if paths else {}
        titles = [
            answer.decode(errors="replace")
            for answer in answers.values()
            if isinstance(answer, bytes)
        ]
        jobs = {step_job(title) for title in titles} - {""}
        # one that does not say whose it is could be anybody's: then nothing is concluded from steps
        sure = len(titles) == len(steps) and all(map(step_job, titles))
        slurmd = any(stat.name == "slurmd" for stat in stats.values())
        return LivingJobs(steps=frozenset(jobs), slurmd=slurmd and sure, alive=alive)

    def _suspects(
        self, stats: Mapping[int, Stat], tree: ProcessTree, order: OrphanRequest
    ) -> Iterator[OrphanSuspect]:
        self._read([stat for stat in stats.values() if self._may_be(stat)])
        for stat in stats.values():
            variables = self._environments.get(_key(stat))
            if variables:
                above = tuple(stats[pid].name for pid in tree.ancestors(stat.pid) if pid in stats)
                yield OrphanSuspect(
                    pid=stat.pid, start_ticks=stat.start_ticks, name=stat.name, ancestors=above,
                    variables=variables, holds_gpu=stat.pid in order.gpus,
                )  # fmt: skip

    def _may_be(self, stat: Stat) -> bool:
        age = self._host.clock() - self._host.started_at(stat.start_ticks)
        return KTHREADD not in (stat.pid, stat.ppid) and age >= SETTLED

    def _read(self, stats: list[Stat]) -> None:
        """One that cannot be read now is asked again at the next look."""
        wanted = {_key(stat): stat for stat in stats}
        self._environments = {
            key: answer for key, answer in self._environments.items() if key in wanted
        }
        fresh = [stat for key, stat in wanted.items() if key not in self._environments]
        for start in range(0, len(fresh), BATCH):
            paths = {f"{self._host.proc}/{stat.pid}/environ": stat for stat in fresh[start : start + BATCH]}  # fmt: skip
            for path, answer in self._reader.read_many(list(paths), max_bytes=MAX_ENVIRONMENT).items():  # fmt: skip
                if isinstance(answer, bytes):
                    everything = procfs.parse_environ(answer)
                    own = {name: everything[name][:200] for name in VARIABLES if name in everything}
                    self._environments[_key(paths[path])] = own

    def _orphan(self, suspect: OrphanSuspect, gone: OrphanReason, order: OrphanRequest) -> Orphan:
        uid = self._host.status(suspect.pid).uid
        return Orphan(
            pid=suspect.pid,
            start_ticks=suspect.start_ticks,
            name=safe_line(suspect.name, 40),
            uid=uid,
            user=self._host.user(uid),
            job=safe_line(gone.job, 80),
            why=gone.why,
            rank=gone.rank,
            started_at=self._host.started_at(suspect.start_ticks),
            since=self._since[suspect.pid, suspect.start_ticks][1],
            gpu_bytes=order.gpus.get(suspect.pid, {}),
        )


def _key(stat: Stat) -> Key:
    return stat.pid, stat.start_ticks, stat.image
