"""Exceptions that a rank printed and outlived: one of its threads died of one, it cannot exit after it, or it ignored it.

In a log that all ranks share most lines have no rank's mark. Then an exception is a rank's where
that rank alone lacks the thread that died, stands in the function that raised it, or is exiting.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from mldebug.capture.frames import bare, principal
from mldebug.core.model import MAIN_THREAD, ClassifiedRank, Finding, Verdict
from mldebug.core.plugins import create_all
from mldebug.core.redact import safe_line
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.exits.words.last_words import blames_peer
from mldebug.diagnosis.exits.words.marks import LogWords, take_apart
from mldebug.diagnosis.exits.words.output import ranks_of_tasks
from mldebug.diagnosis.exits.words.tracebacks import Traceback, find_tracebacks, went_on
from mldebug.jobs.logs.parser import LogParser

MAX_TEXT = 240
MAX_NAMED = 2
MAX_LOOKED_AT = 16  # ranks whose logs are searched
AT_EXIT = ("thread_exit", "dataloader_exit", "destroy")
QUIET_ABOUT = (Verdict.GPU_FAULT, Verdict.OUT_OF_MEMORY, Verdict.RANK_EXITED, Verdict.JOB_PAUSED)
"""Verdicts that have the error in their own words, or nothing to do with one."""
_THREAD = re.compile(r"Exception in thread (?P<name>.{1,80}?):\s*$")
_FRAME = re.compile(
    r'File "(?P<path>[^"]{1,1000})", line (?P<line>\d{1,7}), in (?P<name>[^\s(]{1,200})'
)
_RICH_FRAME = re.compile(r"│ (?P<path>/[^│:]{1,1000}):(?P<line>\d{1,7}) in (?P<name>\S{1,200})\s*│")
_CLOCK = re.compile(r"(?<!\d)\d\d:\d\d:\d\d(?!\d)")


class Raised(NamedTuple):
    """One exception found in a log: type, message, and where it was raised."""

    error: str  # ValueError: bad shard 7
    thread: str = ""  # that died of it; "": the main thread, or not told
    moment: str = ""  # 12:03:11, as the log has it; "": it has no times
    frames: tuple[tuple[str, str, str], ...] = ()  # (file name, line, function), innermost first
    went_on: bool = False  # lines after it show that it was no end of anything
    trained_on: bool = False  # steps of training are among them

    @property
    def place(self) -> str:
        """Where the exception was raised, as text: ` in load (train.py:9)`; "" where that is not written."""
        if not self.frames:
            return ""
        file, line, function = self.frames[0]
        return f" in {function} ({file}:{line})"

    @property
    def uncaught(self) -> bool:
        """Whether the exception has left the script: no thread has raised it, and its traceback has a frame of the module
        level (`<module>`).
        """
        return not self.thread and any(frame[2] == "<module>" for frame in self.frames)


def with_exceptions(case: Case, finding: Finding) -> Finding:
    """The finding with the exceptions that the named ranks have raised; where nobody is named, those of the suspects or, without any, of all, as evidence only."""
    if finding.verdict in QUIET_ABOUT or case.moved:
        return finding
    named = [one.rank for one in finding.culprits if one.rank is not None]
    looked_at = named or [rank.rank for rank in case.suspects or case.ranks]
    shown = dict(raised_by(case, looked_at[:MAX_LOOKED_AT]))
    facts = tuple(f"rank {rank}: its log has {safe_line(one.error, MAX_TEXT)}{one.place}" for rank, one in sorted(shown.items()))  # fmt: skip
    words = [_words(case, rank, one) for rank, one in sorted(shown.items()) if rank in named and _counts(case, rank, one)]  # fmt: skip
    return msgspec.structs.replace(
        finding,
        summary="; ".join((finding.summary, *words[:MAX_NAMED])),
        evidence=(*facts, *finding.evidence),
    )


def _counts(case: Case, number: int, one: Raised) -> bool:
    """Whether the rank has outlived it: nothing went on after it, or only other threads of a rank whose script it has ended."""
    return not one.went_on or _ended_script(_rank(case, number), one)


def _ended_script(rank: ClassifiedRank, one: Raised) -> bool:
    return one.uncaught and not one.trained_on and _exits(rank)


def _rank(case: Case, number: int) -> ClassifiedRank:
    return next(rank for rank in case.ranks if rank.rank == number)


def _words(case: Case, number: int, one: Raised) -> str:
    """`thread prefetcher of rank 2 died with OSError: … at 12:03:11`."""
    rank = _rank(case, number)
    at = f" at {one.moment}" if one.moment else ""
    error = f"{safe_line(one.error, MAX_TEXT)}{one.place}{at}"
    if one.thread and one.thread not in _thread_names(rank):
        return f"thread {safe_line(one.thread, 80)} of rank {number} died with {error}"
    exits = " and waits at its exit since" if _exits(rank) else ""
    return f"rank {number} raised {error}{exits}"


# --- whose it is -----------------------------------------------------------------------------------


def raised_by(case: Case, ranks: Collection[int]) -> Iterator[tuple[int, Raised]]:
    """Yield (rank, an exception that it raised) for these ranks: the last one that ended its script, or else the last one.

    Exceptions that only blame another rank are left out.
    """
    for rank in (one for one in case.ranks if one.rank in ranks):
        lines = own_lines(case, rank)
        found = [one for one in exceptions_in(lines) if not blames_peer(one.error)]
        found = found or [one for one in _unmarked(case, rank) if not blames_peer(one.error)]
        ended = [one for one in found if _ended_script(rank, one)]
        if found:  # a thread may die of what ended the script
            yield rank.rank, _with_moment((ended or found)[-1], rank)


def _with_moment(one: Raised, rank: ClassifiedRank) -> Raised:
    """With the time that its line bears before the rank's mark."""
    log = rank.capture.log if rank.capture else None
    if one.moment or log is None:
        return one
    lines = (line for line in (*log.lines, *log.earlier) if line.endswith(one.error))
    clock = next((match[0] for line in lines if (match := _CLOCK.search(line.removesuffix(one.error)))), "")  # fmt: skip
    return one._replace(moment=clock)


