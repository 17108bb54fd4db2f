"""What launchers and schedulers write into a job's log when it ends: torchrun, srun, slurmstepd, mpirun. Pure, total.

A job can write such lines itself, so they only add to what the kernel told, or stand in where it told nothing.
"""

import re
from collections.abc import Sequence

from mldebug.endings.cudamemory import device_memory
from mldebug.endings.facts import LauncherFailure, LauncherWords, RankError, status_of_code
from mldebug.endings.words import blames_peer
from mldebug.redact import safe_line

_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<local>\d{1,6}) \(pid: (?P<pid>\d{1,10})\)"
)
_CLOSING = re.compile(r"Sending process (?P<pid>\d{1,10}) closing signal SIG")
_TOLD = re.compile(r"Received (?:Signals\.)?(?P<signal>\d{1,2}|SIG[A-Z0-9]{2,10}) death signal")
_CANCELLED = re.compile(
    r"(?:slurmstepd|srun): (?:error: )?\*{3} (?:JOB|STEP) \S{1,40} .{0,80}?CANCELLED AT \S+(?P<why> DUE TO [A-Za-z ]{1,40})?"
)
_OOM = re.compile(
    r"slurmstepd: error: Detected \d+ oom[_-]kill events?|srun: error: .{1,80}: Out Of Memory"
)
_TASK = re.compile(
    r"srun: error: \S{1,80}: task (?P<rank>\d{1,7}): (?:Exited with exit code (?P<code>\d{1,3})|(?P<how>[A-Z][A-Za-z ]{2,30}))"
)
_MPIRUN = re.compile(
    r"(?:mpirun|mpiexec|prterun) noticed that process rank (?P<rank>\d{1,7}) with PID \d{1,10} on node \S{1,80}"
    r" exited on signal (?P<signal>\d{1,2})"
)
_SLURM_SIGNALS = {"Killed": 9, "Terminated": 15, "Segmentation fault": 11, "Aborted": 6}
_ENTRY = re.compile(r"  (?P<key>time|host|rank|exitcode|error_file|traceback) *: ?(?P<value>.*)")
_RANK = re.compile(r"(?P<rank>\d{1,7}) \(local_rank: ")


def launcher_words(lines: Sequence[str]) -> LauncherWords:
    """Read the end of a job's log."""
    failures: list[LauncherFailure] = []
    ended: list[int] = []
    outside = out_of_memory = ""
    for line in lines:
        failure = _failure(line)
        if failure is not None:
            failures.append(failure)
        elif closing := _CLOSING.search(line):
            ended.append(int(closing["pid"]))
        elif not outside and not failures:
            outside = _outside(line)
        if not out_of_memory and _OOM.search(line):
            out_of_memory = safe_line(line)
    return LauncherWords(
        failures=tuple(failures),
        ended=tuple(ended),
        outside=outside,
        out_of_memory=out_of_memory,
        errors=_summary(lines),
    )


def _failure(line: str) -> LauncherFailure | None:
    failed = _FAILED.search(line)
    if failed:
        return LauncherFailure(
            pid=int(failed["pid"]),
            local_rank=int(failed["local"]),
            status=status_of_code(int(failed["code"])),
        )
    noticed = _MPIRUN.search(line)
    if noticed:
        return LauncherFailure(rank=int(noticed["rank"]), status=int(noticed["signal"]))
    task = _TASK.search(line)
    if task is None:
        return None
    number = _SLURM_SIGNALS.get((task["how"] or "").strip())
    status = status_of_code(int(task["code"])) if task["code"] else number
    return LauncherFailure(rank=int(task["rank"]), status=status)


def _outside(line: str) -> str:
    told = _TOLD.search(line)
    if told:
        return f"torchrun received signal {told['signal']}"
    cancelled = _CANCELLED.search(line)
    if cancelled:
        return f"the scheduler cancelled it{(cancelled['why'] or '').rstrip().lower()}"
    return ""


def _summary(lines: Sequence[str]) -> dict[int, RankError]:
    """torchrun's table of failures: rank -> the traceback that came through its error file."""
    errors: dict[int, RankError] = {}
    rank: int | None = None
    told: list[str] | None = None
    for line in lines:
        entry = _ENTRY.match(line)
        if entry is None and told is not None and line.startswith("  "):
            told.append(line)
            continue
        if told and rank is not None:
            _keep(errors, rank, told)
        told = None
        if entry and entry["key"] == "rank":
            number = _RANK.match(entry["value"])
            rank = int(number["rank"]) if number else None
        elif entry and entry["key"] == "traceback" and entry["value"].startswith("Traceback"):
            told = [entry["value"]]
    return errors


def _keep(errors: dict[int, RankError], rank: int, told: list[str]) -> None:
    lines = [line.removeprefix("  ") for line in told]
    last = next((line for line in reversed(lines) if line and not line.startswith(" ")), "")
    if last:
        errors[rank] = RankError(
            error=safe_line(last, 300),
            lines=tuple(safe_line(line, 400) for line in lines[-30:] if line.strip()),
            source="torchrun's failure table",
            blames_peer=blames_peer(last),
            memory=device_memory(last),
        )
