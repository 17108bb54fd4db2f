"""The input and the output of a completion plugin."""

import re
from pathlib import Path
from typing import NamedTuple

LISTED = 200  # values of one TAB
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%+,/=-]{0,199}", re.ASCII)


class CompletionRequest(NamedTuple):
    """What a completion plugin may know of the command line whose next word is completed at TAB.

    `config`: the config file that stands on the command line; `described`: the shell shows
    descriptions.
    """

    config: Path | None = None
    described: bool = False


class Value(NamedTuple):
    """A value that may be typed, and one sentence about it."""

    word: str
    sentence: str = ""


def is_plain(word: str) -> bool:
    """Whether a shell takes the word literally. A job chooses its own name, and TAB would type it."""
    return _PLAIN.fullmatch(word) is not None
