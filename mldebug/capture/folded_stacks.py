"""Folded stacks of a profiler: one line per stack, with how many samples found it. Sources: py-spy src/flamegraph.rs, austin."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from mldebug.capture.stacks.form import (
    MAX_FRAMES,
    MAX_NAME,
    frame_of,
    line_number,
    native_frame,
    number,
    short_path,
)
from mldebug.core.model import MAIN_THREAD, Frame, MeasuredData, ThreadStack
from mldebug.core.redact import clean

MAX_LINES = 5000
_LINE = re.compile(
    r"^thread \((?P<tid>0x[0-9A-Fa-f]+|\d+)\)(?:: (?P<name>[^;]*))?;(?P<frames>.+) (?P<count>\d{1,9})$"
)
_FRAME = re.compile(
    r"^(?P<function>.{1,4000}) \((?P<file>[^()]{1,1000}?)(?::(?P<line>\d{1,40}))?\)$"
)


class CountedStack(MeasuredData, frozen=True, kw_only=True):
    """A stack of one thread, innermost frame first, and the number of samples in which the thread stood there."""

    stack: ThreadStack
    count: int


def parse_folded(text: str) -> tuple[CountedStack, ...]:
    """The stacks in the output of `py-spy record --format raw`. Lines that are no stacks (py-spy's own messages) are ignored."""
    found = (_LINE.match(line) for line in text.split("\n")[:MAX_LINES])
    return tuple(_counted(match) for match in found if match is not None)


def _counted(match: re.Match[str]) -> CountedStack:
    frames = [_frame(part) for part in match["frames"].split(";")[-MAX_FRAMES:]]
    stack = ThreadStack(
        tid=number(match["tid"]),
        name=clean(match["name"] or "", 64),
        frames=tuple(reversed(frames)),
    )
    return CountedStack(stack=stack, count=int(match["count"]))


def _frame(text: str) -> Frame:
    match = _FRAME.match(text)
    if match is None:
        return Frame(function=clean(text, MAX_NAME), file="", native=True)
    file, native = match["file"], match["line"] is None
    whole = file.startswith("/") and not native  # --full-filenames
    return Frame(
        function=clean(match["function"], MAX_NAME),
        file=clean(short_path(file) if whole else file, MAX_NAME),
        line=line_number(match["line"]) if match["line"] else 0,
        path=clean(file, 512) if whole else "",
        native=native,
    )


def folded_text(stacks: Iterable[CountedStack]) -> str:
    """Stacks in the folded form that speedscope and flame graphs read: one line per stack, the outermost frame first."""
    return "".join(f"{_folded(one)}\n" for one in stacks)


def _folded(one: CountedStack) -> str:
    name = f": {one.stack.name}" if one.stack.name else ""
    labels = [frame.label.replace(";", ",") for frame in reversed(one.stack.frames)]
    return f"thread ({one.stack.tid}){name};{';'.join(labels)} {one.count}"


# --- as other people recorded them: of a process that hangs each thread has one line, else that with the most samples counts ---

_ANY_LINE = re.compile(r"^(?P<stack>\S.{0,29000}?) (?P<count>\d{1,12})$")
_THREAD = re.compile(r"thread \((?P<tid>0[xX][0-9A-Fa-f]{1,16}|\d{1,18})\)(?:: (?P<name>.*))?|T(?:\d{1,10}:)?(?P<own>0?[xX]?[0-9a-fA-F]{1,16})")  # fmt: skip
_PROCESS = re.compile(r"(?:process |P)(?P<pid>\d{1,10})(?::\"?(?P<command>.*?)\"?)?")
# A file of Python; logs are full of other words with colons: `loss:train:5`, `elapsed 0:12:30`, `web (nginx:1)`
_FILE = r"(?:<[\w .-]{1,300}>|(?:[^():;]{0,1000}/)?[^():;/]{0,300}\.py[xwi]?|(?:[^():;]{0,700}/)?ipykernel_\d{1,10}/[\w.-]{1,300})"
_PY_SPY = re.compile(
    rf"(?P<function>(?!\d)[\w.<>]{{1,300}}) \((?P<path>{_FILE}):(?P<line>\d{{1,9}})\)"
)
_AUSTIN = re.compile(rf"(?P<path>{_FILE}):(?P<function>(?!\d)[\w.<>]{{1,300}}):(?P<line>\d{{1,9}})")
_NATIVE = re.compile(r"(?P<function>\S.{0,4000}?) \((?P<path>[^()]{1,1000})\)")


class FoldedStacks(NamedTuple):
    """The stacks of one process, one for each thread. `lines`: how many lines of the text they were read from."""

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
    match = _ANY_LINE.match(line)
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
    frames = [_any_frame(part) for part in parts[-MAX_FRAMES:]]
    if not frames or None in frames or all(one.native for one in frames if one):
        return None
    return _Folded(pid, command, tid, name, tuple(one for one in reversed(frames) if one), int(match["count"]))  # fmt: skip


def _any_frame(text: str) -> Frame | None:
    """One frame; None for text that is none."""
    if match := _PY_SPY.fullmatch(text) or _AUSTIN.fullmatch(text):
        return frame_of(match)
    if match := _NATIVE.fullmatch(text):
        return native_frame(match["function"], match["path"])
    return native_frame(text) if re.fullmatch(r"[\w.:~@<>*&+\[\] -]{1,300}", text) else None
