"""What actions have done: the audit log in the state dir, one JSON line for each decision, and counts since the agent's start.

A worker writes the log, since a disk may hang.
"""

import os
import queue
from pathlib import Path

import msgspec

from mldebug.alerts.action_model import ActionDecision, ActionOutcome
from mldebug.alerts.view import ActionState
from mldebug_agents.system.workers import Result, Worker

FILE, BEFORE = "actions.jsonl", "actions.jsonl.1"
MOST = 4 << 20  # bytes of one file; the one before stays
MOST_WAITING = 10_000  # lines
DEADLINE = 10.0
WORKER = "action log"


class AuditLog:
    """Writes a line for each decision about an action. While the disk is slow, at most `MOST_WAITING` lines wait in memory;
    further ones are dropped and counted.
    """

    def __init__(self, state_dir: Path, inbox: "queue.SimpleQueue[Result | None]") -> None:
        self._folder = state_dir
        self.worker = Worker(WORKER, self._append, inbox, DEADLINE)
        self._waiting: list[ActionDecision] = []
        self._lost = 0
        self._failed = ""

    @property
    def trouble(self) -> str:
        """Why lines are missing in the log; "" where none is."""
        lost = f"{self._lost} lines of {FILE} were lost" if self._lost else ""
        return self._failed or lost

    def write(self, decision: ActionDecision) -> None:
        """Write a decision into the log soon, in a worker thread."""
        if len(self._waiting) >= MOST_WAITING:
            self._lost += 1
        else:
            self._waiting.append(decision)

    def tick(self) -> None:
        """Have the worker write the lines that wait, unless it is still busy."""
        if self._waiting and not self.worker.busy:
            lines, self._waiting = tuple(self._waiting), []
            self.worker.order(lines)

    def on_result(self, result: Result) -> None:
        """Handle the worker's result. Lines that could not be written are counted as lost."""
        self._lost += len(result.order) if result.error is not None else 0
        self._failed = f"{FILE} cannot be written: {result.error}" if result.error else ""

    def _append(self, lines: tuple[ActionDecision, ...]) -> None:
        fd = self._open()
        try:
            for one in lines:
                line = msgspec.json.encode(one) + b"\n"
                if os.fstat(fd).st_size + len(line) > MOST:
                    os.close(fd)
                    (self._folder / FILE).replace(self._folder / BEFORE)
                    fd = self._open()
                os.write(fd, line)
        finally:
            os.close(fd)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._folder / FILE, flags, 0o600)


class ActionCounts:
    """How often each action ran and with what result, by the action's name."""

    def __init__(self) -> None:
        self._known: dict[str, ActionState] = {}

    def count(self, decision: ActionDecision, now: float) -> None:
        """Count one decision about an action. `now`: unix seconds."""
        name = decision.action
        known = self._known.get(name, ActionState(name=name, kind=decision.kind))
        outcome = str(decision.outcome)
        self._known[name] = msgspec.structs.replace(
            known,
            counts=known.counts | {outcome: known.counts.get(outcome, 0) + 1},
            last_success=now if decision.outcome is ActionOutcome.RAN else known.last_success,
            last=outcome,
            at=now,
            event=decision.event,
            why=decision.why,
        )

    def state(self, name: str, kind: str) -> ActionState:
        """The counts of the action with this name, zeros where it has not run yet."""
        return msgspec.structs.replace(
            self._known.get(name, ActionState(name=name, kind=kind)), kind=kind
        )
