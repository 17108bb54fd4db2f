"""How a program is started and how it has ended: what `Spawner` and its stand-in for tests have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one program. `error`: why it did not run or its end is not known; "" if it ran."""

    argv: tuple[str, ...] = ()
    pid: int | None = None
    returncode: int | None = (
        None  # negative: the signal that ended it; None: never started, or still there
    )
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0
    timed_out: bool = False
    truncated: bool = False  # it wrote more than max_output and was killed for it
    abandoned: bool = False  # it outlived SIGKILL (state D), or must not be killed where it is
    error: str = ""


class ProgramStarter(Protocol):
    """Runs programs, each within a time limit: the real `Spawner`, or `FakeSpawner` in tests."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        max_output: int = 16 << 20,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        looks_at: int | None = None,
    ) -> Completed:
        """Run a program to its end, at most `timeout` seconds. Never raises for what the program does.

        `max_output` limits stdout and stderr each (bytes); `env` replaces the environment; `stdin`
        is what it can read; `looks_at` is the process that it reads, whose owner it counts for where it is stuck.
        """
        ...


class FakeSpawner:
    """A `ProgramStarter` for tests: `answer` makes the result from a command line; `calls` lists all command lines."""

    def __init__(self, answer: Callable[[tuple[str, ...]], Completed]) -> None:
        self._answer = answer
        self.calls: list[tuple[str, ...]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        max_output: int = 16 << 20,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        looks_at: int | None = None,
    ) -> Completed:
        """Record the command line, and return what `answer` makes of it. All other arguments are ignored."""
        self.calls.append(tuple(argv))
        return self._answer(tuple(argv))
