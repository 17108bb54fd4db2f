"""No pattern takes quadratic time from where it begins: one line of 64 KiB that a job wrote must not hold the main loop.

Each compiled pattern of the packages is matched with texts of what it looks for, pumped up: its own beginnings, then one thing for
as long as the line is. What searches in a line, and so begins everywhere, reads lines that are cut before.
"""

import importlib
import pkgutil
import re
import time
from collections.abc import Iterable, Iterator
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import mldebug
import mldebug_agents

LINE = 65_536
SHORT = 1024
MOST_SECONDS = 0.4  # of CPU time; a quadratic one takes a second at least
NOTICED = {
    SHORT: 0.0003,
    8 * SHORT: 0.006,
}  # seconds for so many characters, from which on longer texts are tried
NAMES = 4096  # characters of a path, and of the name of a native function
CUT = {
    "mldebug.diagnosis.classify.tables.signs": NAMES,
    "mldebug.storage.checkpoints.rank_files": NAMES,
    "mldebug.storage.filesystems.operation_counters": NAMES,
}
"""Modules whose patterns read names and paths, which the kernel or the reader of stacks has cut to so many characters."""
PUMPED = ("a", "0", "_", " ", "\t", "\n", ".", "/", ":", "-", '"', "(", "[", "a ", "a_", "a/", "0.")


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """All patterns that modules hold, by the module's name, with those in tuples and structs of theirs."""
    known: set[tuple[str, int]] = set()
    for package in (mldebug, mldebug_agents):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if "__main__" in info.name:
                continue
            for value in vars(importlib.import_module(info.name)).values():
                for one in inside(value):
                    if isinstance(one.pattern, str) and (one.pattern, one.flags) not in known:
                        known.add((one.pattern, one.flags))
                        yield info.name, one


def inside(value: Any, depth: int = 3) -> Iterator[re.Pattern[str]]:
    """The patterns of a value, and of the containers and structs in it."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        yield from (found for one in value.values() for found in inside(one, depth - 1))
    elif depth and isinstance(value, (tuple, list, set, frozenset)):
        yield from (found for one in value for found in inside(one, depth - 1))
    elif depth and not isinstance(value, type) and (names := getattr(value, "__struct_fields__", ())):  # fmt: skip
        yield from (found for one in names for found in inside(getattr(value, one), depth - 1))


def example(item: tuple[Any, Any]) -> str:
    """A short text that this item of a parsed pattern matches, or nearly."""
    kind, value = str(item[0]), item[1]
    if kind == "LITERAL":
        return chr(value)
    if kind == "IN":
        first, what = str(value[0][0]), value[0][1]
        chosen = {"LITERAL": what, "RANGE": what[0] if first == "RANGE" else 0}.get(first)
        return chr(chosen) if chosen is not None else "1" if "DIGIT" in str(what) else "a"
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return "".join(map(example, value[2])) * min(max(1, value[0]), 20)
    if kind in ("SUBPATTERN", "ATOMIC_GROUP", "BRANCH"):
        within: Iterable[Any] = value[3] if kind == "SUBPATTERN" else value[1][0] if kind == "BRANCH" else value  # fmt: skip
        return "".join(map(example, within))
    return "a" if kind in ("ANY", "NOT_LITERAL") else ""


def hostile(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Beginnings of what it matches, each with what is repeated behind it."""
    parts = [example(item) for item in parser.parse(pattern.pattern, pattern.flags)]
    heads = dict.fromkeys("".join(parts[:end]) for end in range(len(parts) + 1))
    own = [part for part in (*parts, "".join(parts)) if part]
    for head in [*list(heads)[-4:], ""]:
        yield from ((head, more) for more in dict.fromkeys((*PUMPED, *own)))


def seconds(pattern: re.Pattern[str], head: str, more: str, size: int) -> float:
    """CPU time of a line that begins to match and ends otherwise."""
    text = head + (more * size)[:size] + "\x00"
    began = time.process_time()
    pattern.match(text)
    pattern.fullmatch(text)
    return time.process_time() - began


def slow(pattern: re.Pattern[str], size: int) -> tuple[float, str] | None:
    """The first text that takes it too long; tried again shorter first, so that a bad one costs the test little."""
    for head, more in hostile(pattern):
        for length in (SHORT, 8 * SHORT, size):
            taken = seconds(pattern, head, more, length)
            if taken < NOTICED.get(length, 0.0):
                break
            if taken > MOST_SECONDS and seconds(pattern, head, more, length) > MOST_SECONDS:
                return taken, f"{head[:40]!r} + {more!r} * n"
    return None


def test_no_pattern_is_quadratic_from_where_it_begins() -> None:
    found = list(patterns())
    assert len(found) > 500
    bad = {
        f"{name}: {pattern.pattern[:90]}": what
        for name, pattern in found
        if (what := slow(pattern, min(LINE, CUT.get(name, LINE))))
    }
    assert not bad


@pytest.mark.parametrize(
    "text",
    [r"_*(?:\w+_)?lock(?:_\w+)?", r"(?P<before>.*?)\d+(?:\.pt)?", r"\s*(?:E\d|\s*$)", r"'.*?' \[.*?\] (?=x)"],
)  # fmt: skip
def test_a_quadratic_one_is_found(text: str) -> None:
    assert (
        slow(re.compile(text), LINE // 2) is not None
    )  # half a line: a quadratic one takes long enough


@pytest.mark.parametrize("text", [r"\s*+(?:E\d|$)", r"(?:.*\D)?\d++(?:\.pt)?", r"\w+: .*"])
def test_a_linear_one_is_not(text: str) -> None:
    assert slow(re.compile(text), LINE) is None
