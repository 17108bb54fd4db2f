"""Finds tracebacks in a log, whatever stands before them on their lines: Python's own, rich's boxes, groups. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_HEADER = re.compile(
    r"Traceback (?:of where the remote call failed )?\(most recent call last\)(?::\s*$|: \(RANK \d{1,7}\)\s*$| ─)"
)
_ERROR = re.compile(r"(?P<name>[A-Za-z_][\w.]{0,120}(?:\([\w.]{1,80}\))?)(?:: .*|:?)$")
_INSIDE = tuple(" │╭╰")
_HANDLING, _CAUSED = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
_GROUP = "+ Exception Group "
_NOT_OURS = ("ChildFailedError", "SignalException", "SystemExit", "KeyboardInterrupt")
# A launcher's own traceback, below that of the rank whose end it tells: torch.distributed.launch, deepspeed, accelerate
_OF_LAUNCHER = re.compile(
    r'File "[^"]{0,200}(?:torch/distributed/(?:launch|run)|deepspeed/launcher/\w{1,40}|accelerate/commands/launch|horovod/runner/\w{1,40})\.py"'
)
_WENT_ON = re.compile(
    r"\W{0,3}(?:\d{4}-\d\d-\d\d[ T]|\d\d:\d\d:\d\d|(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b"
    r"|(?:step|iter(?:ation)?|epoch)\W{1,3}\d)",
    re.IGNORECASE,
)
_AN_ERROR = re.compile(r"\s{0,8}[A-Za-z_][\w.]{0,120}(?:Error|Exception): ")
ABOVE = 12  # lines before a traceback in which an error may stand that quotes it
BETWEEN = 12  # lines of others that may stand between the first two lines of one
MAX_DEPTH = 400  # lines of one traceback
MAX_AFTER = 200  # lines: what is further from the end is no last word, however long a buffer may be


class Cause(NamedTuple):
    """An earlier exception of a chain.

    `explicit`: the next one was raised `from` it, and not only while it was handled.
    """

    start: int  # the line where its traceback begins
    at: int  # the line of its error
    error: str
    explicit: bool


class Traceback(NamedTuple):
    """A traceback in a log: index of its first line, index of the line with its error, the error without the line's prefix, and the exceptions before it in its chain."""

    start: int
    end: int
    error: str
    causes: tuple[Cause, ...] = ()  # the first one first


def find_tracebacks(lines: Sequence[str]) -> list[Traceback]:
    """The tracebacks in a log, in order.

    A chain of exceptions counts as one, with the last as its error.

    The launcher's own exceptions and the KeyboardInterrupt of a process that was asked to stop are
    left out.
    """
    found: list[Traceback] = []
    ends = _Ends(lines)
    for start, line in enumerate(lines):
        one = ends.read(start) if _HEADER.search(line) else None
        if one is None:
            continue
        explicit = _chained(lines[found[-1].end : start]) if found else None
        if explicit is not None:
            before = found.pop()
            cause = Cause(before.start, before.end, before.error, explicit)
            one = one._replace(causes=(*before.causes, cause))
        found.append(one)
    return found


def own_text(lines: Sequence[str], start: int, end: int) -> list[str]:
    """The lines `start` to `end` of a traceback as its process wrote them: without what stands before each, and without those of others between them."""
    prefix = prefix_of(lines, start)
    inside = (without(line, prefix) for line in lines[start + 1 : end])
    return [lines[start], *(text for text in inside if text.strip()), lines[end]]


def is_whole(lines: Sequence[str], found: Traceback, others: Iterable[Traceback] = ()) -> bool:
    """Whether a traceback has a frame and no lines of other ranks inside, and no other error right before it that it may belong to.

    `others`: the tracebacks before it; one that goes on beyond its first line is mixed with it.
    """
    if any(one.start < found.start < one.end for one in others):
        return False
    prefix = prefix_of(lines, found.start)
    inside = [without(line, prefix).rstrip() for line in lines[found.start + 1 : found.end]]
    if not any("File " in text or "│" in text for text in inside):
        return False
    begins = found.causes[0].start if found.causes else found.start
    above = lines[max(0, begins - ABOVE) : begins]
    return all(not text or text.startswith(_INSIDE) for text in inside) and not any(
        _AN_ERROR.match(line) or _HEADER.search(line) for line in above
    )


