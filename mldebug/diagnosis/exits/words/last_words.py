"""The error that the last lines of a rank end with, its whole text, and whom it accuses. Pure.

torch's exception about NCCL gives no reason on its first line: newer ones go on with `Last error:` and `Cuda failure 2 'out of
memory'`; with `NCCL_DEBUG=WARN` the same stands in the log before it: `… NCCL WARN Cuda failure 'out of memory'`. Of a chain of
exceptions the first one says whose failure it is, and the last one is what people look for.
"""

import re
from collections.abc import Sequence

import msgspec

from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.cuda_memory import device_memory
from mldebug.diagnosis.exits.model import Accusation, RankError
from mldebug.diagnosis.exits.words.accusations import accusation_of
from mldebug.diagnosis.exits.words.blame import (
    Blame,
    accuses_others,
    blame_of,
    blame_of_chain,
    waited_on_device,
)
from mldebug.diagnosis.exits.words.error_text import (
    BEFORE,
    MAX_ERROR,
    MAX_LINES,
    warnings_before,
    whole_error,
    with_cause,
)
from mldebug.diagnosis.exits.words.quotes import (
    NEAR,
    error_of_quote,
    error_of_quotes,
    own_among,
    quote_of,
    quoted_lines,
    quotes_in,
)
from mldebug.diagnosis.exits.words.raised_in import NOWHERE, RaisedIn, raised_in
from mldebug.diagnosis.exits.words.tracebacks import (
    MAX_AFTER,
    MAX_DEPTH,
    Cause,
    Traceback,
    find_tracebacks,
    is_whole,
    own_text,
    went_on,
)

_FATAL = re.compile(
    r"(?:^|[\s\]>|])(?P<text>Fatal Python error: .*|terminate called after throwing an instance of .*|what\(\): +.*)$"
    r"|^.{0,300}: Assertion [`'].{1,300}' failed\.$"
    # UCX and Open MPI of a signal that the kernel gives: SIGILL, SIGBUS, SIGFPE, SIGSEGV
    r"|^\[[\w.-]{1,80}:[\d: ]{1,40}\] +(?P<signal>Caught signal (?:4|7|8|11) \(.*|Signal: .{1,60} \((?:4|7|8|11)\).*)$"
    # of glog and Abseil, severity F: the process ends itself
    r"|^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9}: F |F\d{4,8} \d\d:\d\d:\d{2,10}\.\d{1,9} +\d{1,10} )(?P<logged>[\w/.-]{1,200}:\d{1,6}\] .*)$"
)
FAULT = "Fatal Python error: "
ABORT_ABOVE = 6  # lines in which the reason of an abort stands
_OF_FAULT = re.compile(r"Fatal Python error: (?!Aborted)|Caught signal \d|Signal: ")
_DUMPED = re.compile(
    r'File "(?P<file>[^"]{1,300})", line (?P<line>\d{1,7}) in (?P<function>\S{1,120})'
)
_THROWN = re.compile(r"terminate called after throwing an instance of ['\"](?P<type>[\w:]{1,120})")
_SAYS = re.compile(r"what\(\): +(?P<text>.*)$")
_KNOWS_ITS_RANK = re.compile(r"\[(?:PG|Rank) ")
_ASIDE = re.compile(
    r"(?:Exception ignored (?:in|on)|Exception in thread|Error in atexit\._run_exitfuncs)\b"
)
# Words that no traceback ends with, and that end a process: of the watchdog, JAX, MPI, Horovod, UCX, ROCm
_LIBRARY_ENDS = re.compile(
    r"Watchdog caught collective operation timeout|watchdog thread terminated with exception"
    r"|ProcessGroupNCCL watchdog hang|watchdog got stuck for"
    r"|Terminating process because the JAX distributed service|has been set to ERROR in coordination service"
    r"|MPI_ABORT was invoked on rank|application called MPI_Abort\(|\*\*\* An error occurred in MPI_|Fatal error in (?:internal_|P?MPI_)"
    r"|has lost communication with a remote daemon|Memory access fault by GPU node-\d|HW Exception by GPU node-\d"
    r"|Horovod has been shut down|Transport retry count exceeded on|Test NCCL failure \S{1,80} '"
)
# What a rank fails of after its own watchdog has said that it ends it may come of that
_TORN_DOWN = re.compile(
    r"Watchdog caught collective operation timeout|we are taking the entire process down|watchdog thread terminated with exception: \[Rank \d{1,7}\] Watchdog caught"
)
_TIMED_OUT = re.compile(r"Watchdog caught collective operation timeout")
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
_GROUP_ERROR = re.compile(
    r"\s{0,8}(?:RuntimeError|torch\.\w[\w.]{0,80}Error): .{0,40}\b(?:NCCL|gloo|c10d)\b",
    re.IGNORECASE,
)
_STEP = re.compile(r"\b(?:step|iter(?:ation)?)\W{1,3}\d", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|^MemoryError|DefaultCPUAllocator: (?:can't|not enough memory)|Cannot allocate memory"
)
_CLOSED = re.compile(
    r"[Cc]losed by (?:remote )?peer|[Rr]eset by (?:remote )?peer|Broken pipe|remote process exit|ncclRemoteError|(?:got|sent) 0 bytes"
)
_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d{1,10})[\d, ]{0,200}\).{0,40}(?:killed by signal|exited unexpectedly)"
)
MOST_CAUSES = 16  # of a chain of exceptions, beside the first
OTHERS_WRITE = 5  # lines that other ranks write into a log after one has failed
STOPPED_WITHIN = 60  # last lines in which a handler's word counts


