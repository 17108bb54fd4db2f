"""Cancel the run's Slurm job; its number comes from the kernel and from Slurm, never from the job."""

import msgspec

from mldebug.alerts.action_model import Sure, UnfitError, sure_enough
from mldebug.core.model import Job
from mldebug_agents.alerts.action_runner.model import Action, ActionInput, ActionPlan, ActionResult
from mldebug_agents.alerts.action_runner.slurm import ask, holding, number_of, raw_of


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How sure the verdict must be, and whether other runs may end too because they are in the same Slurm job."""

    confidence: Sure = "high"  # of the verdict, at least
    with_others: bool = False  # also where other runs on this node are of the same Slurm job


class ScancelAction:
    """Cancels the Slurm job of an event's run; of an array job, that task alone."""

    harms = True

    def __init__(self, options: Options) -> None:
        self._options = options

    def plan(self, work: ActionInput) -> ActionPlan:
        """Plan `scancel` of the Slurm job of the event's run.

        Raises UnfitError where the run has no rank on this node, the verdict is not sure enough, or the job is not certain
        or holds other runs (see `with_others`); ProgramError where Slurm's programs fail.
        """
        if work.job is None:
            raise UnfitError("the event is of no run that is on this node now")
        sure_enough(work.facts, self._options.confidence)
        number = self._number(work.job, work)

        def cancel() -> ActionResult:
            return ActionResult(
                f"scancel {number}", ask(work.starter, "scancel", number).returncode
            )

        return ActionPlan(f"scancel {number}", cancel)

    def _number(self, job: Job, work: ActionInput) -> str:
        raw = raw_of(job, work.host, work.starter)
        if not self._options.with_others:
            for other in holding(raw, work.others, work.host, work.starter):
                raise UnfitError(f"Slurm job {raw} holds run {other.id}, too")
        return number_of(raw, job, work.starter)


def create(options: Options) -> Action:
    """Build the action `scancel`: cancel the run's Slurm job; its number comes from the kernel and from Slurm, never from the job."""
    return ScancelAction(options)
