"""Your own patterns, with groups named step, total, loss, seconds: `^it=(?P<step>\\d+) of (?P<total>\\d+)`.

Groups of any other name beside one of these are figures that `mldebug status --json` shows by that name: `lr=(?P<lr>\\S+)`.

In the configuration: `logs: {mine: {kind: regex, pattern: '…'}}`. Each is searched for in the first 1,000 characters of a
line; the first that matches counts. A pattern that could take long on some line is refused when the configuration is
read: a repeat inside a repeat, or one that was slow when tried.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any

import msgspec

from mldebug.core.errors import ConfigError
from mldebug.jobs.logs.records import LogFormat, LogRecord, duration, number, whole
from mldebug.jobs.logs.scalars import MAX_NAME, MOST

MAX_CHARACTERS = 1000
MAX_PATTERN = 1000
SLOW = 0.05  # seconds for one line
GROUPS = ("step", "total", "loss", "seconds")
WAY_OUT = r"""write it like: 'step (?P<step>\d+).* loss (?P<loss>\S+)'"""

_sre: Any = import_module("re._parser")  # the standard library's own, which has no public name
_CLASSES = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " "}


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The patterns of the user, tried in this order; without any this format reads nothing."""

    pattern: str = ""  # with groups named step, total, loss, seconds: at least one; others are figures of their name
    patterns: tuple[str, ...] = ()  # more, tried after `pattern`


class RegexFormat:
    """Reads lines that match the user's own patterns."""

    generic = False

    def __init__(self, patterns: Iterable[re.Pattern[str]]) -> None:
        self._patterns = tuple(patterns)
        # The user's words are not known; without a pattern no line is worth parsing, and no line has a NUL
        self.signs = () if self._patterns else ("\0",)

    def parse(self, line: str) -> LogRecord | None:
        """Return the record, None where nothing matches or no group holds a number."""
        line = line[:MAX_CHARACTERS]
        for pattern in self._patterns:
            if match := pattern.search(line):
                return _record(match.groupdict())
        return None


def _record(groups: dict[str, str | None]) -> LogRecord | None:
    record = LogRecord(
        step=whole(groups.get("step")),
        total=whole(groups.get("total")),
        loss=number(groups.get("loss")),
        step_seconds=duration(groups.get("seconds")),
        scalars=dict(islice(_scalars(groups), MOST)),
        format="regex",
    )
    return None if record == LogRecord(format="regex") else record


def _scalars(groups: dict[str, str | None]) -> Iterator[tuple[str, float]]:
    for name, text in groups.items():
        value = number(text.replace(",", "")) if text and name not in GROUPS else None
        if value is not None:
            yield name[:MAX_NAME], value


def create(options: Options) -> LogFormat:
    """Build the log format `regex`. Raises ConfigError, which lists every pattern that cannot be used."""
    given = list(_given(options))
    checked = [(pattern, _problem(pattern)) for _, pattern in given]
    wrong = [f"logs.regex: {pattern!r} {problem}" for pattern, problem in checked if problem]
    if wrong:
        raise ConfigError(wrong, WAY_OUT)
    return RegexFormat(re.compile(pattern) for _, pattern in given)


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Yields (option, what is wrong with it) for each pattern that cannot be used, or one problem where there is no pattern."""
    given = list(_given(options))
    if not given:
        yield "", f"has no pattern; {WAY_OUT}"
    for field, pattern in given:
        if problem := _problem(pattern):
            yield field, f"the pattern {problem}"


def _given(options: Options) -> Iterator[tuple[str, str]]:
    if options.pattern:
        yield "pattern", options.pattern
    for index, pattern in enumerate(options.patterns):
        yield f"patterns[{index}]", pattern


def _problem(pattern: str) -> str:
    """Say what is wrong with a pattern, "" when nothing is."""
    if len(pattern) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters"
    try:
        compiled = re.compile(pattern)
        tree = _sre.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    if not compiled.groupindex:
        return f"has no named group; name at least one of: {', '.join(GROUPS)}"
    odd = sorted(set(compiled.groupindex) - set(GROUPS))
    if odd and len(odd) == len(compiled.groupindex):
        return f"has a group named {odd[0]!r}; the legal names are: {', '.join(GROUPS)}"
    if _nested(tree, inside=False):
        return "repeats something that itself repeats or chooses, which can take for ever"
    if _slow(compiled, "".join(_example(tree))):
        return "is too slow on some lines; use fewer .* and \\s*, or anchor it with ^"
    return ""


def _parts(argument: Any) -> Iterator[Any]:
    """Yield the sub-patterns in the argument of a node."""
    if isinstance(argument, _sre.SubPattern):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for part in argument:
            yield from _parts(part)


def _nested(tree: Any, *, inside: bool) -> bool:
    for operation, argument in tree:
        name = str(operation)
        repeats = name.endswith("_REPEAT")
        chooses = name == "BRANCH" or (repeats and argument[0] != argument[1])
        if name.startswith("GROUPREF") or (inside and chooses):
            return True
        again = inside or (repeats and argument[1] > 1)
        if any(_nested(part, inside=again) for part in _parts(argument)):
            return True
    return False


def _example(tree: Any) -> Iterator[str]:
    """Yield the pieces of a text that (nearly) matches: the start of every line that can make the pattern slow."""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            yield chr(argument)
        elif name in ("ANY", "NOT_LITERAL"):
            yield "1"
        elif name == "IN":
            yield _choice(argument)
        elif name == "BRANCH":
            yield from _example(argument[1][0])
        elif not name.startswith("ASSERT"):
            for part in _parts(argument):
                yield from _example(part)


def _choice(choices: list[tuple[Any, Any]]) -> str:
    operation, argument = choices[0]
    if str(operation) == "LITERAL":
        return chr(argument)
    if str(operation) == "RANGE":
        return chr(argument[0])
    return _CLASSES.get(str(argument), "1")


def _slow(
    pattern: re.Pattern[str], example: str, clock: Callable[[], float] = time.thread_time
) -> bool:
    """Try hostile lines, short ones first: what is polynomial shows before it takes long."""
    letters = dict.fromkeys(" 1a=" + example[:100])
    for length in (25, 50, 100, 200, 400, 700, MAX_CHARACTERS):
        pumped = [example + letter * length for letter in letters]
        pumped += [(example[:end] or " ") * length for end in (len(example), -1)]
        for line in pumped:
            line = line[: length - 1] + "\x01"
            began = clock()
            pattern.search(line)
            if clock() - began > SLOW and _again(pattern, line, clock):
                return True
    return False


def _again(pattern: re.Pattern[str], line: str, clock: Callable[[], float]) -> bool:
    """Time it once more: the first time, the machine may have been busy with something else."""
    began = clock()
    pattern.search(line)
    return clock() - began > SLOW
