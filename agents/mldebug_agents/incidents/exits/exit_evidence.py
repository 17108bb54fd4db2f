"""The evidence that a job leaves when it ends. Where it will be (logs, error files, cgroups) is
noted while the job lives, because it cannot be found afterwards.

Used by one worker thread. Files that a job names are read through the reader child, in limited
pieces.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from mldebug.core.model import FlightRecord, Job, LogTail, ProcessState, RankIdentity
from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.model import AttemptExit, RankError
from mldebug.diagnosis.exits.words.last_words import (
    before_launcher,
    last_error,
    stop_line,
)
from mldebug.diagnosis.exits.words.launcher_lines import launcher_words
from mldebug.diagnosis.exits.words.marks import take_apart
from mldebug.diagnosis.exits.words.output import (
    OWN,
    SHARED,
    LogOutput,
    own_errors,
    own_lines,
    own_paths,
    parse_error_file,
    ranks_of_tasks,
    shared_lines,
)
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.hardware.kernel_log import sees_kernel_pids
from mldebug_agents.incidents.exits.job_notes import (
    JobLog,
    JobNotes,
    RankErrorFile,
    count_kills,
    more_kills,
    owner_of,
)
from mldebug_agents.incidents.exits.kernel_deaths import KernelDeathLog, log_doubt, oom_counter
from mldebug_agents.jobs.hook.memory import MemoryFailures
from mldebug_agents.jobs.logs.locations import LogFile, LogFinder
from mldebug_agents.jobs.logs.pipes import UnreadPipes
from mldebug_agents.system import procfs
from mldebug_agents.system.child.job_paths import NO_RIGHTS, Rights
from mldebug_agents.system.reader import Unreadable

MAX_RANKS = 64  # of one job, whose files are remembered
MAX_LOGS = 8
MAX_TEXT = 256 << 10
MAX_ERROR_FILE = 256 << 10
MAX_ENVIRONMENT = 1 << 20
LAST_LINES = 30
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


class ExitEvidence:
    """Notes for each living job where it will leave evidence, and collects that when the job ends."""

    def __init__(
        self,
        tools: CaptureTools,
        kernel: KernelDeathLog | None = None,
        complete: Callable[[AttemptExit], AttemptExit] = lambda attempt: attempt,
    ) -> None:
        """`complete`: adds to an exit, in the worker, what its errors give reason to look at."""
        self._complete = complete
        self._tools, self._host, self._reader = tools, tools.context.host, tools.context.reader
        self._kernel = kernel or KernelDeathLog(f"{self._host.root}/dev/kmsg")
        self._kernel_pids = sees_kernel_pids(self._host)
        self._notes: dict[str, JobNotes] = {}
        self._unread = UnreadPipes()
        self._memory = MemoryFailures(self._host, self._reader)

    def add_job(self, job: Job) -> None:
        """Search where this living job will leave evidence, and note it.

        Called again from time to time, since files and ranks are added.
        """
        notes = self._notes.get(job.id)
        if notes is None:
            notes = self._notes[job.id] = JobNotes(mark=self._kernel.mark())
        self._find_logs(job, notes)
        fresh = [one for one in job.ranks[:MAX_RANKS] if one.pid not in notes.pids]
        notes.pids.update(one.pid for one in fresh)
        self._find_error_files(fresh, notes)
        for one in fresh:
            counter = oom_counter(self._host, one.pid)
            if counter:
                notes.counters.setdefault(counter, [])
        whole = not job.lost and notes.pids <= {one.pid for one in job.ranks}
        count_kills(notes, whole=whole)
        mark = (
            self._kernel.mark()
        )  # often enough that only a flood overwrites what we have not read
        if whole:
            notes.calm = [*notes.calm[-1:], mark]

    def forget(self, job_id: str) -> None:
        """Drop the notes on a job whose end has been judged."""
        self._notes.pop(job_id, None)

    def _dumps(self, attempt: AttemptExit) -> dict[int, FlightRecord]:
        """By rank, the Flight Recorder that PyTorch dumped before the exit."""
        if not self._tools.context.config.capture.flight_recorder:
            return {}
        return self._tools.flight_recorders.left_behind(self._ended(attempt))

    def collect(self, attempt: AttemptExit) -> AttemptExit:
        """The attempt's exit with all evidence that can be read: log lines, error files, kernel
        log, OOM counters, Flight Recorders, call traces.

        What is doubtful or missing stands in its `gaps`.
        """
        notes = self._notes.get(attempt.job.id) or JobNotes(mark=self._kernel.mark())
        missed = attempt.job.id not in self._notes
        gaps = ["nobody watched when the job ended: what it wrote is not known"] if missed else []
        known = len(gaps)
        outputs, lines = self._outputs(attempt, notes, gaps)
        read = bool(outputs) and len(gaps) == known
        own, shared = own_lines(outputs), shared_lines(outputs)
        own_pids = {*notes.pids, *attempt.children, *(one.pid for one in attempt.exits)}
        deaths = self._kernel.since(notes.mark) if self._kernel_pids else ()
        deaths = tuple(
            one for one in deaths if one.pid in own_pids
        )  # others' are not theirs to read
        calm = notes.calm[0] if len(notes.calm) > 1 else notes.mark
        doubt = log_doubt(self._kernel, calm, kernel_pids=self._kernel_pids)
        if doubt:
            gaps.append(doubt)
        found = msgspec.structs.replace(
            attempt,
            words=launcher_words(lines),
            errors=own_errors(outputs) | self._error_files(notes),
            shared_error=last_error(shared, SHARED, shared=True),
            flights=self._dumps(attempt),
            traces=self._tools.traces.left_behind(self._ended(attempt)),
            memory=self._memory.left_behind(self._ended(attempt), gaps),
            deaths=deaths,
            oom_kills=more_kills(notes),
            kernel_readable=not doubt,
            logs={rank: _tail(OWN, text) for rank, text in own.items() if text},
            log=_tail(SHARED, before_launcher(shared)) if shared else None,
            log_path=next((log.place.target for log in notes.logs.values()), ""),
            log_paths=own_paths(outputs),
            output_read=read,
            told_to_stop=next(filter(None, (stop_line(o.words.every) for o in outputs)), ""),
            gaps=tuple(gaps),
        )
        return self._complete(found)

    def _ended(self, attempt: AttemptExit) -> list[RankIdentity]:
        gone = {one.rank for one in attempt.exits}
        return [one for one in attempt.identities if one.rank in gone][:MAX_RANKS]

    # --- while it lives ----------------------------------------------------------------------------

    def _find_logs(self, job: Job, notes: JobNotes) -> None:
        host, finder = self._host, LogFinder(self._host, self._unread)
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
            for place in finder.find(launcher, rights=self._rights(job, launcher)).places:
                self._note_log(place, None, notes)
        self._mark_shared_logs(notes)

    def _rights(self, job: Job, launcher: ProcessState) -> Rights:
        """Those of a rank. Where there is none yet, the launcher's own, if it is of the job's user: it may be root's."""
        rights = self._host.rights
        if job.ranks:
            return rights.of(job.ranks[0])
        found = rights.of_process(launcher.pid, launcher.start_ticks)
        return found if found.uid == job.uid else NO_RIGHTS

    def _mark_shared_logs(self, notes: JobNotes) -> None:
        """Mark the logs that living ranks of another run write to, too. Ranks of an earlier attempt are gone."""
        for other in self._notes.values():
            if other is notes or other.pids & notes.pids or not self._lives(other):
                continue
            files = {log.file for log in notes.logs.values()}
            files &= {log.file for log in other.logs.values()}
            for log in (*notes.logs.values(), *other.logs.values()):
                log.mark_shared(files)

    def _lives(self, notes: JobNotes) -> bool:
        states = (self._host.brief(pid) for pid in notes.pids)
        return any(stat is not None and stat.state not in "ZX" for stat in states)

    def _note_log(self, place: LogFile, rank: int | None, notes: JobNotes) -> None:
        key = (place.inode, place.target)
        log = notes.logs.get(key)
        if log is None and len(notes.logs) < MAX_LOGS + MAX_RANKS:
            piece = self._reader.read_from(place.path, 0, rights=place.rights, max_bytes=0)
            if isinstance(piece, Unreadable):
                return
            log = JobLog(
                place=place, file=(piece.device, piece.inode), start=piece.size, ranks=set()
            )
            notes.logs[key] = log
        if log is not None:
            log.place = place
            if rank is not None and place.kind in ("stdout", "stderr", "named"):
                log.ranks.add(rank)
            else:
                log.ranks |= {-1, -2}  # nobody's own

    def _find_error_files(self, ranks: Iterable[RankIdentity], notes: JobNotes) -> None:
        wanted = {f"{self._host.proc}/{one.pid}/environ": one for one in ranks}
        read = self._reader.read_many(list(wanted), max_bytes=MAX_ENVIRONMENT) if wanted else {}
        for path, one in wanted.items():
            data = read[path]
            if isinstance(data, bytes):
                file = procfs.parse_environ(data).get(ERROR_FILE, "")
                if file.startswith("/"):
                    self._host.rights.of(one)  # while it lives
                    notes.error_files[one.pid] = RankErrorFile(rank=one, path=file)

    # --- when it has ended -------------------------------------------------------------------------

    def _outputs(
        self, attempt: AttemptExit, notes: JobNotes, gaps: list[str]
    ) -> tuple[list[LogOutput], list[str]]:
        """What was written to the logs of the job since it was found, except logs that another run writes to as well."""
        locals_ = {
            one.local_rank: one.rank for one in attempt.identities if one.local_rank is not None
        }
        tasks = ranks_of_tasks(attempt.job, attempt.identities)
        outputs, lines = [], []
        for log in notes.logs.values():
            path = log.place.target
            if log.foreign:
                gaps.append(f"another job writes to {path} as well: no word in it counts")
                continue
            text = self._text(log, gaps)
            words = take_apart(text, locals_, tasks)
            outputs.append(LogOutput(path=path, owner=owner_of(log), words=words))
            lines += text
        return outputs, lines

    def _text(self, log: JobLog, gaps: list[str]) -> list[str]:
        """The lines written since the log was found, at most the last `MAX_TEXT` bytes."""
        place, reader, proc = log.place, self._reader, self._host.proc
        rights, why = place.rights, ""
        root = f"{proc}/{place.pid}/root"
        for path, learned in ((place.path, ""), (f"{root}{place.target}", root), (place.target, "/")):  # fmt: skip
            head = reader.read_from(path, 0, rights=rights, place=learned, max_bytes=0)
            if isinstance(head, Unreadable) or (head.device, head.inode) != log.file:
                why = head.reason if isinstance(head, Unreadable) else "it is another file by now"
                continue
            start = max(log.start if head.size >= log.start else 0, head.size - MAX_TEXT)
            piece = reader.read_from(path, start, rights=rights, place=learned, max_bytes=MAX_TEXT)
            if not isinstance(piece, Unreadable) and (piece.device, piece.inode) == log.file:
                return piece.data.decode(errors="replace").splitlines()
            why = piece.reason if isinstance(piece, Unreadable) else "it is another file by now"
        gaps.append(f"the log {place.target} could not be read again: {why}")
        return []

    def _error_files(self, notes: JobNotes) -> dict[int, RankError]:
        found = {}
        for file in notes.error_files.values():
            error = self._read_error(file)
            if error is not None:
                found[file.rank.rank] = error
        return found

    def _read_error(self, file: RankErrorFile) -> RankError | None:
        """Read it by the path as the rank or its launcher has it, or as we have it where that is the same; with the rank's rights."""
        rights = self._host.rights.of(file.rank)
        for root in self._host.rights.roots(file.rank):
            path = f"{root}{file.path}"
            piece = self._reader.read_from(path, 0, rights=rights, max_bytes=MAX_ERROR_FILE)
            if not isinstance(piece, Unreadable):
                return parse_error_file(piece.data)
        return None


def _tail(source: str, lines: Sequence[str]) -> LogTail:
    last = [line for line in lines if line.strip()][-LAST_LINES:]
    return LogTail(path=source, lines=tuple(safe_line(line, 400) for line in last))
