"""Drain the node that is to blame: Slurm gives it no more jobs, and what runs there goes on."""

import re

import msgspec

from mldebug.alerts.action_model import ActionFacts, Sure, UnfitError, sure_enough
from mldebug_agents.alerts.action_runner.model import Action, ActionInput, ActionPlan, ActionResult
from mldebug_agents.alerts.action_runner.slurm import ask, is_on, node_of, raw_of

OF_NODES = ("node", "gpu", "link")  # culprits that leave with their node
OWN = ("health/",)  # beginnings of the keys of events that are this node's own


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How sure the verdict must be before a node is drained."""

    confidence: Sure = "high"  # of the verdict, at least


class DrainAction:
    """Drains a node in Slurm after a verdict on that node, or a GPU or link of it; never because a rank hangs."""

    harms = True

    def __init__(self, options: Options) -> None:
        self._options = options

    def plan(self, work: ActionInput) -> ActionPlan:
        """Drain the one node that is blamed: this node, or another one of the run. The reason given to Slurm is made of
        fixed words. Raises UnfitError where not exactly one node is blamed, the verdict is not sure enough, or Slurm does
        not know the node; ProgramError where Slurm's programs fail.
        """
        sure_enough(work.facts, self._options.confidence)
        name = node_of(_blamed(work), work.starter)
        _of_the_job(name, work)
        argv = ("update", f"nodename={name}", "state=drain", f"reason={_reason(work.facts)}")

        def drain() -> ActionResult:
            done = ask(work.starter, "scontrol", *argv)
            return ActionResult(f"scontrol {' '.join(argv)}", done.returncode)

        return ActionPlan(f"scontrol {' '.join(argv)}", drain)


def _blamed(work: ActionInput) -> str:
    facts = work.facts
    if facts.key.startswith(OWN):
        return work.node
    nodes = {one.node for one in facts.blamed if one.kind in OF_NODES}
    others = [one.kind for one in facts.blamed if one.kind not in OF_NODES]
    if len(nodes) != 1 or others:
        blamed = ", ".join(f"{one.kind} on {one.node}" for one in facts.blamed) or "nobody"
        raise UnfitError(f"no single node is blamed, but {blamed}")
    return nodes.pop()


def _of_the_job(name: str, work: ActionInput) -> None:
    """What a GPU did, its node's own kernel says. Of a node that is silent only names are known, and those a job may choose."""
    kinds = {one.kind for one in work.facts.blamed}
    if name.partition(".")[0] == work.node.partition(".")[0] or kinds == {"gpu"}:
        return
    if work.job is None:
        raise UnfitError(f"no rank of the run is here by whom Slurm could say that {name} is its")
    raw = raw_of(work.job, work.host, work.starter)
    if not is_on(raw, name, work.starter):
        raise UnfitError(f"Slurm does not say that job {raw} has {name}")


def _reason(facts: ActionFacts) -> str:
    return "mldebug:" + re.sub(r"[^a-z0-9_]", "", facts.verdict or facts.kind)[:60]


def create(options: Options) -> Action:
    """Build the action `drain`: drain the node that is to blame: Slurm gives it no more jobs, and what runs there goes on."""
    return DrainAction(options)
