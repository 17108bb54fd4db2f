"""Finds other ranks on this node that may dump into the same file: then it is not certain whose dump lies there."""

from collections.abc import Iterable, Iterator
from posixpath import basename
from typing import NamedTuple

from mldebug.capture.flight_recorder.access import possible_dumps
from mldebug.core.model import RankIdentity
from mldebug.core.redact import clean
from mldebug.jobs.known_issues.model import Software, parse_version
from mldebug_agents.capture.flight_recorder.available import rank_facts
from mldebug_agents.capture.flight_recorder.files import HangAwareReader, file_stamp
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.system.host import Host

MAX_OTHERS = 16  # that are looked at for one file

Key = tuple[int, int]  # pid, start


class KnownRank(NamedTuple):
    """A rank with the facts about its program that were noted while it lived."""

    identity: RankIdentity
    job: str  # id
    name: str  # of the job
    program: Program
    software: Software

    @property
    def key(self) -> Key:
        """Pid and start time (clock ticks since boot), which together identify a process even if its pid is used again."""
        return self.identity.pid, self.identity.start_ticks


class SharedDumps:
    """Finds out which ranks write their Flight Recorder dumps to the same file as another. `living`: the ranks whose processes still run."""

    def __init__(self, host: Host, living: Iterable[KnownRank]) -> None:
        self._host = host
        self._living = tuple(living)

    def other(
        self, reader: HangAwareReader, rank: RankIdentity, place: str, file: tuple[int, int] | None
    ) -> str:
        """Another rank that may dump into the same file, as text (`rank 0 of train.py (pid 7)`); ""
        where there is none.

        `place`: the path as `rank` sees it; `file`: device and inode of what lies there, None where
        nothing does.
        """
        here = self._host.link(rank.pid, "ns/mnt")
        for count, (other, path) in enumerate(self._named_alike(rank, place)):
            same = (
                path == place
                and here != ""
                and here == self._host.link(other.identity.pid, "ns/mnt")
            )
            if count >= MAX_OTHERS or same or self._is(reader, other, path, file):
                number, pid = other.identity.rank, other.identity.pid
                return f"rank {number} of {clean(other.name, 60)} (pid {pid})"
        return ""

    def _named_alike(self, rank: RankIdentity, place: str) -> Iterator[tuple[KnownRank, str]]:
        """Files of one name may be one file, over whatever mounts."""
        for other in self._living:
            if other.key != (rank.pid, rank.start_ticks) and _may_dump(other):
                facts = rank_facts(self._host, other.identity, other.program, other.software)
                for path in possible_dumps(facts):
                    if basename(path) == basename(place):
                        yield other, path

    def _is(
        self, reader: HangAwareReader, other: KnownRank, place: str, file: tuple[int, int] | None
    ) -> bool:
        if file is None:
            return False
        path = f"{self._host.root_of(other.identity.pid)}{place}"
        found = file_stamp(reader, path, self._host.rights.of(other.identity))
        return found is not None and found.file == file


def _may_dump(other: KnownRank) -> bool:
    """Not without PyTorch, nor with one for CPUs alone."""
    version = parse_version(other.software.torch)
    for_cpus = version is not None and version.local.startswith("cpu")
    return bool(other.program.libraries.torch) and not for_cpus
