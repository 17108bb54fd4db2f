"""The terminal as our commands use it: long lines go on below their beginning, and a reader that leaves is no error."""

from collections.abc import Iterable

import rich.console
from rich.text import Text

MIN_WIDTH = 20  # columns of text, however far it is indented


class Console(rich.console.Console):
    """A rich console that raises BrokenPipeError itself: rich would exit with 1, the code that means "stall found"."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError where the reader of stdout is gone, instead of Rich's own exit."""
        raise BrokenPipeError


def print_line(console: rich.console.Console, line: Text, *, prose: bool = False) -> None:
    """Print a line. On a terminal a long line is wrapped below its beginning; in a pipe it stays one line, unless it is `prose`.

    A command is made `no_wrap`: it stays one line, so that it can be copied.
    """
    text = line.plain
    indent = len(text) - len(text.lstrip(" "))
    parts: Iterable[Text] = (line,)
    if (console.is_terminal or prose) and text.strip() and not line.no_wrap:
        parts = line[indent:].wrap(console, max(MIN_WIDTH, console.width - indent))
        parts = [Text(" " * indent).append_text(part) for part in parts]
    for part in parts:
        console.print(part, soft_wrap=True, highlight=False)