def own_lines(case: Case, rank: ClassifiedRank) -> Sequence[str]:
    """The log lines that this rank surely wrote: all of a log that it alone writes to, or those with its mark in a shared one."""
    words = _log_words(case, rank)
    if rank.capture is None or rank.capture.log is None or words is None:
        return ()
    if words.by_rank.keys() <= {rank.rank} and _writes_alone(case, rank, rank.capture.log.path):
        return words.every
    return words.by_rank.get(rank.rank, ())


def _log_words(case: Case, rank: ClassifiedRank) -> LogWords | None:
    if rank.capture is None or rank.capture.log is None:
        return None
    known = [one.capture.identity for one in case.ranks if one.capture is not None]
    locals_ = {one.local_rank: one.rank for one in known if one.local_rank is not None}
    one_node = len({one.node for one in case.ranks}) == 1  # else a local rank is several ranks
    tasks = ranks_of_tasks(case.job, known)
    log = rank.capture.log
    return take_apart((*log.earlier, *log.lines), locals_ if one_node else {}, tasks)


def _writes_alone(case: Case, rank: ClassifiedRank, path: str) -> bool:
    """Does no other rank write there? One without a process may have done so."""
    others = [one.capture for one in case.ranks if one is not rank]
    return all(one is not None and (one.log is None or one.log.path != path) for one in others)


def _unmarked(case: Case, rank: ClassifiedRank) -> Iterator[Raised]:
    """The exceptions in a shared log that bear no mark and can be of this rank alone."""
    words = _log_words(case, rank)
    if rank.capture is None or rank.capture.log is None or words is None or not words.shared:
        return
    path = rank.capture.log.path
    others = [one for one in case.ranks if one is not rank and _may_write(one, path)]
    for one in exceptions_in(words.shared):
        mine = _signs(rank, one)
        theirs = {sign for other in others for sign in _signs(other, one)} if mine else set()
        if mine - theirs:
            yield one._replace(went_on=False, trained_on=False)  # others write there as well


def _may_write(rank: ClassifiedRank, path: str) -> bool:
    log = rank.capture.log if rank.capture else None
    return log is None or log.path == path


def _signs(rank: ClassifiedRank, one: Raised) -> set[tuple[str, str]]:
    """What speaks for this rank: its thread is gone, it stands in a function of the traceback, or it is at its exit."""
    names = _thread_names(rank)
    found = {("thread", one.thread)} if one.thread and names and one.thread not in names else set()
    process = rank.capture.process if rank.capture else None
    stack = principal(process.stacks, process.pid) if process else None
    for frame in stack.frames if stack else ():
        place = (frame.file.rpartition("/")[2], bare(frame))
        found |= {place for file, _, function in one.frames if (file, function) == place}
    if one.uncaught and _exits(rank):
        found.add(("exit", ""))
    return found


def _exits(rank: ClassifiedRank) -> bool:
    """Whether its main thread is through with the script and waits for what keeps the process."""
    stacks = rank.capture.process.stacks if rank.capture else ()
    main = next((stack for stack in stacks if stack.name == MAIN_THREAD), None)
    ends = any(frame.file == "threading.py" and bare(frame) == "_shutdown" for frame in main.frames) if main else False  # fmt: skip
    return ends or rank.is_.name in AT_EXIT


def _thread_names(rank: ClassifiedRank) -> frozenset[str]:
    stacks = rank.capture.process.stacks if rank.capture else ()
    return frozenset(stack.name for stack in stacks)


# --- text ------------------------------------------------------------------------------------------


def exceptions_in(lines: Sequence[str]) -> list[Raised]:
    """The exceptions of all tracebacks in these lines, in order."""
    found = find_tracebacks(lines)
    read: list[Raised] = []
    until = len(lines)
    for one in reversed(
        found
    ):  # from the last one on, so that no line is read for each one above it
        read.append(_read(lines, one, lines[one.end + 1 : until], read[-1] if read else None))
        until = one.end + 1
    return read[::-1]


def _read(
    lines: Sequence[str], found: Traceback, after: Sequence[str], following: Raised | None
) -> Raised:
    """One exception. `after`: the lines up to the end of the `following` one."""
    start, end = found.start, found.end
    before = lines[max(0, start - 1) : start]
    thread = next((match["name"] for line in before if (match := _THREAD.search(line))), "")
    head = (lines[start].partition("Traceback (")[0], *lines[max(0, start - 2) : start])
    clock = next((match[0] for line in head if (match := _CLOCK.search(line))), "")
    frame = _RICH_FRAME if "─" in lines[start] else _FRAME
    frames = [match.groups() for line in lines[start:end] if (match := frame.search(line))]
    trained_on = (following is not None and following.trained_on) or _steps(after)
    moved_on = (following is not None and following.went_on) or bool(went_on(after))
    return Raised(
        error=found.error,
        thread=thread,
        moment=clock,
        frames=tuple(
            (path.rpartition("/")[2], line, name) for path, line, name in reversed(frames)
        ),
        went_on=moved_on or trained_on,
        trained_on=trained_on,
    )


def _steps(lines: Iterable[str]) -> bool:
    text = "".join(f"{line}\n" for line in lines)
    return bool(text and LogParser(create_all("logs")).feed(text.encode()))
