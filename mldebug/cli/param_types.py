"""What a person may type where an option or argument is free text: types of click that say it, for the shell's TAB.

`LookupParam("reports")` names a plugin of kind `completions`, which finds the values; `WordListParam(…)` takes some of a few
words, with commas; `PathParam(…)` is a path that nobody checks. All read as plain text: what is wrong is said by the command.
"""

from collections.abc import Sequence

from click.types import StringParamType


class LookupParam(StringParamType):
    """Text whose possible values a completion plugin finds at TAB: `kind` is the plugin's name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class WordListParam(StringParamType):
    """The type of an option that takes several of these words, separated by commas."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)


class PathParam(StringParamType):
    """The type of an option that takes a path, as text; `paths`: what TAB offers, file or dir."""

    def __init__(self, paths: str) -> None:
        self.paths = paths


FILE, FOLDER = PathParam("file"), PathParam("dir")
REPORT = LookupParam("reports")
JOB = LookupParam("jobs")
CHANNEL = LookupParam("channels")
INTERFACE = LookupParam("interfaces")
