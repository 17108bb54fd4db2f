"""Remembers of every job what will be needed when it ends: where its output goes, its error files, its cgroup.

When the processes are gone, all this can no longer be found. Belongs to one worker thread; files that a job chose are
read through the reader child, in bounded pieces.
"""

from collections.abc import Iterable, Mapping

import msgspec

from mldebug.endings.errorfile import parse_error_file
from mldebug.endings.facts import Ending, RankError
from mldebug.endings.launchers import launcher_words
from mldebug.endings.words import Words, last_error, take_apart
from mldebug.model import Job, LogTail, RankIdentity
from mldebug.redact import safe_line
from mldebug_agents import procfs
from mldebug_agents.exits.kernel import KernelLog, oom_counter, oom_kills
from mldebug_agents.logs.places import LogFinder, LogPlace
from mldebug_agents.logs.rights import Rights
from mldebug_agents.reader import Unreadable
from mldebug_agents.workbench import Workbench

MAX_RANKS = 64  # of one job, whose files are remembered
MAX_LOGS = 8
MAX_TEXT = 256 << 10
MAX_ERROR_FILE = 256 << 10
MAX_ENVIRONMENT = 1 << 20
LAST_LINES = 30
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


class _Log(msgspec.Struct, kw_only=True):
    """One file that ranks of a job write to; only what came after we saw it first counts."""

    place: LogPlace
    file: tuple[int, int]  # device, inode
    start: int
    ranks: set[int]


