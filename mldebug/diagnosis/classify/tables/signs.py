"""The rows of the classification tables: a pattern, and the class of a rank that fits it."""

import re
from dataclasses import dataclass
from functools import cached_property

from mldebug.core.model import Role

W, I, B = Role.WAITING, Role.INERT, Role.BUSY


@dataclass(frozen=True)
class LatePattern:
    """A regular expression that is compiled when it is first asked: there are hundreds, and most commands ask none of them."""

    text: str

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.text)

    def fullmatch(self, name: str) -> re.Match[str] | None:
        """The match where the whole name fits the pattern, else None, as `re.Pattern.fullmatch` does."""
        return self._compiled.fullmatch(name)


@dataclass(frozen=True)
class FrameSign:
    """A table row: the class of a process that has a Python frame whose whole file and function names match these patterns."""

    name: str
    role: Role
    phrase: str  # follows "rank 3 "; {op} = the operation, {site} = the job's line
    file: LatePattern
    function: LatePattern
    operation: str = ""  # "": the called function, by its name
    top: bool = False  # it blocks in its own line: counts as the innermost Python frame alone


@dataclass(frozen=True)
class NameSign:
    """A table row: the class that follows from one name: a wait channel, a native function or the text of a source line."""

    name: str
    role: Role
    phrase: str
    pattern: re.Pattern[str]
    operation: str = ""


def calls(
    name: str, role: Role, phrase: str, file: str, function: str, *, top: bool = False
) -> FrameSign:
    """A row of the table that says what a frame of a stack means: a call of a function whose name matches the regex `function`, in a file
    whose path ends in a match of the regex `file`.

    `name`: the class of a rank that stands there; `role`: whether it waits for others, stands or works; `phrase`: what it does, in words.
    `top`: only where it is the innermost frame.
    """
    path = LatePattern(rf"(?:.*/)?(?:{file})")
    return FrameSign(name, role, phrase, path, LatePattern(function), top=top)


def sign(name: str, role: Role, phrase: str, pattern: str, operation: str = "") -> NameSign:
    """A table row for names that match this pattern."""
    return NameSign(name, role, phrase, re.compile(pattern), operation)
