"""Reads stacks written as JSON by `py-spy dump --json`: one list of threads for each process. A text may hold several lists, also
nested in other JSON lists, or in objects that give the pid and the command line.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from mldebug.capture.stacks.pyspy import MAX_OBJECTS, parse_pyspy_json
from mldebug.core.errors import EvidenceError
from mldebug.core.model import ThreadStack
from mldebug.core.redact import clean

_BEGIN = re.compile(r"^\s*(?:\[\s*(?:\{.*|\]?\s*)|\{\s*(?:\".*)?)$")
_INSIDE = re.compile(
    r'^\s+"(?:pid|thread_id|thread_name|os_thread_id|active|owns_gil|frames|name|filename|module|short_filename|line|locals|is_entry'
    r'|process_info)": .*$|^\s+[\[\]{}],?$'
)
_FIRST = ("[", "{", '"', "]", "}")
_DECODER = json.JSONDecoder()
MAX_DEPTH = 3


class JsonProcess(NamedTuple):
    """The threads of one process, its pid and its command line; 0 and "" where the text has none."""

    pid: int
    command: str
    stacks: tuple[ThreadStack, ...]


class JsonText(NamedTuple):
    """The processes in one JSON value, and how many lines of text the value takes; 0 where there is none."""

    processes: tuple[JsonProcess, ...] = ()
    lines: int = 0


def is_json(line: str) -> bool:
    """Whether this line may begin a JSON value with stacks, or be a line inside of one."""
    if line.lstrip()[:1] not in _FIRST:
        return False
    return bool(_BEGIN.match(line) or _INSIDE.match(line))


def take_json(lines: Iterable[str]) -> JsonText:
    """Read the JSON value that begins with the first line. Empty where it is no complete JSON, or holds no stacks.

    Of many values, each on lines of its own, each takes as few lines as it has, and at most as many again.
    """
    following = iter(lines)
    text = next(following, "")
    if not _BEGIN.match(text):
        return JsonText()
    start, more = len(text) - len(text.lstrip()), 1
    while not _is_larger(text):
        try:
            value, end = _DECODER.raw_decode(text, start)
            break
        except RecursionError:
            return JsonText()
        except ValueError:  # it goes on, or is none
            some = list(islice(following, more))
            if not some:
                return JsonText()
            text, more = "\n".join((text, *some)), 2 * more
    else:
        return JsonText()
    found = tuple(_processes(value, 0))
    return JsonText(found, text.count("\n", 0, end) + 1) if found else JsonText()


def _is_larger(text: str) -> bool:
    """Whether it may hold more than a file of stacks: an empty list is two bytes, and sixty once it is decoded."""
    return text.count("{") + text.count("[") > 2 * MAX_OBJECTS or text.count(",") > 4 * MAX_OBJECTS


def _processes(value: Any, depth: int) -> Iterator[JsonProcess]:
    """A list of threads is a process; objects may hold it under any name, beside `pid` and a command line."""
    if isinstance(value, list) and value and all(_is_thread(one) for one in value):
        by_pid: dict[int, list[Any]] = {}
        for one in value:
            by_pid.setdefault(_number(one.get("pid")), []).append(one)
        for pid, threads in by_pid.items():
            try:
                yield JsonProcess(pid, "", parse_pyspy_json(json.dumps(threads)))
            except (EvidenceError, ValueError, RecursionError):
                continue  # threads of another tool, with other fields
    elif depth < MAX_DEPTH and isinstance(value, list):
        for one in value:
            yield from _processes(one, depth + 1)
    elif depth < MAX_DEPTH and isinstance(value, dict):
        command = value.get("command_line") or value.get("cmdline") or value.get("command") or ""
        for one in value.values():
            for found in _processes(one, depth + 1):
                yield found._replace(
                    pid=found.pid or _number(value.get("pid")),
                    command=found.command or clean(str(command), 4096),
                )


def _is_thread(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("frames"), list)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 31 else 0
