"""docs/troubleshooting.md knows every sentence of doctor, and quotes nothing that nobody says."""

import re
from pathlib import Path

from shared.support.doctorwords import reasons, sentences

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`]+)`")


def rows(title: str, end: str) -> list[list[str]]:
    """The cells of the rows between two headings."""
    part = PAGE[PAGE.index(title) : PAGE.index(end)]
    return [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| `")]


def test_every_sentence_of_doctor_stands_on_the_page_and_no_other() -> None:
    result = rows("## What `mldebug doctor` says", "### Reasons")
    result += rows("## What `mldebug doctor --gpus`", "## Nothing where")
    assert all(len(row) == 4 and all(row) for row in result)
    assert {(row[0].strip("`"), row[1].strip("`")) for row in result} == sentences()


def test_every_reason_stands_on_the_page_and_no_other() -> None:
    result = rows("### Reasons", "## What `mldebug doctor --gpus`")
    assert all(len(row) == 3 and all(row) for row in result)
    assert {reason for row in result for reason in CODE.findall(row[0])} == reasons()


def test_the_sentences_are_found_in_the_source() -> None:
    """Held against a few that are known, so that a reader that finds nothing is not taken for a complete page."""
    assert len(sentences()) > 30
    assert ("GPUs", "none can be asked") in sentences()
    assert ("expected GPUs", "… of … are there") in sentences()
    assert "py-spy saw no Python thread" in reasons()


def test_what_else_it_quotes_is_said_somewhere() -> None:
    source = "".join(
        re.sub(r'"\s*f?"|\{[^{}]*\}', "", file.read_text(encoding="utf-8"))
        for folder in ("mldebug", "agents")
        for file in (ROOT / folder).rglob("*.py")
    )
    result = rows("## Nothing where", "## The agent does not start")
    result += rows("## The agent does not start", "Something else?")
    quoted = [part for row in result for item in CODE.findall(row[0]) for part in item.split("…")]
    wanted = [part.strip(" ':") for part in quoted if len(part.split()) > 1]
    assert len(wanted) > 12
    assert not [part for part in wanted if part not in source]
