"""What a written form of stacks is, as data, and how its names become frames and threads."""

import re
from collections.abc import Callable
from typing import NamedTuple

from mldebug.capture.packages import package_path
from mldebug.core.model import Frame
from mldebug.core.redact import clean

RECORDED = "recorded"  # launcher, job id and node of ranks whose stacks others have dumped
IN_ORDER = "rank_order"  # kind of the remark that the numbers of such ranks are a guess
MAX_NAME = 160
MAX_FRAMES = 150  # kept per thread: 100 innermost and 50 outermost
MAX_NUMBER = 1 << 62  # of a thread or line; larger ones are made up

_NATIVE_SOURCE = (".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".pyx", ".rs", ".S")


class ThreadHead(NamedTuple):
    """The line that begins a thread. `number`: the thread's number, 0 where none is written; `own`: it is the kernel's number,
    not an address.
    """

    number: int = 0
    name: str = ""
    active: bool = False
    owns_gil: bool = False
    own: bool = False
    main: bool = False  # the form says that it is the main thread


class StackForm(NamedTuple):
    """One form in which a tool writes the threads of a process.

    A line is tried against `process` (its groups `pid` and `command` are optional), `thread`, and below a thread `frame`;
    lines that match `noise` belong to the form and hold nothing. `main_last`: where no name says which thread is the main
    one, it is the last of its process, else the first. `tells_activity`: heads say whether a thread was on a CPU.
    """

    name: str
    thread: re.Pattern[str]
    head: Callable[[re.Match[str]], ThreadHead]
    frame: re.Pattern[str]
    make: Callable[[re.Match[str]], Frame | None]
    process: re.Pattern[str] | None = None
    noise: re.Pattern[str] | None = None
    outermost_first: bool = False
    main_last: bool = False
    tells_activity: bool = False


def number(text: str | None) -> int:
    """A thread's number as written in decimal, `0x…`, or hexadecimal without `0x`. 0 where there is none, or one too large to be
    real.
    """
    if not text:
        return 0
    bare = text.lower().removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{1,16}", bare):
        return 0
    found = int(bare, 10 if bare == text and bare.isdigit() else 16)
    return found if found < MAX_NUMBER else 0


def line_number(text: str | None) -> int:
    """The number of a line in a file; 0 where the text is none, or has 10 digits or more."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


def short_function(name: str) -> str:
    """A demangled C++ name without template arguments and parameters, cut to a limit."""
    cut = re.split(r"[<(]", clean(name, 2000), maxsplit=1)[0].strip()
    return (cut or clean(name, MAX_NAME))[:MAX_NAME]


def named_frame(path: str, line: str, function: str) -> Frame:
    """A Python frame from its file's full path, line and function, as pystack and faulthandler print them. The beginning of the
    path may be cut (`.../jax/_src/array.py`).
    """
    whole = re.sub(r"^(?:\.{2,3}|…|~)(?=/)", "", clean(path, 512))
    file = short_path(whole)
    return Frame(function=clean(function, MAX_NAME), file=file, line=line_number(line), path=whole)


def frame_of(match: re.Match[str]) -> Frame:
    """The Python frame that a line matched by the groups `path`, `line` and `function` stands for."""
    return named_frame(match["path"], match["line"], match["function"])


def short_path(path: str) -> str:
    """The end of a path that still shows its package: from the package or the standard library on, else the file name alone."""
    if known := package_path(path):
        return known
    short = re.sub(r"^.*/(?:lib(?:64)?/(?:python|pypy)3\.\d+t?|python3\d+\.zip)/", "", path)
    return short.rpartition("/")[2] if short.startswith("/") else short


def native_frame(function: str, file: str = "", line: str | None = None) -> Frame:
    """A C or C++ frame. `file`: its source file or shared library."""
    return Frame(
        function=short_function(function),
        file=clean(file.rpartition("/")[2], MAX_NAME),
        line=line_number(line),
        path=clean(file, 512),
        native=True,
    )


def is_native_source(file: str) -> bool:
    """True for the name of a source file in C, C++, CUDA, Cython or Rust."""
    return file.endswith(_NATIVE_SOURCE)
