"""What a job wrote is made harmless to look at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.core.report_model import Report
from mldebug.incidents.report.sanitize import tidy, tidy_report
from shared.incidents import samples


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("step 3 loss 2.1", "step 3 loss 2.1"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone", "gone"),
        ("a\nb\tc", "a b   c"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("\ud800", "\ufffd"),
        ("naïve 日本 שלום", "naïve 日本 שלום"),
        ("a" * 2_001, "a" * 1_999 + "…"),
    ],
)
def test_tidies(text: str, shown: str) -> None:
    assert tidy(text) == shown


@given(st.text(st.characters(), max_size=300))
def test_whatever_comes_is_one_printable_line(text: str) -> None:
    assert tidy(text, 100).isprintable()
    assert len(tidy(text, 100)) <= 100
    assert tidy(tidy(text)) == tidy(text)


def test_an_endless_escape_sequence_hides_nothing_behind_it() -> None:
    assert "after" in tidy("\x1b]0;" + "x" * 600 + "\nafter")


def test_every_string_of_a_report_is_printable() -> None:
    report = samples.report(samples.hostile())
    assert tidy_report(report) == report

    def walk(value: object) -> None:
        if isinstance(value, str):
            assert value.isprintable()
            assert len(value) <= 2_000
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(key)
                walk(inner)
        elif isinstance(value, tuple):
            for inner in value:
                walk(inner)
        elif hasattr(value, "__struct_fields__"):
            for field in value.__struct_fields__:
                walk(getattr(value, field))

    assert isinstance(report, Report)
    walk(report)


def test_long_rank_sets_stay_whole() -> None:
    report = samples.report(samples.scattered())
    assert sum(group.count for group in report.groups) == 8192
    assert not any("…" in group.ranks for group in report.groups)
