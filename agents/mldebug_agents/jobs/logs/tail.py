"""The last lines that a rank wrote: finds the file behind its stdout and stderr, and reads the end of it."""

from collections.abc import Iterable

from mldebug.core.model import LogTail, OpenFile, ProcessState
from mldebug.core.redact import redact, safe_line
from mldebug.diagnosis.exits.words.tracebacks import find_tracebacks
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.reader import Reader, Unreadable

MAX_BYTES = 512 * 1024  # searched for tracebacks
MAX_TRACEBACKS = 4
MAX_LINES = 40
LOG_NAMES = (".log", ".out", ".err", ".txt")


def log_of(
    states: Iterable[ProcessState | None],
) -> tuple[int, OpenFile, ProcessState] | None:
    """The log file of a rank: its stdout or stderr, else an open file with the name of a log; else
    the same of the processes that may read its pipes.

    `states`: the rank, then those processes; None stands for one that is gone. Returns (pid of the
    writer, its descriptor, the first process, whose rights count), or None.
    """
    living = [state for state in states if state is not None]
    for state in living:
        files = [file for file in state.files if file.kind == "file" and "w" in file.mode]
        streams = [file for file in files if file.fd in (1, 2)]
        named = [file for file in files if file.target.endswith(LOG_NAMES)]
        for file in (*streams, *named):
            return state.pid, file, living[0]
    return None


def read_log(reader: Reader, pid: int, file: OpenFile, rights: Rights) -> LogTail | Unreadable:
    """The last lines of a file that process `pid` has open, read with `rights` (those of the rank), without control characters
    and secrets.
    """
    path = f"/proc/{pid}/fd/{file.fd}"
    tail = reader.read_tail(path, rights=rights, max_bytes=MAX_BYTES)
    if isinstance(tail, Unreadable):
        return tail
    lines = tail.data.decode(errors="replace").splitlines()
    return LogTail(
        path=file.target,
        lines=_cleaned(lines[-MAX_LINES:]),
        earlier=_cleaned(_tracebacks(lines[:-MAX_LINES])),
        modified_at=tail.mtime,
        size_bytes=tail.size,
    )


def _cleaned(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(safe_line(redact(line), 400) for line in lines)


def _tracebacks(lines: list[str]) -> list[str]:
    """The last few tracebacks of these lines, each with the two lines before it and without its middle."""
    if not any("Traceback (most recent call last)" in line for line in lines):
        return []
    kept: list[str] = []
    found = find_tracebacks(lines)
    ends = [-1, *(one.end for one in found)]
    for one, before in list(zip(found, ends, strict=False))[-MAX_TRACEBACKS:]:
        whole = lines[max(before + 1, one.start - 2) : one.end + 1]
        kept += whole if len(whole) <= MAX_LINES else [*whole[:4], *whole[4 - MAX_LINES :]]
    return kept
