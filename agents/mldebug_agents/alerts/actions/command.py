"""A program of your own: facts in its environment and as JSON on stdin, never through a shell."""

import os
import shlex
from collections.abc import Iterator
from typing import Annotated

import msgspec

from mldebug.alerts.action_model import environment
from mldebug.core.units import SIZE, Duration
from mldebug_agents.alerts.action_runner.model import (
    Action,
    ActionInput,
    ActionPlan,
    ActionResult,
    judged,
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The program to run, and the limits on its time (seconds) and output (bytes)."""

    argv: tuple[str, ...] = ()  # must be set: the program by its absolute path, and its arguments
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=600)] = 60.0  # then it is ended
    # of what it writes; then it is killed
    output: Annotated[int, SIZE, msgspec.Meta(ge=1024, le=16 << 20)] = 64 << 10


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Check what the types of the options cannot: yields (option, what is wrong with it)."""
    if not options.argv or not options.argv[0].startswith("/"):
        yield (
            "argv",
            "begins with the absolute path of a program: [/usr/local/bin/page, --team, ml]",
        )
    if any("\0" in one for one in options.argv):
        yield "argv", "holds a NUL"


class CommandAction:
    """Runs a program that the configuration names. It counts as harmful, since its effect is not known here."""

    harms = True

    def __init__(self, options: Options) -> None:
        self._options = options

    def plan(self, work: ActionInput) -> ActionPlan:
        """The program to run, as configured. Nothing of the event becomes part of its command line; it gets the event on stdin and in variables."""
        return ActionPlan(shlex.join(self._options.argv), lambda: self._run(work))

    def _run(self, work: ActionInput) -> ActionResult:
        options = self._options
        clean = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": "/"}
        done = work.starter.run(
            options.argv,
            timeout=options.timeout,
            max_output=options.output,
            env=clean | environment(work.facts),
            stdin=msgspec.json.encode(work.facts),
        )
        code = judged(done, options.argv[0]).returncode
        return ActionResult(f"{shlex.join(options.argv)} ended with {code}", code)


def create(options: Options) -> Action:
    """Build the action `command`, which runs a program."""
    return CommandAction(options)