def before_launcher(lines: Sequence[str]) -> Sequence[str]:
    """The lines of a log up to the first one that torchrun wrote about ended ranks."""
    for at, line in enumerate(lines):
        if "torch/distributed/elastic" in line and (
            "closing signal" in line or "exitcode:" in line
        ):
            return lines[:at]
    return lines


def last_error(
    lines: Sequence[str], source: str, *, shared: bool = False, rank: int | None = None
) -> RankError | None:
    """The error that ended a process, from its last lines: that of the last traceback, or another message that says why it died; None without one.

    An exception with many lines after it was caught, and did not end the process. In a `shared` log
    other ranks write on for a moment. `rank`: who wrote the lines, where known; a traceback that it
    quotes of itself is its own.
    """
    lines = [line for line in lines if not _LAUNCHER.match(line)]
    found = find_tracebacks(lines)
    if not found:
        return _fatal(lines, source) or _torn(lines, source, shared=shared)
    last = next((one for one in reversed(found) if not _is_aside(lines, one)), found[-1])
    after = before_launcher(lines[last.end + 1 :])
    if len(after) > MAX_AFTER:
        return None
    quotes = quotes_in(lines, found[: found.index(last) + 1], rank)
    if quotes and quotes[-1].found is last:
        mine = own_among(lines, found, quotes, rank)
        error = _error_at(lines, mine, source, None) if mine else error_of_quotes(lines, found, quotes, source)  # fmt: skip
    else:
        itself = shared or quote_of(lines, last) is not None
        before = None if itself else _just_before(lines, found, last)
        error = _error_at(lines, last, source, before)
    if shared and not error.blames_peer and not is_whole(lines, last, found):
        error = msgspec.structs.replace(error, unclear=True)  # nobody's, and torn
    if rank is not None and not error.blames_peer and any(map(_TIMED_OUT.search, after)):
        # it lived on, and called what all wait for
        error = msgspec.structs.replace(error, unclear=True)
    copies = sum(line.rstrip().endswith(last.error) for line in lines)
    caught = went_on(after) > (OTHERS_WRITE if shared else 0)
    return msgspec.structs.replace(
        error, caught=caught, alone=len(found) == copies == 1, copies=copies
    )


def _is_aside(lines: Sequence[str], found: Traceback) -> bool:
    """Whether Python printed it beside what ends the process: of a thread, of a destructor, of an exit handler."""
    return found.start > 0 and _ASIDE.search(lines[found.start - 1]) is not None


def _just_before(
    lines: Sequence[str], found: Sequence[Traceback], last: Traceback
) -> Traceback | None:
    """The traceback that a rank has printed right before its last one, as who cleans up after a failure does."""
    earlier = [one for one in found[: found.index(last)] if not _is_aside(lines, one)]
    if not earlier:
        return None
    text = whole_error(lines, earlier[-1].end, earlier[-1].error).count("\n")
    return earlier[-1] if last.start - earlier[-1].end - text <= NEAR else None


