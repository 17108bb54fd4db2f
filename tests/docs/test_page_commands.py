"""README and docs/: every `mldebug …` can be typed as it stands; mldebug's own parser reads its options and arguments, and nothing is run.

In a block of a terminal a command is typed whole. In a sentence it may be cut short (`mldebug diagnose`) or written as a synopsis
(`dump [--job J | --pid P]`, `switch kill|save`), of which every reading is parsed.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from mldebug.core.errors import MldebugError
from shared.docs.typed import parse

ROOT = Path(__file__).parents[2]
MADE = {"commands.md"}  # printed by the commands themselves
PAGES = [ROOT / "README.md", *sorted(one for one in (ROOT / "docs").rglob("*.md") if one.name not in MADE), *sorted((ROOT / "deploy").rglob("*.md"))]  # fmt: skip
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
TERMINAL = ("", "sh", "bash", "console")
ENDS = re.compile(r"(?:^|\s)#(?:\s.*)?$|[;&|()]+|\d?>\s*\S+|<\s*\S+")
# A file or a folder of the reader, or a word in capitals that stands for one of theirs
STANDS_FOR = re.compile(
    r"No such file or directory|does not exist|'[A-Z]+' is not a valid|No such command '[A-Z]+'"
)
# What stands in a terminal and is printed, not typed: the first line of `mldebug top`
PRINTED = re.compile(r"^mldebug top  ")


def typed(text: str) -> Iterator[str]:
    """The commands in the blocks of a terminal, each without its comment and its redirections."""
    for block in FENCE.finditer(text):
        if block[2] in TERMINAL:
            for line in block[3].replace("\\\n", " ").splitlines():
                words = line.strip().removeprefix("$ ").removeprefix("# ")
                yield from filter(_is_ours, map(str.strip, ENDS.split(words)))


def mentioned(text: str) -> Iterator[str]:
    """The commands between backticks in the sentences and tables."""
    prose = " ".join(FENCE.sub("", text).split())
    yield from filter(_is_ours, re.findall(r"`(mldebug [a-z][^`]*)`", prose))


def _is_ours(words: str) -> bool:
    return words.startswith("mldebug ") and not PRINTED.match(words)


def readings(synopsis: str) -> list[str]:
    """`dump [--job J | --pid P]` as `dump --job J` and `dump --pid P`; what is optional is there."""
    plain = synopsis.replace("\\|", "|").replace("…", "")
    parts: list[list[str]] = []
    at = 0
    for group in re.finditer(r"(?<=\s)\[(?!\d)([^\]]*)\](?=\s|$)", plain):
        inside = [one for part in group[1].split(" | ") for one in _either(part)]
        parts += [_either(plain[at : group.start()]), inside]
        at = group.end()
    parts.append(_either(plain[at:]))
    return [" ".join("".join(one).split()) for one in itertools.product(*parts)]


def _either(words: str) -> list[str]:
    """`switch kill|save` as `switch kill` and `switch save`."""
    choices = [word.split("|") for word in re.split(r"(\s+)", words)]
    return ["".join(one) for one in itertools.product(*choices)]


def of_pages(find: Callable[[str], Iterator[str]]) -> list[tuple[str, str]]:
    """Each page with each of its commands."""
    return sorted({(str(page.relative_to(ROOT)), one) for page in PAGES for one in find(page.read_text("utf-8"))})  # fmt: skip


@pytest.mark.parametrize(("page", "command"), of_pages(typed))
def test_a_command_of_a_terminal_can_be_typed_as_it_stands(page: str, command: str) -> None:
    assert [one for one in readings(command) if not _accepted(one)] == []


@pytest.mark.parametrize(("page", "command"), of_pages(mentioned))
def test_a_command_of_a_sentence_names_what_there_is(page: str, command: str) -> None:
    refused = [one for one in readings(command) if not _accepted(one, whole=False)]
    assert refused == []


def _accepted(command: str, *, whole: bool = True) -> bool:
    """Whether the parser takes it; where it need not be whole, also where only something is missing at its end."""
    try:
        parse(command)
    except click.exceptions.Exit:
        return True  # --version, --help
    except (click.MissingParameter, click.BadOptionUsage):
        return not whole
    except (click.UsageError, MldebugError) as error:
        return bool(STANDS_FOR.search(str(error)))
    return True


def test_commands_are_found_and_wrong_ones_are_seen() -> None:
    assert (len(of_pages(typed)) > 90, len(of_pages(mentioned)) > 150) == (True, True)
    assert [*typed("```sh\na | mldebug dump --job 3 2> x &\n```\n"), *mentioned("see `mldebug\nstatus`")] == ["mldebug dump --job 3", "mldebug status"]  # fmt: skip
    assert [*typed("```yaml\nmldebug dump\n```\n")] == []
    for wrong in ("mldebug status --sources", "mldebug dmup", "mldebug reports lost"):
        assert not _accepted(wrong, whole=False)


def test_each_reading_of_a_synopsis_is_parsed() -> None:
    assert readings("mldebug dump [--job J \\| --pid P] [--json]") == ["mldebug dump --job J --json", "mldebug dump --pid P --json"]  # fmt: skip
    assert readings("mldebug switch kill\\|save") == ["mldebug switch kill", "mldebug switch save"]
    assert readings("mldebug dump --hosts node[1-40] --ssh") == ["mldebug dump --hosts node[1-40] --ssh"]  # fmt: skip
