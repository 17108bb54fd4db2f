"""The logs of one job. Each call of `look` reads what is new in them; the search for them is repeated once a minute, or
where they may have changed. What cannot be read is named in `gaps`.

Within one call no further log is polled `BUDGET` seconds after the first; NCCL's own files get as long again, and the
search is extra. A mount on which a read of a followed log hangs is not polled by any job of the node until that read
returns.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Gap, Job, ProcessState, RankIdentity
from mldebug.core.redact import clean
from mldebug.jobs.known_issues.nccl_log import LogWriters, NcclLog
from mldebug.jobs.logs.charts.chart_parser import FileParser
from mldebug.jobs.logs.charts.kinds import PARSERS
from mldebug.jobs.logs.parser import LogParser
from mldebug.jobs.logs.records import LogCounts
from mldebug.stall.log_progress import LogProgress
from mldebug_agents.jobs.logs.event_files import find_event_files
from mldebug_agents.jobs.logs.follower import KnownEnd, LogFollower, LogUpdate
from mldebug_agents.jobs.logs.locations import LogFile, LogFinder
from mldebug_agents.jobs.logs.nccl_files import NcclFiles
from mldebug_agents.jobs.logs.pipes import LONG, PAUSE, Effort
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

File = tuple[int, int]  # device, inode
MAX_LOGS = 4  # followed per job
MAX_ENDS = 256  # log files of runs, of those that are over too, whose length is remembered
MAX_RANKS = 16  # ranks whose descriptors are looked through in one search
BUDGET = 3.0  # seconds for the logs of one job in one look: one read that hangs, and the others
SEARCH_EVERY, SEARCH_AGAIN = 60.0, 10.0  # seconds between two searches; where there was no log
LATE = 1.5  # seconds after which the moment of a look does not say any more when a log was written
CLOCKS = (
    2.0  # seconds by which it may come before the last look: that read it a while after it began
)
SOONEST = 1e-3  # seconds after the last look: what is new was written then
CHARTS_SOON, CHARTS_EARLY = 15.0, 300.0  # seconds between searches for charts, in so many at first
_OUTPUTS = ("fd/1", "fd/2")


class _Run(msgspec.Struct, frozen=True):
    files: frozenset[File]
    lone: bool


class LogSharing:
    """Which log files belong to which run of this node, and how far each was when it was read last. For one thread only."""

    def __init__(self) -> None:
        self._runs: dict[object, _Run] = {}
        self._ends: dict[File, KnownEnd] = {}

    def note_end(self, file: File | None, end: KnownEnd) -> None:
        """Note how far the file was read. The `MAX_ENDS` files that were read last are remembered."""
        if file is not None:
            self._ends.pop(file, None)
            self._ends[file] = end
            if len(self._ends) > MAX_ENDS:
                del self._ends[next(iter(self._ends))]

    def end_of(self, file: File) -> KnownEnd | None:
        """How far the file was when a run of this node read it last."""
        return self._ends.get(file)

    def keep(self, runs: Collection[object]) -> None:
        """Keep what is known of the logs of these runs, and forget that of all others."""
        self._runs = {run: logs for run, logs in self._runs.items() if run in runs}

    def note(self, run: object, files: Collection[File], *, lone: bool) -> None:
        """Note that these are the logs of a run now.

        `lone`: it is a process without a launcher, which may be no training.
        """
        self._runs[run] = _Run(frozenset(files), lone)

    def shared(self, run: object, file: File | None) -> bool:
        """Whether another run writes to this file, too.

        For a run with a launcher, processes without a launcher are no other runs.
        """
        mine = self._runs.get(run)
        others = [logs for it, logs in self._runs.items() if it is not run]
        return mine is not None and any(
            file in logs.files and (mine.lone or not logs.lone) for logs in others
        )


class HungMounts:
    """Mounts on which a read has not returned. All jobs of a node share it."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host = host
        self._reader = reader
        self._hung: dict[str, tuple[str, str]] = {}  # path of the read -> mount

    def add(self, place: LogFile) -> None:
        """Note that a read of this path did not return."""
        if place.mount:
            self._hung[place.path] = self._key(place)

    def hold(self, place: LogFile) -> bool:
        """Whether this path is on a mount that hangs. A mount whose read has returned is forgotten."""
        if self._hung:
            stuck = self._reader.stuck
            self._hung = {path: mount for path, mount in self._hung.items() if path in stuck}
        return bool(self._hung) and self._key(place) in self._hung.values()

    def _key(self, place: LogFile) -> tuple[str, str]:
        return self._host.link(place.pid, "ns/mnt"), place.mount


