"""What Python's `faulthandler` writes: after a timeout, a signal, or a crash. Source: CPython Python/traceback.c, 3.8 to 3.15."""

import re

from mldebug.capture.stacks.form import StackForm, ThreadHead, frame_of, number
from mldebug.core.redact import clean


def _head(match: re.Match[str]) -> ThreadHead:
    return ThreadHead(number=number(match["number"]), name=clean(match["name"] or "", 64))


FAULTHANDLER = StackForm(
    name="faulthandler",
    process=re.compile(r"^\s*(?:Timeout \([\d:.]+\)!|Fatal Python error: .*)\s*$"),
    thread=re.compile(
        r"^\s*(?:(?:Current thread|Thread)(?: (?P<number>0x[0-9a-fA-F]+))?(?: \[(?P<name>.*)\])?"
        r"|Stack) \(most recent call first\):\s*$"
    ),
    head=_head,
    frame=re.compile(
        r'^\s*File "(?P<path>.{1,1000}?)",\s{1,20}line\s{1,20}(?P<line>\d{1,40}|\?+),? in (?P<function>.{1,300}?)\s*$'
    ),
    make=frame_of,
    noise=re.compile(
        r"^\s*<no Python frame>$|^\s*\.\.\.$|^Extension modules: .*$|^\s*Binary file \".*$|^\s*<.*>$"
        r"|^Python runtime state: .*$|^Current thread's C stack trace \(most recent call first\):$"
    ),
    main_last=True,
)
