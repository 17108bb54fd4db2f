"""What `austin --where PID` prints, 3.4 to 4.1: frames outermost first, all threads of a process. Source: austin src/argparse.c."""

import re

from mldebug.capture.stacks.form import (
    StackForm,
    ThreadHead,
    is_native_source,
    named_frame,
    native_frame,
    number,
)
from mldebug.core.model import Frame


def _head(match: re.Match[str]) -> ThreadHead:
    """The mark of an idle thread is no use: threads that sleep were printed with that of a busy one (3.7, Python 3.11)."""
    thread = number(match["number"])
    return ThreadHead(number=thread, own=True, main=thread == number(match["pid"]))


def _frame(match: re.Match[str]) -> Frame | None:
    path = match["path"]
    if path is None:
        return None  # of the kernel
    if re.search(r"\.so\b", path) or is_native_source(path) or ("/" in path and "." not in path):
        return native_frame(match["function"], path)
    return named_frame(path, match["line"], match["function"])


AUSTIN = StackForm(
    name="austin",
    thread=re.compile(
        r"^\s*(?:\S{1,3} ?){0,2}\s?Process (?P<pid>\d{1,10}) \S{1,3} Thread (?:\d{1,10}:)?(?P<number>\d{1,18})\s*$"
    ),
    head=_head,
    frame=re.compile(
        r"^\s*(?P<function>[^\s()]{1,300}) \((?P<path>[^()]{1,1000}?):(?P<line>\d{1,40})\)\s*$|^\s*\S{1,300} 🐧\s*$"
    ),
    make=_frame,
    noise=re.compile(r"^[_ |/`\\'()<-]{8,}(?: \d+\.\d+\.\d+.*)?$|^\S{1,3} Python version: .*$"),
    outermost_first=True,
)
