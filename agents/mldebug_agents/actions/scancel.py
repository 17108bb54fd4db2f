"""Cancel the run's Slurm job, whose number the kernel and Slurm tell, and never the job itself."""

import msgspec

from mldebug.events.actions import Sure, UnfitError, sure_enough
from mldebug_agents.acting.slurm import ask, job_of
from mldebug_agents.acting.work import Did, Plan, Work


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How sure the verdict has to be."""

    confidence: Sure = "high"


class Scancel:
    """One task of an array is cancelled alone."""

    harms = True

    def __init__(self, options: Options) -> None:
        self._options = options

    def plan(self, work: Work) -> Plan:
        """Of the event's run."""
        if work.job is None:
            raise UnfitError("the event is of no run that is on this node now")
        sure_enough(work.facts, self._options.confidence)
        number = job_of(work.job, work.host, work.starter)

        def cancel() -> Did:
            return Did(f"scancel {number}", ask(work.starter, "scancel", number).returncode)

        return Plan(f"scancel {number}", cancel)


def create(options: Options) -> Scancel:
    """Build the action."""
    return Scancel(options)
