"""Capture all ranks of the run, on all its nodes where agents are joined, and write a report."""

import msgspec

from mldebug.alerts.action_model import UnfitError
from mldebug_agents.alerts.action_runner.model import Did, Plan, Work


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class Capture:
    """It stops nobody: the captures of stalls are of the same kind."""

    harms = False

    def plan(self, work: Work) -> Plan:
        """Of the event's run."""
        job = work.job
        if job is None:
            raise UnfitError("the event is of no run that is on this node now")
        return Plan(
            f"capture run {job.id}", lambda: Did(f"captured run {job.id}: {work.capture(job)}")
        )


def create(options: Options) -> Capture:
    """Build the action."""
    return Capture()
