"""Pages for people: no sentence is longer than 30 words.

The pages that somebody reads first, or at night, keep to it without exception. The others have at most as many long sentences as are
written down here: the numbers may only fall.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 30  # words
PAGES = ["README.md", *(str(one.relative_to(ROOT)) for top in ("docs", "deploy") for one in sorted((ROOT / top).rglob("*.md")))]  # fmt: skip
MADE = {"docs/commands.md", "docs/settings.md"}  # printed by the code, from help texts and comments
# Pages of reference, not yet rewritten, with how many of their sentences are longer
LONG = {
    "docs/across-nodes.md": 19,
    "docs/actions.md": 10,
    "docs/benchmarks.md": 37,
    "docs/checkpoints.md": 11,
    "docs/dependencies.md": 3,
    "docs/field-cases.md": 3,
    "docs/fleet.md": 15,
    "docs/flight-recorder-collection.md": 15,
    "docs/flight-recorder.md": 15,
    "docs/goodput.md": 38,
    "docs/gpu-validation.md": 67,
    "docs/gpus.md": 22,
    "docs/host-memory.md": 2,
    "docs/kernel-log.md": 13,
    "docs/kubernetes.md": 7,
    "docs/metrics.md": 11,
    "docs/nccl-ras.md": 6,
    "docs/peers.md": 4,
    "docs/plugins.md": 12,
    "docs/ports.md": 3,
    "docs/probes.md": 27,
    "docs/profile.md": 10,
    "docs/run-records.md": 4,
    "docs/scheduler.md": 7,
    "docs/security.md": 25,
    "docs/seeds.md": 6,
    "docs/storage-trees.md": 7,
    "docs/storage.md": 26,
    "docs/trace-reading.md": 5,
    "docs/training-helpers.md": 11,
}
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ITEM = re.compile(r"^(?:[-*+]|1?[1-9]\.)\s+")
END = re.compile(r"(?<=[.!?…])[\"')*_]*\s+(?=[\[A-Z0-9`*(\"'“]|mldebug\b|py-spy\b)")
NAMED = "> **In short.**"


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, each as one line. What stands behind `>` alone is printed by the code."""
    kept: list[str] = []
    for raw in [*COMMENT.sub("", FENCE.sub("\n\n", _without_quotes(text))).splitlines(), ""]:
        line = raw.strip().removeprefix(">").strip()
        begins = not line or line.startswith(("#", "|", "![")) or ITEM.match(line)
        if begins and kept:
            yield " ".join(kept)
            kept = []
        if line.startswith("|"):
            yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|")))
        elif line and not line.startswith(("#", "![")):
            kept.append(ITEM.sub("", line, count=1))


def _without_quotes(text: str) -> str:
    parts = re.split(r"\n\n", text)
    return "\n\n".join(one for one in parts if not one.startswith(">") or one.startswith(NAMED))


def sentences(text: str) -> Iterator[str]:
    """Its sentences, with links as their words, and what is typed as one word."""
    for block in blocks(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "`x`", block))
        yield from END.split(words)


def long_ones(text: str) -> list[str]:
    counted = ((sum(bool(re.search(r"\w", word)) for word in one.split()), one) for one in sentences(text))  # fmt: skip
    return [f"{count} words: {one}" for count, one in counted if count > LONGEST]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in MADE])
def test_no_sentence_is_too_long_to_be_read_once(page: str) -> None:
    found = long_ones((ROOT / page).read_text("utf-8"))
    allowed = LONG.get(page, 0)
    assert len(found) <= allowed, "\n".join(found)
    assert len(found) == allowed, f"only {len(found)} are left: write that down in LONG"


def test_the_rule_sees_a_long_sentence_wherever_it_stands() -> None:
    words = "and so on " * 11
    for text in (f"A {words}.", f"- A {words}.", f"| x | A {words} |", f"1. A {words}", f"{NAMED} A {words}"):  # fmt: skip
        assert len(long_ones(text)) == 1, text
        assert long_ones(text.replace("and so on and so on", "and. So on")) == []
    quiet = (f"```\nA {words}\n```", f"> A {words}", f"## A {words}", f"See [`{words}`](x.md).", f"<!-- A {words} -->")  # fmt: skip
    assert [one for text in quiet for one in long_ones(text)] == []


def test_pages_that_are_read_first_have_no_exception() -> None:
    first = {"README.md", *(f"docs/{name}.md" for name in ("index", "quick-start", "slurm-quick-start", "faq", "glossary", "architecture", "verdicts", "web", "hook", "notifications", "trace", "top", "troubleshooting", "mcp", "drop-zone"))}  # fmt: skip
    first |= {page for page in PAGES if page.startswith(("docs/runbooks/", "deploy/"))}
    assert first <= set(PAGES)
    assert not first & LONG.keys()
