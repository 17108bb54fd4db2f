"""Stack dumps: parse what py-spy prints, find the thread that matters, merge the stacks of all ranks."""

import re
from collections.abc import Iterable, Iterator

import msgspec

from mldebug.capture.packages import INSTALLED
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Frame, ThreadStack, TreeNode
from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import clean

MAX_THREADS = 512
MAX_FRAMES = 150  # kept per thread: 100 innermost and 50 outermost
MAX_NAME = 160


class _RawFrame(msgspec.Struct):
    name: str
    filename: str = ""
    short_filename: str | None = None
    module: str | None = None
    line: int = 0


class _RawThread(msgspec.Struct):
    pid: int = 0
    thread_id: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False
    frames: list[_RawFrame] = []


_DECODER = msgspec.json.Decoder(list[_RawThread])


def parse_pyspy_json(data: bytes | str) -> tuple[ThreadStack, ...]:
    """Read `py-spy dump --json`: one stack per Python thread, frames innermost first.

    Raises EvidenceError when it is not such a dump. Names are cleaned and cut; source: py-spy 0.4 src/dump.rs.
    """
    try:
        raw = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"this is not py-spy JSON: {clean(str(error))}") from error
    return tuple(_thread(thread) for thread in raw[:MAX_THREADS])


def _thread(raw: _RawThread) -> ThreadStack:
    return ThreadStack(
        tid=raw.os_thread_id or raw.thread_id,
        name=clean(raw.thread_name or "", 64),
        active=raw.active,
        owns_gil=raw.owns_gil,
        frames=tuple(_frame(frame) for frame in _both_ends(raw.frames)),
    )


def _both_ends(frames: list[_RawFrame]) -> list[_RawFrame]:
    """Cut endless recursion in the middle: where it stands and where it came from both stay."""
    if len(frames) <= MAX_FRAMES:
        return frames
    hidden = _RawFrame(name=f"… {len(frames) - MAX_FRAMES} frames left out …", filename="cut.py")
    return [*frames[:100], hidden, *frames[-49:]]


def _frame(raw: _RawFrame) -> Frame:
    native = raw.module is not None or not (raw.line or raw.filename.endswith(".py"))
    path = clean(raw.module or raw.filename, 512)
    return Frame(
        function=short_function(raw.name) if native else clean(raw.name, MAX_NAME),
        file=clean(raw.short_filename or path.rpartition("/")[2], MAX_NAME),
        line=max(raw.line, 0),
        path=path,
        native=native,
    )


def short_function(name: str) -> str:
    """Cut a demangled C++ name to what a person reads: no template arguments, no parameters."""
    cut = re.split(r"[<(]", clean(name, 2000), maxsplit=1)[0].strip()
    return (cut or clean(name, MAX_NAME))[:MAX_NAME]


_NATIVE_SOURCE = (".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".pyx", ".rs")
_TEXT_PROCESS = re.compile(r"^Process (\d+):")
_TEXT_THREAD = re.compile(r'^Thread (?:0x)?([0-9A-Fa-f]+) \(([a-z+]+)\)(?:: "(.*)")?')
_TEXT_FRAME = re.compile(r"^ {4}(.+) \((.+?)(?::(\d+))?\)$")


def parse_pyspy_text(text: str) -> dict[int, tuple[ThreadStack, ...]]:
    """Read the text of one or more `py-spy dump` calls, pid -> stacks; lines of anything else are skipped."""
    found: dict[int, list[ThreadStack]] = {}
    pid = 0
    for line in text.splitlines():
        if match := _TEXT_PROCESS.match(line):
            pid = int(match[1])
        elif match := _TEXT_THREAD.match(line):
            found.setdefault(pid or int(match[1], 10), []).append(_text_thread(match))
        elif (match := _TEXT_FRAME.match(line)) and found:
            stacks = found[next(reversed(found))]
            frames = (*stacks[-1].frames, _text_frame(match))
            stacks[-1] = msgspec.structs.replace(stacks[-1], frames=frames[:MAX_FRAMES])
    return {owner: tuple(stacks) for owner, stacks in found.items()}


def _text_thread(match: re.Match[str]) -> ThreadStack:
    tid = int(match[1], 10 if match[1].isdigit() else 16)
    name = clean(match[3] or "", 64)
    return ThreadStack(tid=tid, name=name, active="active" in match[2], owns_gil="gil" in match[2])


def _text_frame(match: re.Match[str]) -> Frame:
    native = match[3] is None or match[2].endswith(_NATIVE_SOURCE)
    name = short_function(match[1]) if native else clean(match[1], MAX_NAME)
    return Frame(
        function=name, file=clean(match[2], MAX_NAME), line=int(match[3] or 0), native=native
    )


def named_frame(path: str, line: str, function: str) -> Frame:
    """A Python frame as pystack and faulthandler name it: with the whole path of its file."""
    whole = clean(path, 512)
    short = INSTALLED.split(whole)[-1]
    short = short if short != whole else re.sub(r"^.*/lib/python3\.\d+/", "", whole)
    file = short if not short.startswith("/") else short.rpartition("/")[2]
    return Frame(function=clean(function, MAX_NAME), file=file, line=int(line), path=whole)


# --- merging ---------------------------------------------------------------------------------------


def merge(stacks: Iterable[tuple[int, tuple[str, ...]]]) -> tuple[TreeNode, ...]:
    """Merge (rank, labels innermost first) into a prefix tree with folded rank sets, biggest branch first.

    Equal stacks are joined before the tree is built: 8,192 ranks in three groups cost three insertions.
    """
    members: dict[tuple[str, ...], list[int]] = {}
    for rank, stack in stacks:
        members.setdefault(stack, []).append(rank)
    return tuple(_branches([(stack[::-1], ranks) for stack, ranks in members.items() if stack]))


def _branches(paths: list[tuple[tuple[str, ...], list[int]]]) -> Iterator[TreeNode]:
    roots: dict[str, list[tuple[tuple[str, ...], list[int]]]] = {}
    for path, ranks in paths:
        roots.setdefault(path[0], []).append((path[1:], ranks))
    by_size = sorted(roots.items(), key=lambda item: (-sum(len(r) for _, r in item[1]), item[0]))
    for frame, rest in by_size:
        ranks = sorted(rank for _, some in rest for rank in some)
        below = tuple(_branches([pair for pair in rest if pair[0]]))
        yield TreeNode(frame=frame, ranks=fold_ranks(ranks), count=len(ranks), children=below)
