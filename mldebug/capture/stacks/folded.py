"""Folded stacks of a profiler, one line each: `py-spy record --format raw` (with and without `--threads`), austin, pyflame.

Of a process that hangs each thread has one line; of one that works the line with the most samples counts.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from mldebug.capture.stacks.form import MAX_FRAMES, named_frame, native_frame, number
from mldebug.core.model import MAIN_THREAD, Frame, ThreadStack
from mldebug.core.redact import clean

MAX_LINES = 5000
_LINE = re.compile(r"^(?P<stack>\S.{0,29000}?) (?P<count>\d{1,12})$")
_THREAD = re.compile(r"thread \((?P<tid>0[xX][0-9A-Fa-f]{1,16}|\d{1,18})\)(?:: (?P<name>.*))?|T(?:\d{1,10}:)?(?P<own>0?[xX]?[0-9a-fA-F]{1,16})")  # fmt: skip
_PROCESS = re.compile(r"(?:process |P)(?P<pid>\d{1,10})(?::\"?(?P<command>.*?)\"?)?")
_PY_SPY = re.compile(r"(?P<function>[\w.<>]{1,300}) \((?P<path>[^()]{1,1000}?):(?P<line>\d{1,9})\)")
_AUSTIN = re.compile(r"(?P<path>[^:;]{1,1000}):(?P<function>[\w.<>]{1,300}):(?P<line>\d{1,9})")
_NATIVE = re.compile(r"(?P<function>\S.{0,4000}?) \((?P<path>[^()]{1,1000})\)")


class FoldedStacks(NamedTuple):
    """The stacks of one process: one for each thread; how many lines hold them."""

    lines: int = 0
    pid: int = 0
    command: str = ""
    stacks: tuple[ThreadStack, ...] = ()


class _Folded(NamedTuple):
    """One line: whose it is, its frames innermost first, and in how many samples it was found."""

    pid: int
    command: str
    tid: int
    name: str
    frames: tuple[Frame, ...]
    samples: int


def is_folded(line: str) -> bool:
    """Whether the line is a folded stack with a Python frame that has its place."""
    return line[-1:].isdigit() and _parse(line) is not None


def take_folded(lines: Iterable[str]) -> FoldedStacks:
    """The folded stacks with which these lines begin, as long as they are of one process."""
    found: list[_Folded] = []
    for line in lines:
        one = _parse(line) if len(found) < MAX_LINES and line[-1:].isdigit() else None
        if one is None or (found and one.pid != found[0].pid):
            break
        found.append(one)
    if not found:
        return FoldedStacks()
    most: dict[tuple[int, str, str], _Folded] = {}
    for one in found:
        who = (one.tid, one.name, "" if one.tid or one.name else one.frames[-1].function)
        if who not in most or one.samples > most[who].samples:
            most[who] = one
    stacks = tuple(ThreadStack(tid=one.tid, name=one.name, frames=one.frames, activity_unknown=True) for one in most.values())  # fmt: skip
    return FoldedStacks(len(found), found[0].pid, found[0].command, stacks)


def _parse(line: str) -> _Folded | None:
    match = _LINE.match(line)
    if match is None or ("(" not in line and ":" not in line):
        return None
    parts = match["stack"].split(";")
    pid, command, tid, name = 0, "", 0, ""
    if whose := _PROCESS.fullmatch(parts[0]):
        pid, command, parts = int(whose["pid"]), clean(whose["command"] or "", 4096), parts[1:]
    if parts and (whose := _THREAD.fullmatch(parts[0])):
        tid, name, parts = number(whose["tid"] or whose["own"]), clean(whose["name"] or "", 64), parts[1:]  # fmt: skip
    if len(parts) > 1 and parts[0] == MAIN_THREAD:  # some write its name as the outermost frame
        name, parts = MAIN_THREAD, parts[1:]
    frames = [_frame(part) for part in parts[-MAX_FRAMES:]]
    if not frames or None in frames or all(one.native for one in frames if one):
        return None
    return _Folded(pid, command, tid, name, tuple(one for one in reversed(frames) if one), int(match["count"]))  # fmt: skip


def _frame(text: str) -> Frame | None:
    """One frame; None for text that is none."""
    if match := _PY_SPY.fullmatch(text) or _AUSTIN.fullmatch(text):
        return named_frame(match["path"], match["line"], match["function"])
    if match := _NATIVE.fullmatch(text):
        return native_frame(match["function"], match["path"])
    return native_frame(text) if re.fullmatch(r"[\w.:~@<>*&+\[\] -]{1,300}", text) else None
