#!/usr/bin/env python3
"""Make the manual pages of the Debian package: mldebug(1) and one for each verb, of the help texts that the program prints.

    deploy/debian/man_pages.py FOLDER VERSION [DATE]

FOLDER receives mldebug.1, mldebug-dump.1 and so on. Only the standard library is needed.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HELP = Path(__file__).parents[2] / "mldebug/cli/help.json"
WHAT = "find out why a distributed training run stopped"
DUMP = "mldebug dump names the rank that holds the others up, with file and line."


def pages(version: str, date: str) -> dict[str, str]:
    """The text of each page, by file name."""
    texts: dict[str, str] = json.loads(HELP.read_text(encoding="utf-8"))
    verbs = sorted({name.split()[0] for name in texts})
    made = {"mldebug.1": _main(verbs, texts, version, date)}
    for verb in verbs:
        own = {name: text for name, text in texts.items() if name.split()[0] == verb}
        made[f"mldebug-{verb}.1"] = "\n".join(_page(verb, own, version, date)) + "\n"
    return made


def summary(text: str) -> str:
    """The first sentence of a help text, without its full stop; "" where it has none."""
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n")]
    first = next((one for one in paragraphs[1:] if one), "")
    return re.split(r"[.:;](?: |$)", first)[0]


def escaped(line: str) -> str:
    """A line of plain text for roff: no character of it is a command."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _head(name: str, version: str, date: str) -> str:
    return f'.TH {name.upper()} 1 "{date}" "mldebug {version}" "User Commands"'


def _main(verbs: list[str], texts: dict[str, str], version: str, date: str) -> str:
    lines = [_head("mldebug", version, date), ".SH NAME", f"mldebug \\- {WHAT}"]
    lines += [".SH SYNOPSIS", ".B mldebug", "VERB [OPTIONS]", ".SH DESCRIPTION", escaped(DUMP)]
    lines += [".SH VERBS"]
    for verb in verbs:
        first = texts.get(verb) or next(t for n, t in texts.items() if n.split()[0] == verb)
        lines += [".TP", f".BR mldebug\\-{escaped(verb)} (1)", escaped(summary(first))]
    lines += [".SH EXIT STATUS"]
    meanings = ("fine, or there is nothing to look at", "a stall or a failed check was found",
                "wrong usage or config", "it could not be done: a permission, a tool or an answer is missing")  # fmt: skip
    for code, meaning in enumerate(meanings):
        lines += [".TP", f"{code}", meaning]
    return "\n".join(lines) + "\n"


def _page(verb: str, texts: dict[str, str], version: str, date: str) -> Iterator[str]:
    """NAME and SYNOPSIS of a verb, then its help and that of its own verbs, as they are printed."""
    first = texts.get(verb) or next(iter(texts.values()))
    yield _head(f"mldebug-{verb}", version, date)
    yield from (".SH NAME", f"mldebug\\-{escaped(verb)} \\- {escaped(summary(first))}")
    yield ".SH SYNOPSIS"
    for text in texts.values():
        usage = " ".join(text.partition("\n\n")[0].split()).removeprefix("Usage: ")
        yield from (".nf", escaped(usage), ".fi")
    for name, text in texts.items():
        yield f".SH {'DESCRIPTION' if name == verb else escaped(name).upper()}"
        yield ".nf"
        yield from (escaped(line) for line in text.partition("\n\n")[2].splitlines())
        yield ".fi"
    yield from (".SH SEE ALSO", ".BR mldebug (1)")


def main() -> None:
    """Write all pages."""
    folder, version, *date = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in pages(version, *(date or [""])).items():
        (Path(folder) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
