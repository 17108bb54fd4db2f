"""Finds the known issues of the jobs on this node, and reads what their rules need of it: RDMA
ports, IOMMU, kernel arguments, /etc/hosts.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from mldebug.core.model import Job
from mldebug.core.redact import clean
from mldebug.jobs.known_issues.match import KnownIssue, RankSoftware, find_known_issues
from mldebug.jobs.known_issues.model import NodeFacts
from mldebug.jobs.known_issues.nccl_log import NcclLogFacts
from mldebug_agents.jobs.ranks.libraries import TIMEOUT, InstalledSoftware, Program
from mldebug_agents.system.child.job_paths import OPERATOR
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.proc_files import names_in
from mldebug_agents.system.reader import Reader

AGAIN = 600.0  # seconds between two looks at the node
MAX_DEVICES, MAX_PORTS = 64, 4
MAX_HOSTS_FILE = 1 << 20
MAX_HOSTS = 20_000
MAX_STATE = 64  # bytes of a port's state: "4: ACTIVE"


class KnownIssueFinder:
    """Finds the known issues of jobs.

    There is one per agent: it remembers what was read of the node and of libraries.
    """

    def __init__(
        self, host: Host, reader: Reader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._reader = reader
        self._clock = clock
        self.installed = InstalledSoftware(host, reader)
        self._node = NodeFacts()
        self._due = -AGAIN

    def keep(self, jobs: Collection[str]) -> None:
        """Forget what was read for all jobs but these (ids)."""
        self.installed.keep(jobs)

    def of(
        self,
        job: Job,
        programs: Mapping[int, Program],
        nccl_log: NcclLogFacts | None = None,
        *,
        read: bool = True,
        gpu: bool | None = None,
    ) -> tuple[KnownIssue, ...]:
        """The known issues of one job.

        `programs`: by pid of the rank; `gpu`: whether a rank has a GPU open, None: not known.
        Without `read` only what is remembered is used, because opening a file could hang.
        """
        ran = [
            RankSoftware(
                rank=rank.rank,
                software=self.installed.of(
                    job.id, rank.pid, programs[rank.pid].libraries, read=read
                ),
                settings=programs[rank.pid].settings,
                cores=self._cores(rank.pid),
            )
            for rank in job.ranks
            if rank.pid in programs
        ]
        return find_known_issues(
            job, ran, self._node_facts() if read else self._node, nccl_log, gpu
        )

    def _cores(self, pid: int) -> int:
        """Logical CPUs that it may use; 0 where that is not known."""
        if self._host.root:  # its numbers may be of other processes here
            return 0
        with contextlib.suppress(OSError):
            return len(os.sched_getaffinity(pid))
        return 0

    def _node_facts(self) -> NodeFacts:
        if self._clock() >= self._due:
            self._node, self._due = read_node(self._host, self._reader), self._clock() + AGAIN
        return self._node


def read_node(host: Host, reader: Reader) -> NodeFacts:
    """Read the node's facts now. What cannot be read is left out; each read has a deadline."""
    arguments = f"{host.proc}/cmdline"
    ports = dict(_ports(f"{host.root}/sys/class/infiniband"))
    states = reader.read_many([*ports, arguments], max_bytes=4096, timeout=TIMEOUT)
    given = states[arguments]
    active = {ports[path] for path in ports if _is_active(states[path])}
    return NodeFacts(
        machine=os.uname().machine,
        rdma=tuple(sorted(active)),
        iommu=bool(names_in(f"{host.root}/sys/class/iommu")),
        kernel_arguments=tuple(given.decode(errors="replace").split())
        if isinstance(given, bytes)
        else (),
        cores=os.cpu_count() or 0,
        hosts=_hosts(
            reader.read_file(f"{host.root}/etc/hosts", rights=OPERATOR, max_bytes=MAX_HOSTS_FILE)
        ),
    )


def _ports(folder: str) -> Iterable[tuple[str, str]]:
    """Path of a port's state, and its device."""
    for device in names_in(folder)[:MAX_DEVICES]:
        for port in names_in(f"{folder}/{device}/ports")[:MAX_PORTS]:
            yield f"{folder}/{device}/ports/{port}/state", clean(device, 40)


def _is_active(state: object) -> bool:
    return isinstance(state, bytes) and b"ACTIVE" in state[:MAX_STATE]


def _hosts(text: object) -> dict[str, str]:
    """Address -> first name; the first line of an address counts."""
    if not isinstance(text, bytes):
        return {}
    found: dict[str, str] = {}
    for line in text.decode(errors="replace").splitlines()[:MAX_HOSTS]:
        words = line.partition("#")[0].split()
        if len(words) > 1:
            found.setdefault(words[0], clean(words[1], 80))
    return found
