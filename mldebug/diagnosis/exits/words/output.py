"""What a job wrote into its logs and error files, and which rank wrote it. Pure.

A line is a rank's own where only that rank writes to the log, or where a mark names it. An error file
(TORCHELASTIC_ERROR_FILE) is the JSON that torch's `@record` writes when the main function of a rank raises:
`{"message": {"message": "ValueError: …", "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1763716000"}}}`
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from mldebug.core.model import Job, RankIdentity
from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.model import RankError
from mldebug.diagnosis.exits.words.error_text import MAX_LINES, with_cause
from mldebug.diagnosis.exits.words.last_words import (
    before_launcher,
    error_of,
    last_error,
)
from mldebug.diagnosis.exits.words.marks import LogWords, shortened
from mldebug.diagnosis.exits.words.raised_in import raised_in

TASKED = ("slurm", "openmpi", "mpich")  # launchers whose tasks are the ranks
MAX_TEXT, MAX_STACK = (
    8 << 10,
    32 << 10,
)  # characters of an error file's message, and of its last lines
OWN, SHARED = "its own output", "the job's log"


class LogOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one log. `owner`: the only rank that writes to it, None where several do."""

    path: str
    owner: int | None
    words: LogWords


def own_lines(outputs: Iterable[LogOutput]) -> dict[int, list[str]]:
    """By rank, the lines that it surely wrote: those of a log that only it writes to, without torchrun's lines at the end, and lines with its mark in shared logs."""
    found: dict[int, list[str]] = {}
    for one in outputs:
        if one.owner is not None:
            found.setdefault(one.owner, []).extend(before_launcher(one.words.every))
            continue
        for rank, lines in one.words.by_rank.items():
            found.setdefault(rank, []).extend(lines)
    return found


def shared_lines(outputs: Iterable[LogOutput]) -> list[str]:
    """The lines without a rank's mark, of logs that several ranks write to."""
    return [line for one in outputs if one.owner is None for line in one.words.shared]


def own_errors(outputs: Sequence[LogOutput]) -> dict[int, RankError]:
    """By rank, its last error.

    An error in lines that torch marked with the rank ended it, whatever was written later. One that Ray shows once for several processes is
    unclear: who of them was first it does not say.
    """
    folded = {safe_line(line, 400) for one in outputs for line in one.words.folded}
    marked: dict[int, list[str]] = {}
    for one in outputs:
        for rank, lines in one.words.by_rank.items():
            if one.owner in (None, rank):
                marked.setdefault(rank, []).extend(lines)
    own: Mapping[int, Sequence[str]] = own_lines(outputs)
    found = {
        rank: last_error(marked.get(rank, ()), OWN, rank=rank)
        or last_error(own.get(rank, ()), OWN, rank=rank)
        for rank in marked.keys() | own.keys()
    }
    errors = {rank: error for rank, error in found.items() if error is not None}
    return {
        rank: msgspec.structs.replace(error, unclear=not error.blames_peer)
        if folded.intersection(error.lines[-1:])
        else error
        for rank, error in errors.items()
    }


def own_paths(outputs: Iterable[LogOutput]) -> dict[int, str]:
    """By rank, the log that holds its own lines; of several the last one."""
    return {
        rank: one.path
        for one in outputs
        for rank in (one.words.by_rank if one.owner is None else (one.owner,))
    }


def ranks_of_tasks(job: Job, identities: Sequence[RankIdentity]) -> Collection[int]:
    """The ranks on this node, where each is a task of its own for srun or mpirun; empty where one task starts all ranks of a node."""
    whole = job.launcher == "environment" and len(identities) == job.world_size
    return [one.rank for one in identities] if whole or job.launcher in TASKED else ()


def parse_error_file(data: bytes) -> RankError | None:
    """Return the error in the content of an error file (TORCHELASTIC_ERROR_FILE); None where the data is not the JSON that
    torch writes.
    """
    try:
        content = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    message = content.get("message") if isinstance(content, dict) else None
    text, stack = message, ""
    if isinstance(message, dict):
        text = message.get("message")
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
    if not isinstance(text, str) or not text.strip():
        return None
    text = shortened(text.strip(), MAX_TEXT)
    lines = (
        [shortened(one) for one in stack[-MAX_STACK:].splitlines()]
        if isinstance(stack, str)
        else []
    )
    written = text.splitlines()
    error = with_cause(safe_line(written[0], 300), written, 0)
    last = tuple(safe_line(line, 400) for line in lines[-MAX_LINES:] if line.strip())
    place = raised_in(lines, 0, len(lines))
    return error_of(f"{text}\n{error}", error, last, "its error file", place=place)
