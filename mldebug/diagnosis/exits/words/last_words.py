"""The error that the last lines of a rank end with, its whole text, and whom it accuses. Pure.

torch's exception about NCCL gives no reason on its first line: newer ones go on with `Last error:` and `Cuda failure 2 'out of
memory'`; with `NCCL_DEBUG=WARN` the same stands in the log before it: `… NCCL WARN Cuda failure 'out of memory'`. Of a chain of
exceptions the first one says whose failure it is, and the last one is what people look for.
"""

import re
from collections.abc import Iterable, Sequence

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
)
from mldebug.diagnosis.exits.words.tracebacks import MAX_AFTER, Traceback, find_tracebacks, went_on

_FATAL = re.compile(
    r"^(?:Fatal Python error: .*|terminate called after throwing an instance of .*|\s*what\(\): +.*"
    r"|.{0,300}: Assertion [`'].{1,300}' failed\.)$"
)
_ASIDE = re.compile(
    r"(?:Exception ignored (?:in|on)|Exception in thread|Error in atexit\._run_exitfuncs)\b"
)
# Words that no traceback ends with, and that end a process: of the watchdog, JAX, MPI, Horovod, UCX
_LIBRARY_ENDS = re.compile(
    r"Watchdog caught collective operation timeout|watchdog thread terminated with exception"
    r"|ProcessGroupNCCL watchdog hang|watchdog got stuck for"
    r"|Terminating process because the JAX distributed service|has been set to ERROR in coordination service"
    r"|MPI_ABORT was invoked on rank|\*\*\* An error occurred in MPI_|Fatal error in (?:internal_|P?MPI_)"
    r"|has lost communication with a remote daemon|Horovod has been shut down|Transport retry count exceeded on"
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
_BY_LIBRARY = re.compile(
    r"(?:RuntimeError|[\w.]*(?:Internal|Distributed|Communication|Xla|Jax)\w*Error|mpi4py\.\S*)\b(?!.*(?:CUDA|HIP) error)"
)
_COMMUNICATION = re.compile(
    r"/(?:torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives|rendezvous)|horovod/\S{1,80}|mpi4py/\S{1,80}"
    r"|deepspeed/comm/\S{1,40}|jax/experimental/multihost_utils|jax/_src/distributed|ray/util/collective/\S{1,80})\.py\""
)
_CLOSED = re.compile(
    r"[Cc]losed by (?:remote )?peer|[Rr]eset by (?:remote )?peer|Broken pipe|remote process exit|ncclRemoteError|(?:got|sent) 0 bytes"
)
_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d{1,10})[\d, ]{0,200}\).{0,40}(?:killed by signal|exited unexpectedly)"
)
MAX_LINES = 30
OTHERS_WRITE = 5  # lines that other ranks write into a log after one has failed
STOPPED_WITHIN = 60  # last lines in which a handler's word counts


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
        return _fatal(lines, source) or (_torn(lines, source) if shared else None)
    last = next((one for one in reversed(found) if not _is_aside(lines, one)), found[-1])
    after = before_launcher(lines[last.end + 1 :])
    if len(after) > MAX_AFTER:
        return None
    error = _error_at(lines, last, source)
    copies = sum(line.rstrip().endswith(last.error) for line in lines)
    caught = went_on(after) > (OTHERS_WRITE if shared else 0)
    return msgspec.structs.replace(
        error, caught=caught, alone=len(found) == copies == 1, copies=copies
    )


def _is_aside(lines: Sequence[str], found: Traceback) -> bool:
    """Whether Python printed it beside what ends the process: of a thread, of a destructor, of an exit handler."""
    return found.start > 0 and _ASIDE.search(lines[found.start - 1]) is not None


def _error_at(lines: Sequence[str], found: Traceback, source: str) -> RankError:
    error = with_cause(safe_line(found.error, 300), lines, found.end)
    texts = [(whole_error(lines, one.at, one.error), one.explicit) for one in found.causes]
    blame, began = _began(texts, f"{whole_error(lines, found.end, found.error)}\n{error}")
    if began is not None:
        cause = found.causes[began]
        error = f"{error[:160]} … after {with_cause(safe_line(cause.error, 300), lines, cause.at)}"
    if blame is Blame.OWN and not found.causes and in_communication(lines, found):
        blame = Blame.UNCLEAR
    traceback = lines[max(found.start, found.end - MAX_LINES) : found.end + 1]
    accuser = texts[began][0] if began is not None else whole_error(lines, found.end, found.error)
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


def in_communication(lines: Sequence[str], found: Traceback) -> bool:
    """Whether a RuntimeError was raised inside a library that talks to other ranks, whose words tell nothing.

    What such a library says of its arguments it says by other exceptions. A lack of memory, or a device's error, is the rank's own.
    """
    if not _BY_LIBRARY.match(found.error) or is_out_of_memory(found.error):
        return False
    frames = [line for line in lines[found.start : found.end] if 'File "' in line]
    return bool(frames) and _COMMUNICATION.search(frames[-1]) is not None


