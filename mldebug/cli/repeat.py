"""Repeats a look at something until Ctrl-C, as `--watch` asks for."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import rich.console

EVERY = 2.0  # seconds
_Result = TypeVar("_Result")


def looks(
    look: Callable[[], _Result],
    watch: bool,
    console: rich.console.Console,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[_Result]:
    """One look, or with `watch` one every EVERY seconds without end. A terminal is cleared before each further one, when it
    is complete; in a pipe an empty line parts them.
    """
    yield look()
    while watch:
        pause(EVERY)
        result = look()
        if console.is_terminal:
            console.clear()
        else:
            console.print()
        yield result