def _error_at(
    lines: Sequence[str], found: Traceback, source: str, before: Traceback | None = None
) -> RankError:
    """The error of a traceback. `before`: another one, right before it, after which this one may be no more than cleaning up."""
    error = with_cause(safe_line(found.error, 300), lines, found.end)
    causes = (*found.causes[:1], *found.causes[1:][-MOST_CAUSES:])  # the first one and the last
    if not causes and before is not None:
        causes = (Cause(before.start, before.end, before.error, explicit=False),)
    words = whole_error(lines, found.end, found.error)
    whole = words if words == error else f"{words}\n{error}"
    own = blame_of(whole, _place(lines, found.start, found.end))
    own = (
        Blame.PEER if own is not Blame.PEER and waited_on_device(lines, found.start, words) else own
    )
    if own is Blame.OWN and any(map(_TORN_DOWN.search, lines[max(0, found.start - BEFORE) : found.start])):  # fmt: skip
        own = Blame.UNCLEAR
    if own is Blame.UNCLEAR and any(map(accuses_others, warnings_before(words, lines, found.start))):  # fmt: skip
        own = Blame.PEER
    blame, began = _began(lines, causes, own)
    accuser = words
    if began is not None:
        cause = causes[began]
        accuser = whole_error(lines, cause.at, cause.error)
        error = f"{error[:160]} … after {with_cause(safe_line(cause.error, 300), lines, cause.at)}"
    traceback = lines[max(found.start, found.end - MAX_LINES) : found.end + 1]
    return RankError(
        error=error,
        lines=tuple(safe_line(line, 400) for line in traceback),
        source=source,
        blames_peer=blame is Blame.PEER,
        unclear=blame is Blame.UNCLEAR,
        # of the whole line, as the figures stand far behind
        memory=device_memory(lines[found.end]) or device_memory(error),
        accuses=_accused(blame, accuser, lines, found.start),
    )


def _place(lines: Sequence[str], start: int, end: int) -> RaisedIn:
    text = own_text(lines, start, end)
    return raised_in(text, 0, len(text) - 1)


def _began(lines: Sequence[str], causes: Sequence[Cause], own: Blame) -> tuple[Blame, int | None]:
    """Whose failure a chain tells of, and which of `causes` says so; None where it is the last exception, of blame `own`."""
    if not causes:
        return own, None
    blames = [
        blame_of(whole_error(lines, one.at, one.error), _place(lines, one.start, one.at))
        for one in causes
    ]
    blame = blames[0]
    for cause, following in zip(causes, (*blames[1:], own), strict=True):
        blame = blame_of_chain(blame, following, explicit=cause.explicit)
    return blame, None if blame is own else 0


def _accused(blame: Blame, words: str, lines: Sequence[str], start: int) -> Accusation | None:
    """Whom a victim names; where its error names nobody, what a library has written shortly before may."""
    if blame is Blame.OWN:
        return None
    found = accusation_of(words)
    if found is not None and (found.ranks or found.calls):
        return found
    before = accusation_of("\n".join(lines[max(0, start - BEFORE) : start])[-MAX_ERROR:])
    return before if before is not None and before.ranks else found


def _fatal(lines: Sequence[str], source: str) -> RankError | None:
    """No traceback: a C++ exception, a fatal error of Python, or a library that ends the process."""
    for at in range(len(lines) - 1, -1, -1):
        fatal = _FATAL.search(lines[at])
        if fatal or _LIBRARY_ENDS.search(lines[at]):
            if (why := _why_aborted(lines, at)) != at:
                at, fatal = why, _FATAL.search(lines[why])
            line = _with_type(lines, at) if fatal else lines[at]
            text = with_cause(safe_line(line.strip(), 300), lines, at)
            before = tuple(safe_line(one, 400) for one in lines[max(0, at - 10) : at + 1])
            thrown = RaisedIn(own_raise=_SAYS.search(lines[at]) is not None)  # by any C++ code
            return error_of(
                f"{whole_error(lines, at, line)}\n{text}", text, before, source, lines[:at], thrown
            )
    return None


def _why_aborted(lines: Sequence[str], at: int) -> int:
    """The line that says why a process aborted: shortly above Python's own `Fatal Python error: Aborted`, which never does; else `at`."""
    if "Fatal Python error: Aborted" not in lines[at]:
        return at
    above = lines[max(0, at - ABORT_ABOVE) : at][::-1]
    back = next((n for n, line in enumerate(above, 1) if _FATAL.search(line) or _LIBRARY_ENDS.search(line)), 0)  # fmt: skip
    return at - back


