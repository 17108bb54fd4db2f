"""What `py-spy dump` prints: JSON, and the text of py-spy 0.1 to 0.4. Source: py-spy src/dump.rs."""

import re

import msgspec

from mldebug.capture.stacks.form import (
    MAX_FRAMES,
    MAX_NAME,
    StackForm,
    ThreadHead,
    is_native_source,
    line_number,
    number,
    short_function,
    short_path,
)
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Frame, ThreadStack
from mldebug.core.redact import clean

MAX_THREADS = 512
MAX_OBJECTS = 500_000  # braces: a thread or frame of py-spy's has a hundred bytes, an invented one three, and takes 170 once it is decoded


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
    """Read the output of `py-spy dump --json`: one stack per Python thread, frames innermost first, names cleaned and cut.

    Raises EvidenceError when it is not such a dump, or larger than one. Source: py-spy 0.4 src/dump.rs.
    """
    if (data.count(b"{") if isinstance(data, bytes) else data.count("{")) > MAX_OBJECTS:
        raise EvidenceError("this has more threads and frames than py-spy writes")
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
        file=clean(raw.short_filename or short_path(path), MAX_NAME),
        line=max(raw.line, 0),
        path=path,
        native=native,
    )


# --- text ------------------------------------------------------------------------------------------

_FRAME = re.compile(  # a Python name may be indented anyhow; a C++ one is anything, as deep as py-spy prints it
    r"^\s*(?P<python>[\w.<>]{1,300}) \((?P<file>[^()]{1,1000}?):(?P<line>\d{1,40})\)\s*$"
    r"|^\s{2,12}(?!\S+: )(?P<native>\S.{0,4000}?) \((?P<library>[^()]{1,1000}?)(?::(?P<at>\d{1,40}))?\)\s*$"
    r"|^(?!.*(?::|\s\|)\s)(?P<bare>(?:0x|[A-Za-z_~]).{0,4000}?) \((?P<shared>[^()\s]{1,1000}?\.so[\w.]{0,40}|\[vdso\])\)\s*$"
)


def _head(match: re.Match[str]) -> ThreadHead:
    name, status = clean(match["name"] or "", 64), match["status"]
    own = (match["number"] or "").isdigit()
    return ThreadHead(
        number=number(match["number"]),
        name=name,
        active="active" in status,
        owns_gil="gil" in status,
        own=own,
    )


def _text_frame(match: re.Match[str]) -> Frame:
    function = match["python"] or match["native"] or match["bare"]
    file, line = match["file"] or match["library"] or match["shared"], match["line"] or match["at"]
    native = line is None or is_native_source(file)
    whole = file.startswith("/") and not native  # --full-filenames
    return Frame(
        function=short_function(function) if native else clean(function, MAX_NAME),
        file=clean(short_path(file) if whole else file, MAX_NAME),
        line=line_number(line),
        path=clean(file, 512) if whole else "",
        native=native,
    )


TEXT = StackForm(
    name="py-spy",
    process=re.compile(r"^\s*Process (?P<pid>\d{1,10})(?::\s?(?P<command>.*))?$"),
    thread=re.compile(
        r"^\s*Thread (?:(?P<number>0[xX][0-9A-Fa-f]+|[0-9A-Fa-f]+) )?\((?P<status>(?:active|idle)[a-z+ ]*)\)"
        r"(?::? ?\"(?P<name>(?:.*?\S)??)\s*+\"?)?\s*+$"
    ),
    head=_head,
    tells_activity=True,
    frame=_FRAME,
    make=_text_frame,
    noise=re.compile(
        r"^Python v?\d+\.\d+.*$|^ {8,}(?:Arguments|Locals):\s*$|^ {8,}\S+: .*$|^Sampling process .*$|^[-─—]{10,}$"
    ),
)
