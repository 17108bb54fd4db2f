"""NCCL's own log files: where NCCL_DEBUG_FILE names one for each rank, its lines are not in the job's output.

The variable stands in the rank's environment (`/tmp/nccl.%h.%p`: host name, pid). NCCL keeps the file open, so it is found among the
descriptors of the rank and read through them, with the rights of the rank's user; a file of that name that nobody has open is not read.
"""

import re
import time
from collections.abc import Iterator, Mapping

from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.logs.parser import LogParser
from mldebug_agents.jobs.logs.follower import LogFollower
from mldebug_agents.jobs.logs.locations import LogFile, LogFinder
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

MAX_FILES = 64  # of one job on this node
EACH_LOOK = 4  # files that are read in one look
SETTING = "NCCL_DEBUG_FILE"
MAX_NAME = 500
_ANY = {"h": "[^/]{1,64}", "p": r"\d{1,10}"}


def debug_file(environ: Mapping[str, str]) -> str:
    """The pattern in NCCL_DEBUG_FILE; "" where NCCL writes to the job's output, because it is not
    set or names the output.
    """
    name = environ.get(SETTING, "").strip()
    return name if len(name) <= MAX_NAME and name not in ("stdout", "stderr", "/dev/stdout", "/dev/stderr") else ""  # fmt: skip


def matches(pattern: str, target: str) -> bool:
    """Whether NCCL can have made this file name from the pattern (`%h`, `%p`).

    A pattern without a leading / lies in some folder.
    """
    parts = re.split(r"%(.)", pattern)
    text = "".join(_named(part) if number % 2 else re.escape(part) for number, part in enumerate(parts))  # fmt: skip
    beginning = "" if pattern.startswith("/") else ".*/"
    return re.fullmatch(beginning + text, target.removesuffix(" (deleted)")) is not None


def _named(letter: str) -> str:
    return _ANY.get(letter, "%" if letter == "%" else re.escape(f"%{letter}"))


class NcclFiles:
    """Follows NCCL's log files of one job. Each look reads some of them, in turns."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host, self._reader = host, reader
        self._places: dict[int, LogFile] = {}  # by pid
        self._followers: dict[int, LogFollower] = {}
        self._turn = 0

    def lines(self, job: Job, patterns: Mapping[int, str], finder: LogFinder, until: float) -> Iterator[str]:  # fmt: skip
        """New lines of NCCL's log files.

        `patterns`: NCCL_DEBUG_FILE by pid of the rank; after `until` (monotonic seconds) no further
        file is read.
        """
        ranks = [rank for rank in job.ranks if patterns.get(rank.pid)][:MAX_FILES]
        gone = self._places.keys() - {rank.pid for rank in ranks}
        for pid in gone:
            self._places.pop(pid)
            self._followers.pop(pid)
        turn, self._turn = self._turn, self._turn + EACH_LOOK
        for rank in [ranks[(turn + number) % len(ranks)] for number in range(min(EACH_LOOK, len(ranks)))]:  # fmt: skip
            if time.monotonic() < until:
                yield from self._of(rank, patterns[rank.pid], finder, until)

    def _of(self, rank: RankIdentity, pattern: str, finder: LogFinder, until: float) -> Iterator[str]:  # fmt: skip
        place = self._places.get(rank.pid) or self._find(rank, pattern, finder)
        if place is None:
            return
        follower = self._followers.setdefault(rank.pid, LogFollower(self._reader, LogParser(())))
        self._places[rank.pid] = place
        update = follower.poll(place, until)
        if update.gap is not None:
            self._places.pop(rank.pid)  # closed since: look for it anew
            self._followers.pop(rank.pid)
        elif isinstance(follower.parser, LogParser):
            yield from follower.parser.take_nccl()

    def _find(self, rank: RankIdentity, pattern: str, finder: LogFinder) -> LogFile | None:
        state = self._host.process_state(rank.pid, threads=False, files=True)
        if state is None or state.start_ticks != rank.start_ticks:
            return None
        return finder.open_file(state, lambda target: matches(pattern, target))
