"""Capture all ranks of the run, on all its nodes where agents are joined, and write a report."""

from mldebug.alerts.action_model import UnfitError
from mldebug.core.plugins import NoOptions
from mldebug_agents.alerts.action_runner.model import Action, ActionInput, ActionPlan, ActionResult


class CaptureAction:
    """Captures the run of the event. It harms nothing: a stall causes the same capture."""

    harms = False

    def plan(self, work: ActionInput) -> ActionPlan:
        """A capture of the event's run. Raises UnfitError where the event has no run on this node."""
        job = work.job
        if job is None:
            raise UnfitError("the event is of no run that is on this node now")
        return ActionPlan(
            f"capture run {job.id}",
            lambda: ActionResult(f"captured run {job.id}: {work.capture(job)}"),
        )


def create(options: NoOptions) -> Action:
    """Build the action `capture`: capture all ranks of the run, on all its nodes where agents are joined, and write a report."""
    return CaptureAction()
