"""What launchers and schedulers write into a job's log when it ends: torchrun, srun, slurmstepd, mpirun, hydra. Pure, total.

A job can write such lines itself, so they only add to exit statuses and kernel lines, or replace missing ones.

| launcher | what it writes | what it is worth |
|---|---|---|
| torchrun | `failed (exitcode: …) local_rank: … (pid: …)` | the first failing rank of each attempt |
| Open MPI, Horovod | `rank 1 … exited on signal 9`, `The first process to do so was: … Exit code: 3` | the first failing rank |
| srun | `task 1: Killed`, `tasks 2-7: Exited with exit code 1` | the first is the failing one, where it is one; after `Terminating` all others follow, after `Job step aborted` all |
| deepspeed | `[…] exits with return code = -9` | cited only: the code of the first, which is not named |
| nvidia-resiliency-ext | `Did not get subsequent heartbeat` | it kills a rank that hangs or waits: such a SIGKILL names nobody |
| hydra | `BAD TERMINATION … PID … EXIT CODE …` | cited only: it names the lowest rank with any status, its own victims included, and mixes the bits of all statuses |
"""

import re
from collections.abc import Sequence
from itertools import chain, islice

from mldebug.core.ranksets import join_intervals
from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.model import (
    LauncherFailure,
    LauncherWords,
    RankError,
    status_of_code,
)
from mldebug.diagnosis.exits.words.last_words import error_of

_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<local>\d{1,6}) \(pid: (?P<pid>\d{1,10})\)"
)
_CLOSING = re.compile(r"Sending process (?P<pid>\d{1,10}) closing signal SIG")
_TORCHRUN_SIGNAL = re.compile(
    r"Received (?:Signals\.)?(?P<signal>\d{1,2}|SIG[A-Z0-9]{2,10}) death signal"
)
_CANCELLED = re.compile(
    r"(?:slurmstepd\S{0,80}|srun): (?:error: )?\*{3} (?P<what>JOB|STEP) \S{1,40} .{0,80}?CANCELLED AT \S+(?P<why> DUE TO [A-Za-z ]{1,40})?"
)
_OOM = re.compile(
    r"slurmstepd\S{0,80}: error: Detected \d+ oom[_-]kill events?|srun: error: .{1,80}: Out Of Memory"
)
_TASK = re.compile(
    r"srun: error: \S{1,80}: tasks? (?P<ranks>\d[\d,-]{0,2000}): (?:Exited with exit code (?P<code>\d{1,3})|(?P<how>[A-Z][A-Za-z ]{2,30}))"
)
_MPIRUN = re.compile(
    r"(?:mpirun|mpiexec|orterun|prterun)\S{0,20} noticed that process rank (?P<rank>\d{1,7}) with PID \d{1,10} on node \S{1,80}"
    r" exited on signal (?P<signal>\d{1,2})"
)
# Open MPI, PRRTE; Horovod's own launcher
_FIRST = re.compile(
    r"^ *Process name: (?:\[(?:\[\d+,\d+\]|[^\],]{1,80}),(?P<rank>\d{1,7})\]|(?P<number>\d{1,7})\s*$)"
)
_CODE = re.compile(r"^ *Exit code: +(?P<code>\d{1,3})\s*$")
_STOPPING = re.compile(
    r"srun: .{0,60}Terminating StepId=|srun: Force Terminated|srun: forcing job termination|srun: Job step aborted"
)
_SRUN_STOPPED = re.compile(r"srun: forcing job termination")
_HYDRA_SIGNAL = re.compile(
    r"\[mpiexec@\S{1,80}\] Sending (?P<what>\S{1,20}) to processes as requested"
)
_FORWARDED = re.compile(
    r"^(?:mpirun|mpiexec|orterun|prterun)\S{0,20}: Forwarding signal (?P<signal>\d{1,2}) to job"
)
_BANNER = re.compile(
    r"^= +BAD TERMINATION OF|^YOUR APPLICATION TERMINATED WITH THE EXIT STRING"
    r"|\[launch\.py:\d+:\w+\] .{0,2000} exits with return code = -?\d+"
    r"|^subprocess\.CalledProcessError: Command '.{0,3000}' (?:returned non-zero exit status|died with) "
)
_SLURM_SIGNALS = {"Killed": 9, "Terminated": 15, "Segmentation fault": 11, "Aborted": 6}
# nvidia-resiliency-ext, which then kills the rank: every rank of a job that hangs sends no more heartbeats
_MONITOR = re.compile(
    r"Did not get (?:initial|subsequent) heartbeat\. Waited \d|\bFT timeout elapsed|Section '[^'\n]{1,80}' has been open for [\d.]{1,20} seconds\. Timeout is"
)
MAX_CITED = 4
MOST_TASKS = 4096  # of one line, and of a log
_ENTRY = re.compile(r"  (?P<key>time|host|rank|exitcode|error_file|traceback) *: ?(?P<value>.*)")
_RANK = re.compile(r"(?P<rank>\d{1,7}) \(local_rank: ")


