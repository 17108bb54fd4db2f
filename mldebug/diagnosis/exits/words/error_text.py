"""The whole text of an error: the lines that libraries write below its first one, and NCCL's reason in lines near it.

Pure.
"""

import re
from collections.abc import Iterable, Sequence

from mldebug.core.redact import safe_line

BEFORE = 40  # lines before its exception in which NCCL says so
AFTER = 4
MAX_LINES = 30  # of an error that are kept
GOES_ON = 64  # lines at most
MAX_ERROR = 8 << 10  # characters of one error
_UNHANDLED = re.compile(
    r"unhandled (?:cuda|hip|system) error|internal error|invalid usage|remote process exited",
    re.IGNORECASE,
)
_FAILURE = re.compile(r"\b(?:Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'[^'\n]{1,100}'")
_WARNED = "NCCL WARN "
_NCCL_GOES_ON = re.compile(r"\s*(?:nccl\w{1,40}: |Last error:)")
# Lines with which other libraries go on: c10d, gloo, Ray, JAX, accelerate, Horovod, gRPC, MPICH
_GOES_ON = re.compile(
    r"\s*+(?:Original exception|\[\S{0,200}gloo/|/job:\w|The tasks? ha|# of tasks that reached|task at the barrier|[Tt]imed out task"
    r"|class_name: |actor_id: |pid: |namespace: |name: |ip: |The actor is dead|- Process \d|Operation: |Input shapes|Missing ranks:"
    r"|\[ERROR\] \d{4}-\d\d-\d\d-|\[Error\]: |E[A-Z]\d{4}: |E(?:RR)?\d{5}\b|\[PID: \d|\w{3,80}\(E[A-Z]\d{4}\): |Solution:|Possible Cause|TraceBack \(|CUDA kernel errors might"
    r"|\d{1,7}!?: \[|- To our best|-? {0,4}\[[\d, ]{1,200}\] (?:joined|finished)|\[\S{1,80}:\d{1,10}\] \*\*\* |HNP daemon|Remote daemon|The following ranks have not|Collectives differ"
    r"|- \[[\w.]{1,80}:\d{1,6}\||\[Hint: |status = StatusCode|details = \"|debug_error_string|Additional GRPC error|\w{3,60}\(\d{1,6}\)\.{0,40}: |$)"
)


def whole_error(lines: Sequence[str], at: int, error: str) -> str:
    """The whole error message: `error`, from `lines[at]`, and the lines that continue it, at most `MAX_ERROR` characters."""
    return "\n".join((error, *_rest_of_error(lines, at)))[:MAX_ERROR]


def with_cause(error: str, lines: Sequence[str], at: int) -> str:
    """The error from `lines[at]`; if it is an NCCL error without a reason, with the one reason that lines near it give."""
    if not _UNHANDLED.search(error) or _FAILURE.search(error):
        return error
    after = _failures(lines[at + 1 : at + 1 + AFTER]) or _last_error(lines, at)
    before = _failures(line for line in lines[max(0, at - BEFORE) : at] if _WARNED in line)
    causes = after[:1] or list(dict.fromkeys(before))
    return f"{error[:200]} … {causes[0]}" if len(causes) == 1 else error


def warnings_before(error: str, lines: Sequence[str], at: int) -> list[str]:
    """NCCL's warnings shortly before `lines[at]`, where an error that it gave no reason for begins; empty for other errors."""
    if not _UNHANDLED.search(error):
        return []
    return [line for line in lines[max(0, at - BEFORE) : at] if _WARNED in line]


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