class _ErrorFile(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank says why it failed; `pids` are those whose view of the file system it is a path of."""

    rank: int
    path: str
    pids: tuple[int, ...]
    rights: Rights


class _Notes(msgspec.Struct, kw_only=True):
    """What is remembered of one job."""

    logs: dict[tuple[int, str], _Log] = {}
    error_files: dict[int, _ErrorFile] = {}  # by pid
    counters: dict[str, int] = {}  # file -> OOM kills at first
    known: set[int] = set()
    mark: int = 0


class Witness:
    """Keeps the notes on all jobs."""

    def __init__(self, bench: Workbench, kernel: KernelLog | None = None) -> None:
        self._bench = bench
        self._kernel = kernel or KernelLog(f"{bench.host.root}/dev/kmsg")
        self._notes: dict[str, _Notes] = {}

    def meet(self, job: Job) -> None:
        """Note down, or bring up to date, what a living job will leave behind."""
        notes = self._notes.get(job.id)
        if notes is None:
            notes = self._notes[job.id] = _Notes(mark=self._kernel.mark())
        self._find_logs(job, notes)
        fresh = [one for one in job.ranks[:MAX_RANKS] if one.pid not in notes.known]
        notes.known.update(one.pid for one in fresh)
        self._find_error_files(fresh, notes)
        for one in fresh:
            counter = oom_counter(self._bench.host, one.pid)
            if counter and counter not in notes.counters:
                count = oom_kills(counter)
                if count is not None:
                    notes.counters[counter] = count

    def forget(self, job_id: str) -> None:
        """A job is over and done with."""
        self._notes.pop(job_id, None)

    def ask(self, ending: Ending) -> Ending:
        """Add all that the job has left behind."""
        notes = self._notes.get(ending.job.id) or _Notes(mark=self._kernel.mark())
        unmet = ending.job.id not in self._notes
        gaps = ["nobody watched when the job ended: what it wrote is not known"] if unmet else []
        texts = {key: self._text(log, gaps) for key, log in notes.logs.items()}
        locals_ = {
            one.local_rank: one.rank for one in ending.identities if one.local_rank is not None
        }
        words = {key: take_apart(lines, locals_) for key, lines in texts.items()}
        lines = [line for text in texts.values() for line in text]
        own = _own_lines(notes, words)
        errors = {
            rank: error
            for rank, text in own.items()
            if (error := last_error(text, "its own output"))
        }
        errors |= self._error_files(notes)
        shared = [
            line for key, one in words.items() if not _owner(notes.logs[key]) for line in one.shared
        ]
        if not self._kernel.readable:
            gaps.append(
                "the kernel log may not be read, so an OOM kill is not seen: give CAP_SYSLOG"
            )
        return msgspec.structs.replace(
            ending,
            words=launcher_words(lines),
            errors=errors,
            shared_error=last_error(shared, "the job's log"),
            deaths=self._kernel.since(notes.mark),
            oom_kills=_more_kills(notes),
            kernel_readable=self._kernel.readable,
            logs={rank: _tail("its own output", text) for rank, text in own.items() if text},
            log=_tail("the job's log", _before_launcher(shared)) if shared else None,
            log_path=next((log.place.target for log in notes.logs.values()), ""),
            gaps=tuple(gaps),
        )

    # --- while it lives ----------------------------------------------------------------------------

    def _find_logs(self, job: Job, notes: _Notes) -> None:
        host, finder = self._bench.host, LogFinder(self._bench.host)
        launcher = (
            host.process_state(job.launcher_pid, threads=False, files=True)
            if job.launcher_pid
            else None
        )
        for rank in job.ranks[:MAX_RANKS]:
            state = host.process_state(rank.pid, threads=False, files=True)
            if state is None:
                continue
            for place in finder.find(state, (launcher,) if launcher else ()).places:
                if place.parsed:
                    self._note_log(place, rank.rank, notes)
        if launcher is not None:  # its own words may go elsewhere than those of its ranks
            for place in finder.find(launcher).places:
                self._note_log(place, None, notes)

    def _note_log(self, place: LogPlace, rank: int | None, notes: _Notes) -> None:
        key = (place.inode, place.target)
        log = notes.logs.get(key)
        if log is None and len(notes.logs) < MAX_LOGS + MAX_RANKS:
            piece = self._bench.reader.read_from(place.path, 0, max_bytes=0)
            if isinstance(piece, Unreadable):
                return
            log = _Log(place=place, file=(piece.device, piece.inode), start=piece.size, ranks=set())
            notes.logs[key] = log
        if log is not None:
            log.place = place
            if rank is not None and place.kind in ("stdout", "stderr", "named"):
                log.ranks.add(rank)
            else:
                log.ranks |= {-1, -2}  # nobody's own

    def _find_error_files(self, ranks: Iterable[RankIdentity], notes: _Notes) -> None:
        wanted = {f"{self._bench.host.proc}/{one.pid}/environ": one for one in ranks}
        read = (
            self._bench.reader.read_many(list(wanted), max_bytes=MAX_ENVIRONMENT) if wanted else {}
        )
        for path, one in wanted.items():
            data = read[path]
            if isinstance(data, bytes):
                file = procfs.parse_environ(data).get(ERROR_FILE, "")
                if file.startswith("/"):
                    notes.error_files[one.pid] = self._error_file(one, file)

    def _error_file(self, one: RankIdentity, path: str) -> _ErrorFile:
        return _ErrorFile(
            rank=one.rank,
            path=path,
            pids=tuple(filter(None, (one.pid, one.launcher_pid))),
            rights=Rights(one.uid, self._bench.host.status(one.pid).groups),
        )

    # --- when it has ended -------------------------------------------------------------------------

    def _text(self, log: _Log, gaps: list[str]) -> list[str]:
        """The lines that came since we know the log, at most the last `MAX_TEXT` bytes."""
        place, reader, proc = log.place, self._bench.reader, self._bench.host.proc
        why = ""
        for path in (place.path, f"{proc}/{place.pid}/root{place.target}", place.target):
            head = reader.read_from(path, 0, max_bytes=0)
            if isinstance(head, Unreadable) or (head.device, head.inode) != log.file:
                why = head.reason if isinstance(head, Unreadable) else "it is another file by now"
                continue
            if place.rights and not place.rights.may_read(head):
                why = f"user {place.rights.uid} of the job may not read it"
                continue
            start = max(log.start if head.size >= log.start else 0, head.size - MAX_TEXT)
            piece = reader.read_from(path, start, max_bytes=MAX_TEXT)
            if not isinstance(piece, Unreadable):
                return piece.data.decode(errors="replace").splitlines()
            why = piece.reason
        gaps.append(f"the log {place.target} could not be read again: {why}")
        return []

    def _error_files(self, notes: _Notes) -> dict[int, RankError]:
        found = {}
        for file in notes.error_files.values():
            error = self._read_error(file)
            if error is not None:
                found[file.rank] = error
        return found

    def _read_error(self, file: _ErrorFile) -> RankError | None:
        """As the rank, or its launcher, saw that path; last as we see it. Only what the job's user may read."""
        proc = self._bench.host.proc
        for path in (*(f"{proc}/{pid}/root{file.path}" for pid in file.pids), file.path):
            piece = self._bench.reader.read_from(path, 0, max_bytes=MAX_ERROR_FILE)
            if not isinstance(piece, Unreadable) and file.rights.may_read(piece):
                return parse_error_file(piece.data)
        return None


def _owner(log: _Log) -> int | None:
    """The rank whose own this log is."""
    return next(iter(log.ranks)) if len(log.ranks) == 1 else None


def _own_lines(notes: _Notes, words: Mapping[tuple[int, str], Words]) -> dict[int, list[str]]:
    """Rank -> lines that are its own: marked ones, and those of a log that only it writes to."""
    found: dict[int, list[str]] = {}
    for key, one in words.items():
        for rank, lines in one.by_rank.items():
            found.setdefault(rank, []).extend(lines)
        owner = _owner(notes.logs[key])
        if owner is not None:
            found.setdefault(owner, []).extend(_before_launcher(list(one.shared)))
    return found


def _before_launcher(lines: list[str]) -> list[str]:
    """Leave out what a launcher says after its ranks are gone."""
    for at, line in enumerate(lines):
        if "torch/distributed/elastic" in line and (
            "closing signal" in line or "exitcode:" in line
        ):
            return lines[:at]
    return lines


def _more_kills(notes: _Notes) -> int | None:
    counts = [(oom_kills(file), before) for file, before in notes.counters.items()]
    known = [max(0, now - before) for now, before in counts if now is not None]
    return sum(known) if known else None


def _tail(source: str, lines: list[str]) -> LogTail:
    last = [line for line in lines if line.strip()][-LAST_LINES:]
    return LogTail(path=source, lines=tuple(safe_line(line, 400) for line in last))