def launcher_words(lines: Sequence[str]) -> LauncherWords:
    """The statements of launchers and schedulers in the last lines of a job's log."""
    reader = _LauncherReader()
    for line in lines:
        reader.read(line)
    return LauncherWords(
        failures=tuple(reader.failures),
        followers=tuple(reader.followers),
        ended=tuple(reader.ended),
        outside=reader.cancelled or reader.outside,
        out_of_memory=reader.out_of_memory,
        monitor=reader.monitor,
        errors=_summary(lines),
        cited=tuple(reader.cited[:MAX_CITED]),
    )


class _LauncherReader:
    """Collects what the lines of a log say about failed ranks, line by line."""

    def __init__(self) -> None:
        self.failures: list[LauncherFailure] = []
        self.followers: list[LauncherFailure] = []
        self.ended: list[int] = []
        self.outside = self.cancelled = self.out_of_memory = self.monitor = ""
        self.cited: list[str] = []
        self._stopping = False  # the launcher ends what is left
        self._forwarded: set[int] = set()  # signals, which a job may well survive
        self._first: int | None = None  # the rank that Open MPI's next line tells the code of

    def read(self, line: str) -> None:
        """Read the next line of the launcher's output."""
        if failed := _of_torchrun(line):
            self._add(self.failures, (failed,))
        elif found := self._plain(line) or self._of_two_lines(line):
            self._add(self.followers if self._stopping else self.failures, found)
        elif closing := _CLOSING.search(line):
            self.ended.append(int(closing["pid"]))
        elif not self.failures:
            self._note_outside(line)
        if not self.out_of_memory and _OOM.search(line):
            self.out_of_memory = safe_line(line)
        if not self.monitor and _MONITOR.search(line):
            self.monitor = safe_line(line.strip(), 200)
        self._stopping = self._stopping or _STOPPING.search(line) is not None or bool(self.outside)
        if _BANNER.search(line):
            self.cited.append(safe_line(line.lstrip("= ").strip(), 200))

    def _add(self, some: list[LauncherFailure], found: Sequence[LauncherFailure]) -> None:
        """Keep what a line tells, as long as there is room: a job can write as many such lines as it wants."""
        some.extend(found[: MOST_TASKS - len(some)])

    def _plain(self, line: str) -> Sequence[LauncherFailure]:
        if forwarded := _FORWARDED.search(line):
            self._forwarded.add(int(forwarded["signal"]))
        room = MOST_TASKS - len(self.followers if self._stopping else self.failures)
        found = _of_mpirun(line) or _of_srun(line, room)
        if found and found[0].status in self._forwarded:
            self.outside = self.outside or f"mpirun passed on signal {found[0].status}"
            return ()
        if found:
            self.cited.append(safe_line(line.strip(), 200))
        return found

    def _of_two_lines(self, line: str) -> Sequence[LauncherFailure]:
        """Open MPI and Horovod name the first rank that left with a code, and the code below."""
        if first := _FIRST.search(line):
            self._first = int(first["rank"] or first["number"])
            return ()
        code, rank = _CODE.search(line), self._first
        if code is None or rank is None:
            return ()
        self._first = None
        self.cited.append(f"the first process with a non-zero status: rank {rank}, {line.strip()}")
        return (LauncherFailure(rank=rank, status=status_of_code(int(code["code"]))),)

    def _note_outside(self, line: str) -> None:
        cancelled = _CANCELLED.search(line)
        why = _outside(line)
        if cancelled and cancelled["what"] == "JOB" and not self.cancelled:
            self.cancelled = why  # says more than what srun makes of it
        if not self.outside:
            self.outside = why