def _began(causes: Sequence[tuple[str, bool]], last: str) -> tuple[Blame, int | None]:
    """Whose failure a chain tells of, and which of `causes` (text, explicit) says so; None where it is the last exception."""
    own = blame_of(last)
    if not causes:
        return own, None
    blame, began = blame_of(causes[0][0]), 0
    for at, (_, explicit) in enumerate(causes):
        following = blame_of(causes[at + 1][0]) if at + 1 < len(causes) else own
        blame = blame_of_chain(blame, following, explicit=explicit)
    return blame, None if blame is own else began


def _accused(blame: Blame, words: str, lines: Sequence[str], start: int) -> Accusation | None:
    """Whom a victim names; where its error names nobody, what a library has written shortly before may."""
    if blame is Blame.OWN:
        return None
    found = accusation_of(words)
    if found is not None and (found.ranks or found.calls):
        return found
    before = accusation_of("\n".join(lines[max(0, start - BEFORE) : start]))
    return before if before is not None and before.ranks else found


def whole_error(lines: Sequence[str], at: int, error: str) -> str:
    """The error of `lines[at]` with the lines that go on with it."""
    return "\n".join((error, *_rest_of_error(lines, at)))[:MAX_ERROR]


def _fatal(lines: Sequence[str], source: str) -> RankError | None:
    """No traceback: a C++ exception, a fatal error of Python, or a library that ends the process."""
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if _FATAL.match(line) or _LIBRARY_ENDS.search(line):
            text = with_cause(safe_line(line.strip(), 300), lines, at)
            before = tuple(safe_line(one, 400) for one in lines[max(0, at - 10) : at + 1])
            return error_of(
                f"{whole_error(lines, at, line)}\n{text}", text, before, source, lines[:at]
            )
    return None


def _torn(lines: Sequence[str], source: str) -> RankError | None:
    """Tracebacks of several ranks that tore each other apart: the last line in which a library accuses somebody else."""
    lines = before_launcher(lines)[-MAX_AFTER:]
    for at in range(len(lines) - 1, -1, -1):
        if accuses_others(lines[at]):
            text = safe_line(lines[at].strip(), 300)
            return error_of(lines[at], text, (text,), source, lines[:at])
    return None


def error_of(
    words: str, error: str, lines: tuple[str, ...], source: str, before: Sequence[str] = ()
) -> RankError:
    """An error, of which `words` is the whole text; `before`: what stands in the log before it."""
    blame = blame_of(words)
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
    """Whether a victim's words say that the other end of a connection is gone, and not only that it does not answer."""
    return _CLOSED.search(error.error) is not None


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


_UNHANDLED = re.compile(
    r"unhandled (?:cuda|hip|system) error|internal error|remote process exited", re.IGNORECASE
)


_FAILURE = re.compile(r"\b(?:Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'[^'\n]{1,100}'")


_WARNED = "NCCL WARN "


BEFORE = 40  # lines before its exception in which NCCL says so


AFTER = 4
MAX_ERROR = 8 << 10  # characters of one error


_NCCL_GOES_ON = re.compile(r"\s*(?:nccl\w{1,40}: |Last error:)")
# Lines with which other libraries go on: c10d, gloo, Ray, JAX, accelerate, Horovod
_GOES_ON = re.compile(
    r"\s*(?:Original exception|\[\S{0,200}gloo/|/job:\w|The tasks? ha|# of tasks that reached|task at the barrier|[Tt]imed out task"
    r"|class_name: |actor_id: |pid: |namespace: |name: |ip: |The actor is dead|- Process \d|Operation: |Input shapes|Missing ranks:"
    r"|\d{1,7}!?: \[|- To our best|-? {0,4}\[[\d, ]{1,200}\] (?:joined|finished)|HNP daemon|Remote daemon|Collectives differ|\s*$)"
)
GOES_ON = 64  # lines at most


def with_cause(error: str, lines: Sequence[str], at: int) -> str:
    """An error of NCCL in `lines[at]` with the reason that stands near it; any other error unchanged."""
    if not _UNHANDLED.search(error) or _FAILURE.search(error):
        return error
    after = _failures(lines[at + 1 : at + 1 + AFTER]) or _last_error(lines, at)
    before = _failures(line for line in lines[max(0, at - BEFORE) : at] if _WARNED in line)
    causes = after[:1] or list(dict.fromkeys(before))
    return f"{error[:200]} … {causes[0]}" if len(causes) == 1 else error


def _rest_of_error(lines: Sequence[str], at: int) -> list[str]:
    """The lines that belong to the error in `lines[at]`: of NCCL its name, `Last error:` and the reason below, of others what goes on."""
    rest = lines[at + 1 : at + 1 + GOES_ON]
    if rest and _NCCL_GOES_ON.match(rest[0]):
        return list(rest[:AFTER])
    end = next((i for i, line in enumerate(rest) if not _GOES_ON.match(line)), len(rest))
    return list(rest[:end])


def _last_error(lines: Sequence[str], at: int) -> list[str]:
    """The text below `Last error:`, in one piece; empty where there is none."""
    rest = _rest_of_error(lines, at)
    where = next((i for i, line in enumerate(rest) if line.strip() == "Last error:"), len(rest))
    text = " ".join(line.strip() for line in rest[where + 1 :] if line.strip())
    return [safe_line(text, 240)] if text else []


def _failures(lines: Iterable[str]) -> list[str]:
    return [match[0] for line in lines if (match := _FAILURE.search(line))]
