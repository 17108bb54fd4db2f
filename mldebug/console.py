"""The terminal as our commands use it: long lines go on below their beginning, and a reader that leaves is no error."""

import rich.console
from rich.padding import Padding
from rich.text import Text


class Console(rich.console.Console):
    """Rich would end the program with 1, which is what a stall is told with; `mldebug.cli` knows better."""

    def on_broken_pipe(self) -> None:
        """Nobody reads any more."""
        raise BrokenPipeError


def print_line(console: rich.console.Console, line: Text) -> None:
    """On a terminal a long line goes on below its beginning; in a pipe it stays one line.

    A command is made `no_wrap`: it stays one line, so that it can be copied.
    """
    text = line.plain
    indent = len(text) - len(text.lstrip(" "))
    if console.is_terminal and text.strip() and not line.no_wrap:
        console.print(Padding(line[indent:], (0, 0, 0, indent)), highlight=False)
    else:
        console.print(line, soft_wrap=True, highlight=False)
