"""What is noted of one job while it lives: its logs, its error files, the OOM counters of its cgroups."""

from collections.abc import Container

import msgspec

from mldebug.core.model import RankIdentity
from mldebug_agents.incidents.exits.kernel_deaths import oom_kills
from mldebug_agents.jobs.logs.locations import LogFile


class JobLog(msgspec.Struct, kw_only=True):
    """One file to which ranks of a job write.

    Only what was written after `start` (the file's size in bytes when it was found) is read.
    """

    place: LogFile
    file: tuple[int, int]  # device, inode
    start: int
    ranks: set[int]
    foreign: bool = (
        False  # ranks of another run write to it, too: no word in it is this job's for sure
    )

    def mark_shared(self, files: Container[tuple[int, int]]) -> None:
        """Note that another run writes to this file, too, if it is among `files` (device, inode)."""
        self.foreign = self.foreign or self.file in files


class RankErrorFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file in which a rank of torchrun writes why it failed. `path` is as the rank sees it."""

    rank: RankIdentity
    path: str


class JobNotes(msgspec.Struct, kw_only=True):
    """Facts about a job, noted while it runs, that later explain its exit."""

    logs: dict[tuple[int, str], JobLog] = {}
    error_files: dict[int, RankErrorFile] = {}  # by pid
    counters: dict[str, list[int]] = {}  # file -> OOM kills, last two looks at all alive
    pids: set[int] = set()  # of its ranks so far
    mark: int = 0  # in the kernel's log, when the job was found
    calm: list[int] = []  # the same at the last two looks that found all alive


def owner_of(log: JobLog) -> int | None:
    """The only rank that writes to this log; None where several do, or none is known."""
    return next(iter(log.ranks)) if len(log.ranks) == 1 else None


def count_kills(notes: JobNotes, *, whole: bool) -> None:
    """Read the OOM counters of the job's cgroups.

    `whole`: all ranks live; only then a counter that was read before is read again. The last two
    counts are kept, since a kill may have come just after a look.
    """
    for file, counts in notes.counters.items():
        now = oom_kills(file) if whole or not counts else None
        if now is not None:
            notes.counters[file] = [*counts[-1:], now]


def more_kills(notes: JobNotes) -> int | None:
    """The number of OOM kills in the job's cgroups since the look before the last that found all ranks alive.

    None where no counter can be read.
    """
    counts = [(oom_kills(file), before) for file, before in notes.counters.items()]
    kills = [max(0, now - before[0]) for now, before in counts if now is not None and before]
    return sum(kills) if kills else None
