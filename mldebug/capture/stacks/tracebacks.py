"""Threads as tracebacks, outermost frame first with its source line: `python -m profiling.sampling dump` (3.15), pytest-timeout, and what
people print of `sys._current_frames()`; without any heading what `traceback.print_stack()` writes, and Ctrl-C leaves.
"""

import re
from collections.abc import Iterable

from mldebug.capture.stacks.form import StackForm, ThreadHead, frame_of, number
from mldebug.core.redact import clean

_NUMBERS = ("number", "ident", "id", "bare", "lone")  # groups of a heading


def _head(match: re.Match[str]) -> ThreadHead:
    marks = match["marks"] or ""
    return ThreadHead(
        number=number(next(filter(None, (match[one] for one in _NUMBERS)), None)),
        name=clean(match["name"] or match["called"] or "", 64),
        active="on CPU" in marks,
        owns_gil="has GIL" in marks,
        main="main thread" in marks,
    )


TRACEBACKS = StackForm(
    name="tracebacks",
    thread=re.compile(
        r"^\s*(?:Stack dump(?: for PID (?P<pid>\d{1,10}))?(?:, thread (?P<number>\d{1,18}))? \((?:(?P<marks>[^()]{1,200}); )?most recent call last\):"
        r"|~{3,} ?Stack of (?P<name>.{1,200}?) \((?P<ident>\d{1,18})\) ?~{3,}"
        r"|(?:# )?Thread:? (?P<called>[\w .()-]{1,100}?) ?\((?P<id>\d{6,18})\):?|# ThreadID: (?P<bare>\d{1,18})|Stack (?:for|of) thread \(?(?P<lone>\d{6,18})\)?:?)\s*$"
    ),
    head=_head,
    frame=re.compile(
        r'^\s*File:? "(?P<path>.{1,1000}?)", line (?P<line>\d{1,40}), in (?P<function>.{1,300}?)(?:  opcode=.*)?\s*$'
    ),
    make=frame_of,
    noise=re.compile(
        r"^ {2}\s*\S.*$|^Traceback \(most recent call last\):$|^\*{3} STACKTRACE - (?:START|END) \*{3}$|^No Python (?:frames|stacks found.*)$|^~{3,}$|^\+{3,} Timeout \+{3,}$"
    ),
    outermost_first=True,
)

# --- without a heading -------------------------------------------------------------------------------

_RAISED = re.compile(r"(?:\^C)?.{0,40}Traceback \(most recent call last\):\s*$")
_INTERRUPTED = re.compile(r"\s*KeyboardInterrupt\b.*$")
_EXCEPTION = re.compile(r"\s*[\w.]{1,200}(?:Error|Exception|Exit|Interrupt|Warning|Timeout|Failure|Iteration)\b.*$")  # fmt: skip
_SOURCE = re.compile(r" {4,}\S.*$|\s*\[Previous line repeated \d{1,9} more times?\]$")
# A logged step, as trainers and bars print it
STEP = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch)s?\b['\"]?\W{1,12}\d|(?:\b|_)loss['\"]?\W{1,4}\d|\d%\||\d/\d{1,9} \[[=>.#]",
    re.IGNORECASE,
)
OTHERS_WRITE = 5  # lines about steps that other ranks may write below it
MIN_FRAMES = 2  # a single line is as likely the place of a warning


def headless_lines(before: str, lines: Iterable[str]) -> int:
    """How many of these lines are a stack that no heading begins; 0 where they are none.

    `before`: the line before them. A traceback tells where an exception was raised, not where its process stands, unless it is that
    of an interrupt (Ctrl-C), by which a program that hung was ended.
    """
    if TRACEBACKS.frame.match(before) or _SOURCE.match(before):
        return 0  # the rest of what was refused
    count = frames = 0
    after = ""
    for line in lines:
        is_frame = TRACEBACKS.frame.match(line) is not None
        if not is_frame and not (count and _SOURCE.match(line)):
            after = line
            break
        frames += is_frame
        count += 1
    ends = _INTERRUPTED.match(after) if _RAISED.match(before) else not _EXCEPTION.match(after)
    return count if frames >= MIN_FRAMES and ends else 0


def last_steps(lines: Iterable[str]) -> int:
    """The number of the line from which on the text has no more training steps than other ranks may write below a stack: a stack
    without heading that stands before that line is of a process that has gone on. 0 where the text has few steps.
    """
    steps = [at for at, line in enumerate(lines) if STEP.search(line, 0, 400)]
    return steps[-OTHERS_WRITE - 1] if len(steps) > OTHERS_WRITE else 0
