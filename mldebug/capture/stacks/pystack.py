"""What `pystack remote` and `pystack core` print, 1.0 to 1.5: frames outermost first, with their source lines."""

import re

from mldebug.capture.stacks.form import StackForm, ThreadHead, frame_of, native_frame, number
from mldebug.core.model import Frame
from mldebug.core.redact import clean


def _head(match: re.Match[str]) -> ThreadHead:
    return ThreadHead(
        number=number(match["number"]),
        name=clean(match["name"] or "", 64),
        owns_gil="Has the GIL" in (match["marks"] or ""),
        own=True,
    )


def _frame(match: re.Match[str]) -> Frame:
    if match["kind"] == "Python":
        return frame_of(match)
    return native_frame(match["function"], match["library"] or match["path"], match["line"])


PYSTACK = StackForm(
    name="pystack",
    thread=re.compile(
        r"^\s*Traceback for thread (?P<number>\d{1,10})(?: \((?P<name>.{0,200}?)\))?(?: \[(?P<marks>.{0,200}?)\])?"
        r" \(most recent call last\):\s*$"
    ),
    head=_head,
    frame=re.compile(
        r'^\s*\((?P<kind>Python|C|Other|Shim)\) File "(?P<path>.{0,1000}?)", line (?P<line>\d{1,40}), in '
        r"(?P<function>.{0,4000}?\S)(?: \((?P<library>/[^()]{1,1000})\))?\s*+$"
    ),
    make=_frame,
    noise=re.compile(r"^ {6,}\S.*$|^\s*(?:Using|Core file|The process|Using core file).*$"),
    outermost_first=True,
    main_last=True,
)
