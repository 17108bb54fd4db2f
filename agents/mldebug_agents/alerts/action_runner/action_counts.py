"""What each action has done since the agent's start: counts by outcome, and the last decision about it."""

import msgspec

from mldebug.alerts.action_model import ActionDecision, ActionOutcome
from mldebug.alerts.view import ActionState


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
