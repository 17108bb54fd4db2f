"""What a person may type where an option or argument is free text: types of click that say it, for the shell's TAB.

`Looked("reports")` names a file of the room `completions`, which looks for the values; `Listed(…)` takes some of a few words,
with commas; `Place(…)` is a path that nobody checks. All read as plain text: what is wrong is said by the command.
"""

from collections.abc import Sequence

from click.types import StringParamType


class Looked(StringParamType):
    """Text whose values are looked up when they are asked for: `kind` is the name of a file in `completions`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class Listed(StringParamType):
    """Some of these words, with commas between them."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)


class Place(StringParamType):
    """A path as text: `paths` is file or dir."""

    def __init__(self, paths: str) -> None:
        self.paths = paths


FILE, FOLDER = Place("file"), Place("dir")
REPORT = Looked("reports")
JOB = Looked("jobs")
CHANNEL = Looked("channels")
INTERFACE = Looked("interfaces")
