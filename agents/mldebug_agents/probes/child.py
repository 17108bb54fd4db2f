"""Runs one script of `probes/inside` in a child process; its events are passed on as they come, and no process is left afterwards."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.redact import clean
from mldebug_agents.probes.environment import INSIDE
from mldebug_agents.system.spawn import Completed, OutputListener

SILENCE = 30.0  # seconds without a beat after which a launcher is given up; importing torch does not stop it
LONGEST_LINE = 8 << 20
MOST = 64 << 20  # bytes of all its lines
LOOK_EVERY = 1.0

_PLACE = re.compile(r"^\[[^\]]{1,300}:\d+\] ")  # where in its source gloo has raised
OF_PEERS = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Socket Timeout|Timed out waiting|remote process exited"
)

Event = dict[str, Any]


class ProgramRunner(Protocol):
    """Runs programs and passes on their output; implemented by `spawn.Spawner`."""

    def run(
        self,
        argv: list[str],
        *,
        timeout: float,
        max_output: int = 16 << 20,
        env: Mapping[str, str] | None = None,
        on_output: OutputListener | None = None,
    ) -> Completed:
        """Run a program to its end or for `timeout` seconds."""
        ...


class ChildExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended. `reason`: one sentence, "" only for "done"."""

    outcome: str  # done, failed, late (its time is over), cancelled (the node is wanted for something else)
    reason: str = ""
    events: tuple[Event, ...] = ()  # its events about failures
    stderr: str = ""


class ProbeChild:
    """Runs one program; call `run` once.

    `may_go_on` is called each second with the child's process session. It returns why the child must end, "" to let it go on; an
    MldebugError from it, because it cannot tell, ends the child too.
    """

    def __init__(
        self, starter: ProgramRunner, may_go_on: Callable[[int | None], str] = lambda _: ""
    ) -> None:
        self._starter, self._may_go_on = starter, may_go_on
        self._rest = b""
        self._last_event = self._looked = time.monotonic()
        self._cancelled = self._broken = ""
        self._failures: list[Event] = []
        self._lost_output: OSError | None = None
        self._done = False

    def run(
        self,
        argv: list[str],
        env: Mapping[str, str],
        timeout: float,
        on_event: Callable[[Event], None],
        shown_limit: float | None = None,
    ) -> ChildExit:
        """Run the program `argv` for at most `timeout` seconds; `on_event` is called with each of its events as it comes.

        `shown_limit`: the seconds that the sentence about a late child names, `timeout` by default. An OSError raised by `on_event` ends the
        child and is raised after that.
        """

        def listen(pid: int | None, chunk: bytes) -> bool:
            try:
                for event in self._events(chunk):
                    self._note(event)
                    on_event(event)
            except OSError as error:  # of who hears: it must not be taken for one of the program
                self._lost_output = error
                return False
            return self._goes_on(pid)

        completed = self._starter.run(
            argv, timeout=timeout, max_output=MOST, env=env, on_output=listen
        )
        if self._lost_output:
            raise self._lost_output
        return self._judge(completed, shown_limit or timeout)

    def _events(self, chunk: bytes) -> list[Event]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        return events(lines)

    def _note(self, event: Event) -> None:
        self._last_event = time.monotonic()
        if event["event"] in ("failed", "died", "late"):
            self._failures.append(event)
        if event["event"] == "stranger":
            self._cancelled = clean(str(event.get("reason")), 300)
        self._done = self._done or event["event"] == "done"

    def _goes_on(self, pid: int | None) -> bool:
        now = time.monotonic()
        if now - self._last_event > SILENCE:
            self._broken = f"nothing was heard of it for {SILENCE:.0f} s"
        elif now - self._looked >= LOOK_EVERY:
            self._look(pid)
        return not (self._cancelled or self._broken)

    def _look(self, pid: int | None) -> None:
        try:
            self._cancelled = self._cancelled or self._may_go_on(pid)
        except MldebugError as error:
            self._broken = error.message
        self._looked = time.monotonic()

    def _judge(self, completed: Completed, timeout: float) -> ChildExit:
        stderr = clean(completed.stderr.decode(errors="replace")[-4000:], 4000)
        details: dict[str, Any] = {"events": tuple(self._failures), "stderr": stderr}
        if self._cancelled:
            return ChildExit(outcome="cancelled", reason=self._cancelled, **details)
        if self._broken:
            return ChildExit(outcome="failed", reason=self._broken, **details)
        if completed.timed_out or any(failure["event"] == "late" for failure in self._failures):
            return ChildExit(
                outcome="late", reason=f"it did not end within {timeout:.0f} s", **details
            )
        if completed.error or completed.truncated:
            reason = completed.error or "it wrote too much"
            return ChildExit(outcome="failed", reason=f"it cannot be run: {reason}", **details)
        if self._failures or completed.returncode:
            return ChildExit(outcome="failed", reason=_why(self._failures, completed), **details)
        return ChildExit(outcome="done", **details)


def events(lines: Sequence[bytes]) -> list[Event]:
    """The events among these lines: JSON objects with a field `event`. All other lines are ignored; libraries write them to stdout."""
    found = []
    for line in lines:
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(event.get("event"), str):
            found.append(event)
    return found


def inside(python: str, script: str, order: Mapping[str, Any]) -> list[str]:
    """The command line that runs a script of `probes/inside` with this Python; `order` is passed as JSON."""
    return [python, "-u", str(INSIDE), script, msgspec.json.encode(order).decode()]


def failure_cause(failures: Sequence[Event]) -> str:
    """Why ranks failed, in a sentence; "" where none did.

    A rank that died without an exception is named first; else the first whose exception is not about a connection to another rank.
    """
    failed = [failure for failure in failures if failure["event"] == "failed"]
    talked = {one.get("rank") for one in failed}
    silent = [one for one in failures if one["event"] == "died" and one.get("rank") not in talked]
    for one in silent:
        return (
            f"rank {one.get('rank')} {exit_words(one.get('code', 0))} before the others were done"
        )
    for one in sorted(failed, key=lambda one: bool(OF_PEERS.search(str(one.get("error"))))):
        who = f"rank {one.get('rank')}: " if one.get("rank", -1) >= 0 else ""
        first = str(one.get("error", "")).strip().splitlines() or [""]
        return clean(f"{who}{one.get('kind')}: {_PLACE.sub('', first[0])}", 500)
    return ""


def _why(failures: list[Event], completed: Completed) -> str:
    if cause := failure_cause(failures):
        return cause
    last = completed.stderr.decode(errors="replace").strip().splitlines() or [""]
    return clean(f"it ended with code {completed.returncode}: {last[-1]}", 500)


def exit_words(code: int) -> str:
    """An exit code in words, "ended with exit code 1"; a negative one is a signal, "was killed by signal 9"."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
