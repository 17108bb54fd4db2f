"""Parameter types of click that tell the shell what TAB may offer; the values are read as plain text, and the command itself
checks them.

`LookupParam("reports")`: values that a plugin of kind `completions` finds. `WordListParam(…)`: some of a few words, separated by
commas. `PathParam(…)`: a path.
"""

from collections.abc import Sequence

from click.types import StringParamType


class LookupParam(StringParamType):
    """Text for which TAB offers the values that a completion plugin finds; `kind` is the plugin's name."""

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
