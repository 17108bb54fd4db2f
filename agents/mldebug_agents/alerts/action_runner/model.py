"""What an action gets and returns: first a plan of what it would do, then the result of doing it."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from mldebug.alerts.action_model import ActionFacts
from mldebug.core.errors import MldebugError
from mldebug.core.model import Job
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Completed, ProgramStarter


class ActionInput(NamedTuple):
    """What an action gets: one event, the jobs of this node, and the means to act (programs, host, captures)."""

    facts: ActionFacts
    job: Job | None  # the run that the event is about, as it is here now
    node: str
    starter: ProgramStarter
    host: Host
    capture: Callable[[Job], str]  # has all its ranks captured; returns the id of the report
    others: tuple[Job, ...] = ()  # the other runs that are here


class ActionResult(NamedTuple):
    """The outcome of an action in words, and the exit code of the program that it ran; None where it ran none."""

    words: str
    code: int | None = None


class ActionPlan(NamedTuple):
    """One thing that an action is about to do: in words for the log, and as the function that does it."""

    words: str
    do: Callable[[], ActionResult]


class Action(Protocol):
    """What a file in `actions/` creates. `plan` and the planned function may block, within time limits of their own."""

    harms: bool  # may it harm a job or a node? Then it runs only where `actions.allow` names it, and never twice

    def plan(self, work: ActionInput) -> ActionPlan:
        """Work out what the action would do, without doing it. Raises UnfitError where it does not apply to this event."""


class ProgramError(MldebugError):
    """A program that an action runs could not be started, was killed for its time or output, or did not end with 0."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message, "see its own log")
        self.code = code


def judged(done: Completed, name: str) -> Completed:
    """Return `done` where the program ended with 0; otherwise raise ProgramError with the reason. `name`: the program's."""
    last_line = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    if done.error:
        raise ProgramError(f"{name} cannot be started: {done.error}", None)
    if done.timed_out:
        raise ProgramError(f"{name} did not end in {done.seconds:.0f} s, and was killed", None)
    if done.truncated:
        raise ProgramError(f"{name} wrote more than it may, and was killed", None)
    if done.returncode != 0:
        why = f": {last_line[0]}" if last_line else ""
        raise ProgramError(f"{name} ended with {done.returncode}{why}", done.returncode)
    return done
