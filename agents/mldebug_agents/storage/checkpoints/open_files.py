"""Where a job writes checkpoints: found by the files that its processes have open for writing and, after a burst of writing,
by new files in the folder in which it works and in those that its command line names.

Only links below /proc/PID/fd are read here, which the kernel answers from memory; folders are listed by the reader child.
"""

import os
import time
from collections.abc import Iterable, Iterator
from posixpath import basename

import msgspec

from mldebug.storage.checkpoints.names import CheckpointPath, checkpoint_of, is_part
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host

BUDGET = 0.25  # seconds of one look at all descriptors of one job
MAX_PROCESSES = 256  # of one job
MAX_FILES = 4096  # descriptors of one process
WRITING = ("w", "rw")


class OpenCheckpointFile(msgspec.Struct, frozen=True):
    """A file of a checkpoint that a process has open for writing."""

    pid: int
    path: str  # as the process sees it
    checkpoint: CheckpointPath


class OpenFileReader:
    """Looks at the open files of jobs; where there are very many, at a part of them in each call."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turn: dict[str, int] = {}  # job -> the process that is next

    def look(self, job_id: str, pids: list[int]) -> tuple[OpenCheckpointFile, ...]:
        """The checkpoint files that these processes are writing. Processes for which no time was left come first at the next call."""
        until = time.monotonic() + BUDGET
        begin = self._turn.get(job_id, 0) % max(1, len(pids))
        found: list[OpenCheckpointFile] = []
        order = [*pids[begin:], *pids[:begin]][:MAX_PROCESSES]
        for number, pid in enumerate(order):
            if number and time.monotonic() > until:
                self._turn[job_id] = begin + number
                break
            found += self._of(pid)
        return tuple(found)

    def keep(self, jobs: Iterable[str]) -> None:
        """Forget what is remembered of all jobs but these."""
        kept = set(jobs)
        self._turn = {job: turn for job, turn in self._turn.items() if job in kept}

    def _of(self, pid: int) -> Iterator[OpenCheckpointFile]:
        for fd in self._numbers(pid):
            path = self._host.link(pid, f"fd/{fd}")
            if not procfs.is_stored(path) or not is_part(basename(path)):
                continue
            mode, _ = procfs.parse_fdinfo(self._host.text(pid, f"fdinfo/{fd}"))
            checkpoint = checkpoint_of(path)
            if checkpoint is not None and mode in WRITING:
                yield OpenCheckpointFile(pid, path, checkpoint)

    def _numbers(self, pid: int) -> list[str]:
        try:
            return sorted(os.listdir(f"{self._host.proc}/{pid}/fd"))[:MAX_FILES]
        except OSError:
            return []
