"""A signal to the culprit, or to all ranks of the run on this node."""

import os
import signal
from collections.abc import Sequence
from typing import Literal

import msgspec

from mldebug.alerts.action_model import ActionFacts, Sure, UnfitError, sure_enough
from mldebug.core.model import RankIdentity
from mldebug_agents.alerts.action_runner.model import Action, ActionInput, ActionPlan, ActionResult
from mldebug_agents.system.host import Host


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which signal is sent, and to which ranks."""

    signal: Literal[
        "SIGTERM", "SIGINT", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGABRT", "SIGQUIT", "SIGKILL"
    ] = "SIGTERM"  # which one
    to: Literal["culprit", "ranks"] = "culprit"  # ranks: all of the run on this node
    confidence: Sure = "high"  # of the verdict, at least


class SignalAction:
    """Sends a signal to ranks, through a pidfd, so that it reaches only the process that was found as the rank."""

    harms = True

    def __init__(self, options: Options) -> None:
        self._options = options

    def plan(self, work: ActionInput) -> ActionPlan:
        """Plan a signal to the blamed rank, or to all ranks of the event's run on this node.

        Raises UnfitError where the run has no rank on this node, the verdict is not sure enough, or not exactly one rank on
        this node is blamed.
        """
        options = self._options
        if work.job is None:
            raise UnfitError("the event is of no run that is on this node now")
        sure_enough(work.facts, options.confidence)
        ranks = _chosen(work.job.ranks, work.facts, work.node, options.to)
        targets = ", ".join(f"rank {rank.rank} (pid {rank.pid})" for rank in ranks)
        return ActionPlan(f"{options.signal} to {targets}", lambda: self._send(ranks, work.host))

    def _send(self, ranks: Sequence[RankIdentity], host: Host) -> ActionResult:
        number = signal.Signals[self._options.signal]
        fds = []
        try:
            for rank in ranks:  # all of them are proved before the first is hit
                fds.append(held(rank, host))
            for fd in fds:
                signal.pidfd_send_signal(fd, number)
        finally:
            for fd in fds:
                os.close(fd)
        who = ", ".join(f"rank {one.rank} (pid {one.pid})" for one in ranks)
        return ActionResult(f"sent {self._options.signal} to {who}")


def held(one: RankIdentity, host: Host) -> int:
    """A descriptor (pidfd) of the rank's process. Raises UnfitError where that has ended, or its pid belongs to another process by now."""
    try:
        fd = os.pidfd_open(one.pid)
    except ProcessLookupError:
        raise UnfitError(f"rank {one.rank} (pid {one.pid}) is gone") from None
    known = host.brief(one.pid)  # read after it was opened: what it names cannot change any more
    if known is None or not one.start_ticks or known.start_ticks != one.start_ticks:
        os.close(fd)
        raise UnfitError(f"pid {one.pid} is not rank {one.rank} any more: its number was reused")
    return fd


def _chosen(
    ranks: tuple[RankIdentity, ...], facts: ActionFacts, node: str, to: str
) -> tuple[RankIdentity, ...]:
    """All ranks here, or the one rank that is blamed."""
    if to == "ranks":
        if not ranks:
            raise UnfitError("no rank of the run is on this node")
        return ranks
    blamed = {
        (one.rank, one.pid) for one in facts.blamed if one.kind == "rank" and one.node == node
    }
    chosen = tuple(rank for rank in ranks if (rank.rank, rank.pid) in blamed)
    if len(chosen) != 1:
        raise UnfitError(f"{len(chosen)} ranks on this node are blamed: it hits one alone")
    return chosen


def create(options: Options) -> Action:
    """Build the action `signal`: a signal to the culprit, or to all ranks of the run on this node."""
    return SignalAction(options)
