"""The error tree. Every error says what happened and the way out; the class sets the exit code.

    MldebugError                 3   what was asked could not be done
    ├── NothingFoundError        0   there is nothing to look at
    ├── FailedCheckError         1   a check has failed, or the job is stalled
    ├── UsageError               2   wrong arguments
    │   ├── ConfigError          2   a config that cannot be obeyed (all problems at once)
    │   └── EvidenceError        2   a capture, report or folder that cannot be read
    └── MissingError             3
        ├── AccessError          3   this user may not look there
        └── ToolError            3   a program we need is absent or broken

`mldebug.cli.main.main` is the one place that catches them: one sentence on stderr, the way out on the next line.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `mldebug` commands."""

    FINE = 0
    FOUND = 1
    USAGE = 2
    MISSING = 3
    BROKEN = 70


class MldebugError(Exception):
    """Something went wrong that the user can act on.

    `message` is one sentence without a final newline; `way_out` says what to do next ("" when nothing can be).
    """

    exit_code: ExitCode = ExitCode.MISSING

    def __init__(self, message: str, way_out: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.way_out = way_out


class NothingFoundError(MldebugError):
    """There is nothing to look at, and the user asked for nothing by name: an answer with exit code 0, not a failure."""

    exit_code = ExitCode.FINE


class FailedCheckError(MldebugError):
    """A check that the user asked for has failed, or the job is stalled: for this exit code a script calls somebody."""

    exit_code = ExitCode.FOUND


class UsageError(MldebugError):
    """The command line is invalid."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """The configuration is invalid; `problems` lists everything that is wrong, with its line."""

    def __init__(self, problems: list[str], way_out: str = "") -> None:
        super().__init__("\n".join(problems), way_out)
        self.problems = problems


class EvidenceError(UsageError):
    """Recorded evidence (a capture, report or folder) cannot be read or understood."""


class MissingError(MldebugError):
    """A right or a tool is missing on this node."""

    exit_code = ExitCode.MISSING


class AccessError(MissingError):
    """This user lacks the right to read a process, file or folder."""


class ToolError(MissingError):
    """A program that mldebug needs is absent or broken."""
