"""How a program is asked for, and how it ended: what `spawn` and its fake have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one program. `error`: why it did not run or cannot be judged; "" if it ran to its end."""

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
    """What runs programs: the real `Spawner`, or `FakeSpawner` in tests."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        max_output: int = 16 << 20,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Completed:
        """Run a program to its end or its deadline (seconds); never raises for what the program does."""
        ...


class FakeSpawner:
    """A `ProgramStarter` for tests: a function makes the results of programs; `calls` lists the command lines."""

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
    ) -> Completed:
        """Record the call and return what the function makes of it."""
        self.calls.append(tuple(argv))
        return self._answer(tuple(argv))
