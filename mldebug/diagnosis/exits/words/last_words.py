"""The last lines of ranks in a log: whose they are, which error they end with, and whether it only blames a peer. Pure.

torch marks the lines of an uncaught exception with `[rank3]:`, `torchrun --tee` marks lines with `[default3]:` (the local
rank), `srun -l` with `3: ` and `mpirun --tag-output` with `[1,3]<stdout>:` (the task). All other lines belong to nobody in
particular, unless the log is one rank's own.

torch's exception about NCCL gives no reason on its first line: newer ones go on with `Last error:` and `Cuda failure 2 'out of
memory'`; with `NCCL_DEBUG=WARN` the same stands in the log before it: `… NCCL WARN Cuda failure 'out of memory'`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.cuda_memory import device_memory
from mldebug.diagnosis.exits.model import RankError
from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.tracebacks import MAX_AFTER, Traceback, find_tracebacks, went_on

_MARK = re.compile(r"\[(?P<role>rank|[A-Za-z_]\w{0,30}?)(?P<number>\d{1,7})\]: ?")
# Behind a time, a progress bar or what a container writes before each line
_MARK_INSIDE = re.compile(r"\[rank(?P<number>\d{1,7})\]: ?")
# The watchdog names its rank in the text, also where nothing marks the line (PyTorch 2.1 and older)
_WATCHDOG = re.compile(
    r"(?:ProcessGroupNCCL\.cpp:\d{1,5}\]|what\(\): ) ?\[(?:PG [^\]]{0,120}?)?Rank (?P<number>\d{1,7})\]"
)
MARKED_WITHIN = 400  # characters of a line in which a mark may stand
_TAG = re.compile(
    r"\[(?P<prte>[\w.-]{1,80}@)?\d{1,10},(?P<task>\d{1,7})\]<std(?:out|err|diag)>:(?(prte) ?)"
)
_LABEL = re.compile(r" *(?P<task>\d{1,7}): ?")
_FATAL = re.compile(
    r"^(?:Fatal Python error: .*|terminate called after throwing an instance of .*|\s*what\(\): +.*"
    r"|.{0,300}: Assertion [`'].{1,300}' failed\.)$"
)
_WATCHDOG_ENDS = re.compile(
    r"Watchdog caught collective operation timeout|watchdog thread terminated with exception"
    r"|ProcessGroupNCCL watchdog hang|watchdog got stuck for"
)
# Logged by a handler when the signal comes, and not where it is installed
_STOPPED = re.compile(
    r"\b(?:caught|received|got)\b.{0,30}\b(?:SIG(?:TERM|INT|HUP|USR[12])|signal:? (?:1|2|10|12|15))\b"
    r"|\bSIG(?:TERM|INT|HUP|USR[12])\b.{0,30}\b(?:caught|received)\b"
    r"|\b(?:is being|was|got) preempted\b",
    re.IGNORECASE,
)
# srun and its like write into the middle of a traceback
_LAUNCHER = re.compile(
    r"(?:srun|slurmstepd\S{0,80}|(?:mpi|prte?)(?:run|exec)\S{0,20}): |\[mpiexec@"
)
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|^MemoryError|DefaultCPUAllocator: (?:can't|not enough memory)|Cannot allocate memory"
)
_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d{1,10})[\d, ]{0,200}\).{0,40}(?:killed by signal|exited unexpectedly)"
)
MAX_LINES = 30
OTHERS_WRITE = 5  # lines that other ranks write into a log after one has failed
STOPPED_WITHIN = 60  # last lines in which a handler's word counts


class LogWords(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a log, divided among the ranks."""

    by_rank: dict[int, tuple[str, ...]] = {}
    shared: tuple[str, ...] = ()
    every: tuple[str, ...] = ()  # in order, without marks


def take_apart(
    lines: Sequence[str], ranks_of_local: Mapping[int, int], tasks: Collection[int] = ()
) -> LogWords:
    """Give marked lines to their ranks; `ranks_of_local` turns local ranks into ranks, `tasks` are numbers of tasks
    that are ranks."""
    by_rank: dict[int, list[str]] = {}
    shared: list[str] = []
    every: list[str] = []
    label = _LABEL if _labelled(lines) else None
    for line in lines:
        rank, text = _owner(line, ranks_of_local, tasks, label)
        by_rank.setdefault(rank, []).append(text) if rank is not None else shared.append(text)
        every.append(text)
    own = {rank: tuple(some) for rank, some in by_rank.items()}
    return LogWords(by_rank=own, shared=tuple(shared), every=tuple(every))


def _labelled(lines: Sequence[str]) -> bool:
    """Whether nearly each line begins with a task's number, of several tasks: a single task may be a whole node."""
    written = [
        line for line in lines if line.strip() and not line.startswith(("srun:", "slurmstepd:"))
    ]
    marks = [match["task"] for line in written if (match := _LABEL.match(line))]
    return len(set(marks)) > 1 and len(marks) >= 0.9 * len(written)


def _owner(
    line: str,
    ranks_of_local: Mapping[int, int],
    tasks: Collection[int],
    label: re.Pattern[str] | None,
) -> tuple[int | None, str]:
    tag = _TAG.match(line) or (label.match(line) if label else None)
    line = line[tag.end() :] if tag else line
    mark = _MARK.match(line)
    inside = _MARK_INSIDE.search(line, 0, MARKED_WITHIN)
    if inside and (mark is None or mark["role"] != "rank"):
        return int(inside["number"]), line[inside.end() :]
    if mark is None:
        task = int(tag["task"]) if tag and int(tag["task"]) in tasks else None
        watchdog = _WATCHDOG.search(line, 0, MARKED_WITHIN) if task is None else None
        return (int(watchdog["number"]) if watchdog else task), line
    rest = line[mark.end() :]
    number = int(mark["number"])
    if mark["role"] == "rank":
        return number, rest
    return ranks_of_local.get(number), rest


