"""Durations that people read have a blank between number and unit, and come from one function in `mldebug.core.units`.

Settings, options and command lines are written without the blank, `--wait 60s`, for a shell would part them.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.core.units import age_words, duration_words, parse_duration
from shared.system.sources import nodes_of, tree_of

ROOT = Path(__file__).parents[3]
SOURCES = ("mldebug", "agents", "exporters")
WRITES_SETTINGS = {
    "agents/mldebug_agents/probes/history/scheduled.py",  # a command line
    "mldebug/config/schema.py",
    "mldebug/core/scalars.py",
    "mldebug/core/units.py",
}
OTHER_LETTERS = {
    "mldebug/core/text.py",  # `{noun}s`
    "mldebug/incidents/report/rank_map.py",  # the path of a drawing: h, m, v
}
GLUED = re.compile(r"(?:ms|min|[smhd])(?![\w({=\[])")
OPTION = re.compile(r"--[\w-]+ $")
IN_TEMPLATES = re.compile(r"\}\}(?:ms|min|[smhd])\b")
IN_SCRIPTS = re.compile(r"""\}(?:ms|min|[smhd])\b|\+ *["'](?:ms|min|[smhd])["']""")
PERCENT = re.compile(r"%\.?\d*[fg](?:ms|min|[smhd])\b")


def glued(source: str) -> list[int]:
    """The lines of Python source that print a value with a unit of time glued to it, options that are quoted left out."""
    nodes = nodes_of(tree_of(source))
    formats = {id(node.format_spec) for node in nodes if isinstance(node, ast.FormattedValue)}
    return [line for node in nodes if id(node) not in formats for line in _of(node)]


def _of(node: ast.AST) -> Iterator[int]:
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and PERCENT.search(node.value)
    ):
        yield node.lineno
    if not isinstance(node, ast.JoinedStr):
        return
    before = ""
    for value, after in zip(node.values, node.values[1:], strict=False):
        if isinstance(value, ast.Constant):
            before = str(value.value)
        elif (
            isinstance(after, ast.Constant)
            and GLUED.match(str(after.value))
            and not OPTION.search(before)
        ):
            yield node.lineno


def files(ending: str) -> Iterator[tuple[str, str]]:
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob(f"*{ending}")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_no_source_glues_a_unit_to_a_number() -> None:
    allowed = OTHER_LETTERS | WRITES_SETTINGS
    found = {
        f"{name}:{line}"
        for name, text in files(".py")
        if name not in allowed
        for line in glued(text)
    }
    found |= {
        name
        for ending in (".j2", ".html")
        for name, text in files(ending)
        if IN_TEMPLATES.search(text)
    }
    found |= {name for name, text in files(".js") if IN_SCRIPTS.search(text)}
    assert not found


@pytest.mark.parametrize(
    "source", ["f'{x}s'", "f'for {x:.0f}m, then'", "f'{a} of {b:g}ms'", "'%.1fs' % x"]
)
def test_the_rule_sees_what_is_glued(source: str) -> None:
    assert glued(source) == [1]


@pytest.mark.parametrize(
    "source", ["f'{x} s'", "f'--wait {x}s is long'", "f'{x}seconds'", "f'{x:0{w}d}'"]
)
def test_the_rule_leaves_the_rest(source: str) -> None:
    assert not glued(source)


def test_only_settings_and_command_lines_are_written_without_the_blank() -> None:
    users = {name for name, text in files(".py") if re.search(r"\bformat_duration\b", text)}
    assert users == WRITES_SETTINGS


def test_there_is_one_function_for_people() -> None:
    makers = [
        name
        for name, text in files(".py")
        if re.search(r'[\'"](?:min|h)[\'"], *(?:60|3_?600)\b', text)
    ]
    assert makers == ["mldebug/core/units.py"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"), (0, "0 s"), (0.0004, "0.4 ms"), (0.25, "250 ms"), (0.9999, "1 s"), (1.25, "1.25 s"), (30, "30 s"),
        (59.96, "1 min"), (119.9, "2 min"), (250, "4 min 10 s"), (3599.7, "1 h"), (5400, "1 h 30 min"),
        (3601, "1 h"), (3600 + 109 * 60 + 50, "2 h 50 min"), (86_390, "1 d"), (12_060, "3 h 21 min"), (86_400, "1 d"), (2 * 86_400 + 4 * 3600 + 59, "2 d 4 h"),
    ],
)  # fmt: skip
def test_words(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


@given(st.floats(min_value=0.001, max_value=1e9))
def test_words_read_back_about_as_they_were(seconds: float) -> None:
    words = duration_words(seconds)
    assert re.fullmatch(r"[\d.]+ (?:ms|s|min|h|d)(?: \d+ (?:s|min|h))?", words)
    assert parse_duration(words) == pytest.approx(seconds, rel=0.05, abs=0.001)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s"), (119.9, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172_800, "2 d")],
)  # fmt: skip
def test_an_age_has_one_unit(seconds: float, words: str) -> None:
    assert age_words(seconds) == words