def went_on(lines: Iterable[str]) -> int:
    """How many of these lines after a traceback show that the program went on, so that the exception may have been caught.

    They are no proof: text that Python had buffered for standard output also appears after the
    traceback.
    """
    return sum("NCCL" not in line for line in lines if _WENT_ON.match(line))


class _Ends:
    """Where tracebacks end. A line is looked at once for each kind of prefix, however many tracebacks without an end begin above it."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._shapes: Sequence[str] = ()  # of all lines, once one is asked for
        self._looked_at: dict[str, int] = {}  # by shape of the prefix, the first line not yet read
        self._last: dict[str, int] = {}  # the last end before that line

    def read(self, start: int) -> Traceback | None:
        """The traceback that begins at this line; None for one without an error, or with one that is not the job's."""
        prefix = prefix_of(self._lines, start)
        at = self._end_of(start, prefix)
        if at is None:
            return None
        text = without(self._lines[at], prefix).rstrip()
        match = _ERROR.match(text)
        ours = match and match["name"].rpartition(".")[2] not in _NOT_OURS
        return Traceback(start, at, text) if ours and not self._of_launcher(start, at) else None

    def _of_launcher(self, start: int, end: int) -> bool:
        """Whether its innermost frame is one of a launcher's code, and the reason none that it could have of its own."""
        frames = [line for line in self._lines[start:end] if 'File "' in line]
        return bool(frames) and _OF_LAUNCHER.search(frames[-1]) is not None

    def _end_of(self, start: int, prefix: str) -> int | None:
        shape = _shape(prefix)
        if self._last.get(shape, -1) > start:
            return self._last[shape]
        begin = max(start + 1, self._looked_at.get(shape, 0))
        within = range(begin, min(len(self._lines), start + MAX_DEPTH))
        mine = self._written_behind(shape, within)
        end = next((at for at in mine if self._is_end(at, prefix)), None)
        self._looked_at[shape] = max(begin, within.stop) if end is None else end + 1
        if end is not None:
            self._last[shape] = end
        return end

    def _written_behind(self, shape: str, within: Iterable[int]) -> Iterable[int]:
        """The lines among these that begin with a prefix of this shape."""
        if not shape:
            return within
        self._shapes = self._shapes or [_shape(line) for line in self._lines]
        return (at for at in within if self._shapes[at].startswith(shape))

    def _is_end(self, at: int, prefix: str) -> bool:
        text = without(self._lines[at], prefix).rstrip()
        if not text or text.startswith(_INSIDE):
            return False
        # another rank may have written into the middle of it
        return _ERROR.match(text) is not None or not _goes_on(self._lines[at + 1 : at + 2], prefix)


def _goes_on(following: Sequence[str], prefix: str) -> bool:
    return any(without(line, prefix).startswith("  ") for line in following)


def prefix_of(lines: Sequence[str], start: int) -> str:
    """Return what stands before each line of the traceback that begins at `lines[start]` (a time, a host); "" where only
    its first line has something.
    """
    head = lines[start].partition("Traceback ")[0]
    if head.endswith(_GROUP):
        head = f"{head.removesuffix(_GROUP)}| "
    following = lines[start + 1 : start + 1 + BETWEEN]
    if not head.strip():
        # else it stands indented in the text of another exception, its lines do not
        return head if following and following[0].startswith(f"{head}  ") else ""
    shape = _shape(head)
    alike = (line[len(head) :] for line in following if _shape(line[: len(head)]) == shape)
    return head if any(text.startswith(_INSIDE) for text in alike) else ""


def without(line: str, prefix: str) -> str:
    """The line without `prefix`; "" where it begins otherwise, because another process wrote it."""
    head = line[: len(prefix)]
    return line[len(prefix) :] if head == prefix or _shape(head) == _shape(prefix) else ""


def _shape(text: str) -> str:
    """Times differ from line to line in their digits only."""
    return re.sub(r"\d", "0", text)


def _chained(between: Iterable[str]) -> bool | None:
    """Whether the next exception was raised from the one before; None where they are no chain."""
    for line in between:
        if _CAUSED in line or _HANDLING in line:
            return _CAUSED in line
    return None