def before_launcher(lines: Sequence[str]) -> Sequence[str]:
    """The lines before those that a launcher writes after its ranks are gone."""
    for at, line in enumerate(lines):
        if "torch/distributed/elastic" in line and (
            "closing signal" in line or "exitcode:" in line
        ):
            return lines[:at]
    return lines


def last_error(lines: Sequence[str], source: str, *, shared: bool = False) -> RankError | None:
    """The exception that the last traceback among these lines ends with, or what else tells why a process died.

    A traceback with much behind it was caught, and what ended the process is something else. In a `shared`
    log other ranks write on for a moment.
    """
    lines = [line for line in lines if not _LAUNCHER.match(line)]
    found = find_tracebacks(lines)
    if not found:
        return _fatal(lines, source)
    last = found[-1]
    after = before_launcher(lines[last.end + 1 :])
    if len(after) > MAX_AFTER:
        return None
    error = _error_at(lines, last, source)
    copies = sum(line.rstrip().endswith(last.error) for line in lines)
    caught = went_on(after) > (OTHERS_WRITE if shared else 0)
    return msgspec.structs.replace(
        error, caught=caught, alone=len(found) == copies == 1, copies=copies
    )


def _error_at(lines: Sequence[str], found: Traceback, source: str) -> RankError:
    whole = "\n".join((found.error, *_rest_of_error(lines, found.end)))
    error = with_cause(safe_line(found.error, 300), lines, found.end)
    traceback = lines[max(found.start, found.end - MAX_LINES) : found.end + 1]
    return RankError(
        error=error,
        lines=tuple(safe_line(line, 400) for line in traceback),
        source=source,
        blames_peer=blames_peer(whole) or blames_peer(error),
        unclear=blame_of(f"{whole}\n{error}") is Blame.UNCLEAR,
        # of the whole line, as the figures stand far behind
        memory=device_memory(lines[found.end]) or device_memory(error),
    )


def _fatal(lines: Sequence[str], source: str) -> RankError | None:
    """No traceback: a C++ exception, a fatal error of Python, or the watchdog of a collective."""
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if _FATAL.match(line) or _WATCHDOG_ENDS.search(line):
            text = with_cause(safe_line(line.strip(), 300), lines, at)
            before = tuple(safe_line(one, 400) for one in lines[max(0, at - 10) : at + 1])
            return RankError(
                error=text,
                lines=before,
                source=source,
                blames_peer=blames_peer(text),
                unclear=blame_of(text) is Blame.UNCLEAR,
                memory=device_memory(line) or device_memory(text),
            )
    return None


def stop_line(lines: Sequence[str]) -> str:
    """The line by which a rank, near its end, logs that a signal asked it to stop; "" where there is none."""
    for line in reversed(before_launcher(lines)[-STOPPED_WITHIN:]):
        if _STOPPED.search(line):
            return safe_line(line.strip(), 200)
    return ""


def blames_peer(error: str) -> bool:
    """Whether a rank gets this error because another one is gone, does not come, or has asked it to stop."""
    return blame_of(error) is Blame.PEER


def is_out_of_memory(error: str) -> bool:
    """Whether this error means that a device or the host had no memory left."""
    return _OUT_OF_MEMORY.search(error) is not None or device_memory(error) is not None


def lost_worker(error: str) -> int | None:
    """The pid of the DataLoader worker whose death the error tells of."""
    match = _WORKER.search(error)
    return int(match["pid"]) if match else None


_UNHANDLED = re.compile(r"unhandled (?:cuda|hip|system) error|internal error", re.IGNORECASE)


_FAILURE = re.compile(r"\b(?:Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'[^'\n]{1,100}'")


_WARNED = "NCCL WARN "


BEFORE = 40  # lines before its exception in which NCCL says so


AFTER = 4


_NCCL_GOES_ON = re.compile(r"\s*(?:nccl\w{1,40}: |Last error:)")


def with_cause(error: str, lines: Sequence[str], at: int) -> str:
    """An error of NCCL in `lines[at]` with the reason that stands near it; any other error unchanged."""
    if not _UNHANDLED.search(error) or _FAILURE.search(error):
        return error
    after = _failures(lines[at + 1 : at + 1 + AFTER]) or _last_error(lines, at)
    before = _failures(line for line in lines[max(0, at - BEFORE) : at] if _WARNED in line)
    causes = after[:1] or list(dict.fromkeys(before))
    return f"{error[:200]} … {causes[0]}" if len(causes) == 1 else error


def _rest_of_error(lines: Sequence[str], at: int) -> list[str]:
    """The lines that belong to an error of NCCL in `lines[at]`: its name, `Last error:`, and the reason below that."""
    rest = lines[at + 1 : at + 1 + AFTER]
    return list(rest) if rest and _NCCL_GOES_ON.match(rest[0]) else []


def _last_error(lines: Sequence[str], at: int) -> list[str]:
    """The text below `Last error:`, in one piece; empty where there is none."""
    rest = _rest_of_error(lines, at)
    where = next((i for i, line in enumerate(rest) if line.strip() == "Last error:"), len(rest))
    text = " ".join(line.strip() for line in rest[where + 1 :] if line.strip())
    return [safe_line(text, 240)] if text else []


def _failures(lines: Iterable[str]) -> list[str]:
    return [match[0] for line in lines if (match := _FAILURE.search(line))]
