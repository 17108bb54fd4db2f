"""The terminal as our commands use it: long lines are wrapped with an indent, and a reader that closes the pipe causes no exit of
its own.
"""

from collections.abc import Iterable

import rich.console
from rich.text import Text

MIN_WIDTH = 20  # columns of text, however far it is indented


class Console(rich.console.Console):
    """A rich console that raises BrokenPipeError itself: rich would exit with 1, the code that means "stall found"."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError where the reader of stdout is gone; Rich itself would exit with code 1."""
        raise BrokenPipeError


def print_line(console: rich.console.Console, line: Text, *, prose: bool = False) -> None:
    """Print a line. On a terminal a long line is wrapped, with the indent of its beginning; in a pipe it stays one line, unless
    it is `prose`.

    A line with `no_wrap`, such as a command, is never wrapped, so that it can be copied.
    """
    text = line.plain
    indent = len(text) - len(text.lstrip(" "))
    parts: Iterable[Text] = (line,)
    if (console.is_terminal or prose) and text.strip() and not line.no_wrap:
        parts = line[indent:].wrap(console, max(MIN_WIDTH, console.width - indent))
        parts = [Text(" " * indent).append_text(part) for part in parts]
    for part in parts:
        console.print(part, soft_wrap=True, highlight=False)
