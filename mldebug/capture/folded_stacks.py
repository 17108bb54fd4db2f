"""What `py-spy record --threads --format raw` prints: one line per stack, with how many samples found it. Source: py-spy src/flamegraph.rs."""

import re
from collections.abc import Iterable

from mldebug.capture.stacks.form import MAX_FRAMES, MAX_NAME, line_number, number, short_path
from mldebug.core.model import Frame, Noun, ThreadStack
from mldebug.core.redact import clean

MAX_LINES = 5000
_LINE = re.compile(
    r"^thread \((?P<tid>0x[0-9A-Fa-f]+|\d+)\)(?:: (?P<name>[^;]*))?;(?P<frames>.+) (?P<count>\d{1,9})$"
)
_FRAME = re.compile(
    r"^(?P<function>.{1,4000}) \((?P<file>[^()]{1,1000}?)(?::(?P<line>\d{1,40}))?\)$"
)


class CountedStack(Noun, frozen=True, kw_only=True):
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