def _of_torchrun(line: str) -> LauncherFailure | None:
    """A line of torchrun about a failed rank."""
    failed = _FAILED.search(line)
    if failed is None:
        return None
    return LauncherFailure(
        pid=int(failed["pid"]),
        local_rank=int(failed["local"]),
        status=status_of_code(int(failed["code"])),
    )


def _of_mpirun(line: str) -> Sequence[LauncherFailure]:
    noticed = _MPIRUN.search(line)
    if noticed is None:
        return ()
    return (LauncherFailure(rank=int(noticed["rank"]), status=int(noticed["signal"])),)


def _of_srun(line: str, most: int) -> Sequence[LauncherFailure]:
    """One for each task that the line names, and not more than `most`: `task 1`, `tasks 2-7,9`."""
    tasks = _TASK.search(line)
    if tasks is None:
        return ()
    number = _SLURM_SIGNALS.get((tasks["how"] or "").strip())
    status = status_of_code(int(tasks["code"])) if tasks["code"] else number
    counts = ((first, last - first + 1) for first, last in join_intervals([tasks["ranks"]]))
    spans = ((first + n for n in range(min(count, most))) for first, count in counts)
    ranks = islice(chain.from_iterable(spans), most)
    return tuple(LauncherFailure(rank=rank, status=status) for rank in ranks)


def _outside(line: str) -> str:
    if signalled := _TORCHRUN_SIGNAL.search(line):
        return f"torchrun received signal {signalled['signal']}"
    if cancelled := _CANCELLED.search(line):
        return f"the scheduler cancelled it{(cancelled['why'] or '').rstrip().lower()}"
    if _SRUN_STOPPED.search(line):
        return "srun was told to end"
    if hydra := _HYDRA_SIGNAL.search(line):
        return f"mpiexec was told to pass on {hydra['what']}"
    return ""


def _summary(lines: Sequence[str]) -> dict[int, RankError]:
    """torchrun's table of failures: rank -> the traceback that came through its error file."""
    errors: dict[int, RankError] = {}
    rank: int | None = None
    traceback: list[str] | None = None
    for line in (*lines, ""):  # the end of a log ends the last traceback
        entry = _ENTRY.match(line)
        if entry is None and traceback is not None and line.startswith("  "):
            traceback.append(line)
            continue
        if traceback and rank is not None:
            _add_error(errors, rank, traceback)
        traceback = None
        if entry and entry["key"] == "rank":
            number = _RANK.match(entry["value"])
            rank = int(number["rank"]) if number else None
        elif entry and entry["key"] == "traceback" and entry["value"].startswith("Traceback"):
            traceback = [entry["value"]]
    return errors


def _add_error(errors: dict[int, RankError], rank: int, traceback: list[str]) -> None:
    lines = [line.removeprefix("  ") for line in traceback]
    last = next((line for line in reversed(lines) if line and not line.startswith(" ")), "")
    if last and not last.startswith("Traceback (most recent call last)"):  # it is whole
        shown = tuple(safe_line(line, 400) for line in lines[-30:] if line.strip())
        errors[rank] = error_of(last, safe_line(last, 300), shown, "torchrun's failure table")
