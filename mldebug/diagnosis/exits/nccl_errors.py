"""Which error of CUDA stands behind NCCL's "unhandled cuda error". Pure.

torch's exception says no more on its first line; newer ones go on with `Last error:` and `Cuda failure 2 'out of memory'`.
With `NCCL_DEBUG=WARN` the same stands in the log before it: `… NCCL WARN Cuda failure 'out of memory'`.
"""

import re
from collections.abc import Iterable, Sequence

_UNHANDLED = re.compile(r"unhandled (?:cuda|hip) error", re.IGNORECASE)
_FAILURE = re.compile(r"\b(?:Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'[^'\n]{1,100}'")
_WARNED = "NCCL WARN "
BEFORE = 40  # lines before its exception in which NCCL says so
AFTER = 4


def with_cause(error: str, lines: Sequence[str], at: int) -> str:
    """The error, which stands in that line, and what NCCL says of it beside; as it is for all other errors."""
    if not _UNHANDLED.search(error) or _FAILURE.search(error):
        return error
    after = _failures(lines[at + 1 : at + 1 + AFTER])
    before = _failures(line for line in lines[max(0, at - BEFORE) : at] if _WARNED in line)
    told = after[:1] or list(dict.fromkeys(before))
    return f"{error[:200]} … {told[0]}" if len(told) == 1 else error


def _failures(lines: Iterable[str]) -> list[str]:
    return [match[0] for line in lines if (match := _FAILURE.search(line))]
