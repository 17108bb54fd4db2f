"""The known traps of the jobs on this node. Node facts are read every ten minutes."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping

from mldebug.core.model import Job
from mldebug.jobs.known_issues.match import Ran, Trap, find_traps
from mldebug.jobs.known_issues.model import NodeFacts
from mldebug.jobs.known_issues.nccl_log import NcclSaid
from mldebug_agents.jobs.ranks.installed import Installed
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.jobs.ranks.node_facts import read_node
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

AGAIN = 600.0  # seconds between two looks at the node


class TrapFinder:
    """Keep one: it remembers what was read."""

    def __init__(
        self, host: Host, reader: Reader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._reader = reader
        self._clock = clock
        self.installed = Installed(host, reader)
        self._node = NodeFacts()
        self._due = -AGAIN

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all jobs but these."""
        self.installed.keep(jobs)

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
                software=self.installed.of(
                    job.id, rank.pid, programs[rank.pid].libraries, read=read
                ),
                settings=programs[rank.pid].settings,
                cores=self._cores(rank.pid),
            )
            for rank in job.ranks
            if rank.pid in programs
        ]
        return find_traps(job, ran, self._node_facts() if read else self._node, said, gpu)

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