class JobLogs:
    """Follows the logs of one job.

    `look` sets `sentence` (which file is followed, or why none), `gaps`, `gpu` (a rank has a GPU
    open) and `nccl` (facts of NCCL's log lines).
    """

    def __init__(
        self,
        host: Host,
        reader: Reader,
        hung: HungMounts,
        parser: Callable[[], LogParser],
        progress: LogProgress,
        writers: LogSharing,
        node: str = "",
    ) -> None:
        self.sentence = ""
        self.nccl = NcclLog()
        self._nccl_files = NcclFiles(host, reader)
        self._ours = LogWriters(node=node, pids=frozenset())
        self.gaps: tuple[Gap, ...] = ()
        self.gpu = False
        self._host = host
        self._reader = reader
        self._hung = hung
        self._parser = parser
        self._progress = progress
        self._writers = writers
        self._shared: frozenset[str] = frozenset()  # paths of places that another run writes too
        self._pids: frozenset[int] = frozenset()
        self._places: tuple[LogFile, ...] = ()
        self._reason = ""
        self._last_outputs: object = None
        self._searched = 0.0
        self._search_after = -math.inf
        self._followers: dict[str, LogFollower] = {}
        self._polled = -math.inf  # when the logs were polled last
        self._left = LogCounts()  # of followers that are gone
        self._failures = 0
        self._first_log = 0
        self._charts: tuple[LogFile, ...] = ()
        self._charts_searched = -math.inf
        self._charts_since: float | None = None  # when they were first looked for

    @property
    def counts(self) -> LogCounts:
        """Counters of log lines, records and failures since this job was first seen."""
        total = self._left
        for follower in self._followers.values():
            total = _add(total, follower)
        return msgspec.structs.replace(total, failures=self._failures)

    def look(self, job: Job, finder: LogFinder, now: float, nccl_files: Mapping[int, str] = {}) -> None:  # fmt: skip
        """Poll the logs of the job; search for them first where they may have changed.

        `now`: monotonic seconds; `nccl_files`: NCCL_DEBUG_FILE by pid of the rank.
        """
        self._note_ranks(job)
        sampled = _to_ask(job.ranks)
        outputs = [(rank.pid, *self._outputs(rank.pid)) for rank in sampled]
        every = SEARCH_EVERY if any(place.parsed for place in self._places) else SEARCH_AGAIN
        if self._wants_charts(now):
            self._charts_searched = now
            charts = find_event_files(self._host, self._reader, job, self._places)
            self._searched = now if charts == self._charts else -math.inf
            self._charts = charts
        moved = outputs != self._last_outputs or any(
            self._has_moved(place) for place in self._places
        )
        if now >= self._search_after and (moved or now - self._searched >= every):
            effort = Effort()
            self._last_outputs, self._searched = outputs, now
            self._search(job, sampled, finder)
            took = effort.seconds
            self._search_after = now + (PAUSE * took if took > LONG else 0.0)
        self._poll(now, lone=job.launcher == "single")
        for line in self._nccl_files.lines(job, nccl_files, finder, time.monotonic() + BUDGET):
            self.nccl.add_line(line, self._ours)

    def _outputs(self, pid: int) -> tuple[str, ...]:
        """What its standard output and error are."""
        return self._host.at_once(pid, lambda: tuple(self._host.link(pid, name) for name in _OUTPUTS))  # fmt: skip

    def _note_ranks(self, job: Job) -> None:
        """Where all processes are new the job may have resumed from a checkpoint: steps that were read before count again."""
        pids = frozenset(rank.pid for rank in job.ranks)
        anew = bool(pids and self._pids and not pids & self._pids)
        if anew:
            self._progress.restart()
            self.nccl = NcclLog()
        self._pids = pids or self._pids
        self._ours = _ours(self._ours.node, job, () if anew else self._ours.pids)

    # --- finding -----------------------------------------------------------------------------------

    def _has_moved(self, place: LogFile) -> bool:
        """Is the descriptor another one by now: closed, reopened, or that of a new process with the same pid?"""
        by_name = "/root/" in place.path
        if (
            not by_name
            and self._host.link(place.pid, f"fd/{place.path.rpartition('/')[2]}") != place.target
        ):
            return True
        holder = self._host.brief(place.pid)
        return holder is None or holder.start_ticks != place.start_ticks

    def _search(self, job: Job, ranks: Sequence[RankIdentity], finder: LogFinder) -> None:
        launcher = self._state(job.launcher_pid) if job.launcher_pid else None
        found: dict[tuple[int, str], LogFile] = {}
        reason = ""
        for rank in ranks:
            state = self._state(rank.pid)
            if state is None or state.start_ticks != rank.start_ticks:
                continue
            self.gpu = self.gpu or any(file.kind == "gpu" for file in state.files)
            logs = finder.find(state, (launcher,) if launcher else ())
            reason = reason or logs.reason
            for place in logs.places:
                found.setdefault((place.inode, place.target), place)
            if len(found) >= MAX_LOGS:
                break
        for place in self._charts:
            found.setdefault((place.inode, place.target), place)
        order = sorted(found.values(), key=lambda place: (not place.parsed, place.charts))
        places = order[: MAX_LOGS + len(self._charts)]
        self._followers = dict(self._carry_over(places))
        self._places = tuple(places)
        self._reason = reason or "no log found: its ranks are gone"

    def _state(self, pid: int) -> ProcessState | None:
        return self._host.process_state(pid, threads=False, files=True)

    def _carry_over(self, places: list[LogFile]) -> Iterator[tuple[str, LogFollower]]:
        """Give each place its follower: that of the descriptor, else that of the same file, else a new one."""
        old = dict(self._followers)
        files = {(place.inode, place.target): place.path for place in self._places}
        paths = {place.path for place in places}
        for place in places:
            before = files.get((place.inode, place.target), "")
            path = place.path if place.path in old or before in paths else before
            follower = old.pop(path, None)
            yield place.path, follower or self._new_follower(place)
        for follower in old.values():
            self._left = _add(self._left, follower)

    def _new_follower(self, place: LogFile) -> LogFollower:
        return LogFollower(self._reader, self._parser_of(place), self._writers.end_of)

    def _parser_of(self, place: LogFile) -> FileParser:
        return PARSERS[place.kind]() if place.charts else self._parser()

    def _wants_charts(self, now: float) -> bool:
        """Whether to look for files for charts: where nothing else has told a step, once a minute."""
        if self._progress.counts_steps and not self._charts:
            return False
        if self._charts_since is None:
            self._charts_since = now
        young = not self._charts and now - self._charts_since < CHARTS_EARLY
        return now - self._charts_searched >= (CHARTS_SOON if young else SEARCH_EVERY)

    # --- polling -----------------------------------------------------------------------------------

    def _poll(self, now: float, *, lone: bool) -> None:
        until = time.monotonic() + BUDGET
        gaps: dict[str, Gap] = {}
        taken: list[tuple[LogFile, LogUpdate]] = []
        first = self._first_log % len(self._places) if self._places else 0
        for number, place in enumerate(self._places[first:] + self._places[:first]):
            news = self._poll_one(place, until)
            if news.gap is not None:
                gaps[place.path] = news.gap
            if time.monotonic() >= until:  # begin there next time, if there is something left
                self._first_log = first + number + 1
            taken.append((place, news))
        self._share(lone=lone)
        for place, news in taken:
            lines = self._followers[place.path].parser.take_nccl()
            if place.path not in self._shared:
                self._take(place, news, now)
                for line in lines:
                    self.nccl.add_line(line, self._ours)
        self._polled = now
        self._failures += len(gaps)
        self.gaps = tuple(gaps.values())
        self.sentence = self._summary(gaps)

    def _poll_one(self, place: LogFile, until: float) -> LogUpdate:
        if time.monotonic() >= until:
            return _not_read(place, "not read this time: the other logs took too long")
        if self._hung.hold(place):
            return _not_read(place, f"{place.mount}, where it lies, does not answer")
        follower = self._followers[place.path]
        news = follower.poll(place, until)
        if news.gap is None:
            self._writers.note_end(follower.file, follower.end(self._host.clock()))
        if news.stuck:
            self._hung.add(place)
        return news

    def _share(self, *, lone: bool) -> None:
        """Register this run's files, and note which of them another run writes, too."""
        files = {place.path: self._followers[place.path].file for place in self._places}
        self._writers.note(self, {file for file in files.values() if file}, lone=lone)
        shared = frozenset(path for path, file in files.items() if self._writers.shared(self, file))
        if shared - self._shared:
            self._progress.forget_progress()
            self.nccl = NcclLog()
        self._shared = shared

    def _take(self, place: LogFile, news: LogUpdate, now: float) -> None:
        """Add what one log has gained. Where a look comes late, the file itself tells when it was written, within the time since the
        last look; a file that tells another time once has another clock (a server's), and is not asked again.
        """
        follower = self._followers[place.path]
        log = id(follower)
        age = max(0.0, self._host.clock() - news.modified_at) if news.modified_at else 0.0
        if news.before is not None:
            self._progress.arrive(news.before, now - age, log, news.earlier)
        late = now - self._polled >= LATE
        if late and news.records and now - age < self._polled - CLOCKS:
            follower.distrust_clock()
        by_file = late and not follower.other_clock
        at = max(self._polled + SOONEST, now - age) if by_file else now
        self._progress.take(news.records, news.grew_bytes, at, log)

    def _summary(self, gaps: dict[str, Gap]) -> str:
        """The file that is followed and what is odd about it, or why there is none."""
        good = [place for place in self._places if place.parsed and place.path not in gaps]
        good.sort(key=lambda place: place.path in self._shared)
        if good:
            follower = self._followers[good[0].path]
            odd = ", ".join((*self._why_shared(good[0]), *follower.oddities))
            return f"{clean(good[0].target)} ({odd})" if odd else clean(good[0].target)
        if gaps:
            return f"no log can be read: {clean(next(iter(gaps.values())).reason)}"
        return self._reason

    def _why_shared(self, place: LogFile) -> Iterator[str]:
        if place.path in self._shared:
            yield "not read: another run writes it too"


