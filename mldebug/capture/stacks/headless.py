"""Stacks without any heading: what `traceback.print_stack()` writes, and the traceback that Ctrl-C leaves; frames outermost first."""

import re
from collections.abc import Sequence

from mldebug.capture.stacks.tracebacks import TRACEBACKS

_RAISED = re.compile(r"(?:\^C)?.{0,40}Traceback \(most recent call last\):\s*$")
_INTERRUPTED = re.compile(r"\s*KeyboardInterrupt\b.*$")
_EXCEPTION = re.compile(r"\s*[\w.]{1,200}(?:Error|Exception|Exit|Interrupt|Warning|Timeout|Failure|Iteration)\b.*$")  # fmt: skip
_SOURCE = re.compile(r" {4,}\S.*$|\s*\[Previous line repeated \d{1,9} more times?\]$")
MIN_FRAMES = 2  # a single line is as likely the place of a warning


def headless_lines(before: str, lines: Sequence[str]) -> int:
    """How many of these lines are a stack that no heading begins; 0 where they are none.

    `before`: the line before them. A traceback tells where an exception was raised, not where its process stands, unless that is
    the interrupt of whoever looked at a program that hung.
    """
    if TRACEBACKS.frame.match(before) or _SOURCE.match(before):
        return 0  # the rest of what was refused
    count = frames = 0
    while count < len(lines) and (TRACEBACKS.frame.match(lines[count]) or (count and _SOURCE.match(lines[count]))):  # fmt: skip
        frames += TRACEBACKS.frame.match(lines[count]) is not None
        count += 1
    after = lines[count] if count < len(lines) else ""
    ends = _INTERRUPTED.match(after) if _RAISED.match(before) else not _EXCEPTION.match(after)
    return count if frames >= MIN_FRAMES and ends else 0