def _with_type(lines: Sequence[str], at: int) -> str:
    """What a C++ exception says, with its type, which stands on the line before: `c10::DistNetworkError: Interrupted system call`."""
    thrown = _THROWN.search(lines[at - 1]) if at else None
    line = _SAYS.search(lines[at])
    if thrown is None or line is None or _KNOWS_ITS_RANK.match(line["text"]):
        found = _FATAL.search(lines[at])
        text = (found["text"] or found["signal"] or found["logged"] or lines[at]) if found else lines[at]  # fmt: skip
        return f"{text}{_stood_in(lines, at)}" if text.startswith(FAULT) else text
    return f"{thrown['type']}: {line['text']}"


def _stood_in(lines: Sequence[str], at: int) -> str:
    """Where Python stood when it crashed, by the dump of faulthandler below `lines[at]`: ` in forward (/job/model.py:12)`; "" without one."""
    below = lines[at + 1 : at + 1 + MAX_DEPTH]
    begins = next((i for i, line in enumerate(below) if "Current thread 0x" in line), len(below))
    frame = next((found for line in below[begins + 1 : begins + 3] if (found := _DUMPED.search(line))), None)  # fmt: skip
    return f" in {frame['function']} ({frame['file']}:{frame['line']})" if frame else ""


def _torn(lines: Sequence[str], source: str, *, shared: bool) -> RankError | None:
    """Tracebacks that tore each other apart, that a bar tore or whose head is lost: the last line in which a library accuses somebody else, or
    an exception does not say whose failure it is.

    Of a rank's own lines only where it did not go on after it.
    """
    lines = before_launcher(lines)[-MAX_AFTER:]
    for at in range(len(lines) - 1, -1, -1):
        if accuses_others(lines[at]) or _is_unclear(lines[at]):
            text = safe_line(lines[at].strip(), 300)
            return error_of(lines[at], text, (text,), source, lines[:at])
        if not shared and _STEP.search(lines[at]):
            return None
    return None


def _is_unclear(line: str) -> bool:
    """Whether the line is what an exception of a library of process groups ends with, and does not say whose failure it is."""
    return _GROUP_ERROR.match(line) is not None and blame_of(line) is Blame.UNCLEAR


def error_of(
    words: str,
    error: str,
    lines: tuple[str, ...],
    source: str,
    before: Sequence[str] = (),
    place: RaisedIn = NOWHERE,
) -> RankError:
    """A `RankError` from the whole text `words` of an error.

    `error`: its line to be shown; `lines`: its last lines; `source`: where they are from; `before`:
    the log lines before it; `place`: where it was raised.
    """
    quote = quoted_lines(words)
    if quote is not None:
        return error_of_quote(quote, words, error, lines, source)
    blame = blame_of(words, place)
    if blame is Blame.OWN and any(map(_TIMED_OUT.search, before[-BEFORE:])):
        blame = Blame.UNCLEAR  # its watchdog aborted what it waited in: the error may come of that
    if blame is Blame.UNCLEAR and any(
        map(accuses_others, warnings_before(words, before, len(before)))
    ):
        blame = Blame.PEER
    return RankError(
        error=error,
        lines=lines,
        source=source,
        blames_peer=blame is Blame.PEER,
        unclear=blame is Blame.UNCLEAR,
        memory=device_memory(words) or device_memory(error),
        accuses=_accused(blame, words, before, len(before)),
    )


def stop_line(lines: Sequence[str]) -> str:
    """The line by which a rank, near its end, logs that a signal asked it to stop; "" where there is none."""
    for line in reversed(before_launcher(lines)[-STOPPED_WITHIN:]):
        if _STOPPED.search(line):
            return safe_line(line.strip(), 200)
    return ""


def tells_of_closed(error: RankError) -> bool:
    """Whether an error says that the other end of a connection was closed, and not only that it does not answer."""
    return _CLOSED.search(error.error) is not None


def tells_of_fault(error: RankError) -> bool:
    """Whether Python, UCX or Open MPI has written this error about a signal that the kernel gives for a fault, and that ends the writer."""
    return _OF_FAULT.match(error.error) is not None


def blames_peer(error: str) -> bool:
    """Whether this error arises because another rank is gone, does not come, or has asked this rank to stop."""
    return blame_of(error) is Blame.PEER


def is_out_of_memory(error: str) -> bool:
    """Whether this error means that a device or the host had no memory left."""
    return _OUT_OF_MEMORY.search(error) is not None or device_memory(error) is not None


def lost_worker(error: str) -> int | None:
    """The pid of the DataLoader worker that died, if this error names it; else None."""
    match = _WORKER.search(error)
    return int(match["pid"]) if match else None