def _ours(node: str, job: Job, before: Collection[int]) -> LogWriters:
    """Whose NCCL lines belong to the job, ranks that have ended included."""
    pids = {pid for rank in job.ranks for pid in (rank.pid, rank.namespace_pid) if pid}
    elsewhere = job.world_size > len(job.ranks) + len(job.lost)
    return LogWriters(node=node, pids=frozenset((*before, *pids)), elsewhere=elsewhere)


def _to_ask(ranks: Sequence[RankIdentity]) -> list[RankIdentity]:
    """First, last, then the others: Megatron prints on its last rank."""
    return [*ranks[:1], *ranks[1:][-1:], *ranks[1:-1]][:MAX_RANKS]


def _add(total: LogCounts, follower: LogFollower) -> LogCounts:
    parser = follower.parser
    return LogCounts(
        lines=total.lines + parser.lines,
        records=total.records + parser.records,
        bytes=total.bytes + parser.bytes,
        binary=total.binary + parser.binary,
        oversized=total.oversized + parser.oversized,
        skipped_bytes=total.skipped_bytes + follower.skipped + parser.skipped,
        rotations=total.rotations + follower.rotations,
        truncations=total.truncations + follower.truncations,
    )


def _not_read(place: LogFile, why: str) -> LogUpdate:
    return LogUpdate(gap=Gap(what="log", reason=f"{place.target}: {why}", pid=place.pid))
