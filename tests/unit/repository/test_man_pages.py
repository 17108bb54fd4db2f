"""deploy/debian/man_pages.py: each verb has a manual page that says what its help says."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from mldebug.cli.help_texts import FILE
from mldebug.core.plugins import names

ROOT = Path(__file__).parents[3]
MADE = runpy.run_path(str(ROOT / "deploy/debian/man_pages.py"))
PAGES: dict[str, str] = MADE["pages"]("0.1.0", "2026-01-01")


def test_every_verb_has_a_page_and_stands_in_the_main_one() -> None:
    verbs = {name.replace("_", "-") for name in names("commands")}
    assert {f"mldebug-{verb}.1" for verb in verbs} == PAGES.keys() - {"mldebug.1"}
    for verb in verbs:
        assert f".BR mldebug\\-{verb.replace('-', chr(92) + '-')} (1)\n" in PAGES["mldebug.1"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_name_that_whatis_reads(name: str) -> None:
    after = PAGES[name].partition(".SH NAME\n")[2].splitlines()[0]
    left, _, words = after.partition(r" \- ")
    assert left.replace("\\", "") == name.removesuffix(".1")
    assert len(words.split()) > 2, after


def test_what_is_a_command_of_roff_is_text() -> None:
    escaped = MADE["escaped"]
    assert escaped(".SH not a heading") == r"\&.SH not a heading"
    assert escaped("'a' or --b\\n") == r"\&'a' or \-\-b\en"


@pytest.mark.skipif(not shutil.which("man"), reason="man is not installed")
def test_man_shows_each_page_without_a_warning(tmp_path: Path) -> None:
    environ = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    for name, text in PAGES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["man", "--warnings", "--encoding=UTF-8", "-l", str(tmp_path / name)], env=environ,
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "SEE ALSO" in done.stdout or name == "mldebug.1"


def test_the_options_of_the_help_are_on_the_page() -> None:
    assert b"--html" in FILE.read_bytes()
    assert r"\-\-html FILE" in PAGES["mldebug-dump.1"]
    assert ".SH REPORTS LIST\n" in PAGES["mldebug-reports.1"]
