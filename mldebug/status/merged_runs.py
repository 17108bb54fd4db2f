"""The runs of several nodes, each as one: what their nodes show of them is put together. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from mldebug.core.model import NodeBrief, RankBrief, RunBrief
from mldebug.core.ranksets import fold_ranks, shorten_ranks

STAGES = ("watching", "quiet", "suspect", "confirmed", "blamed")  # the worst last


class ViewedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that answered, and why the others did not, by name."""

    answers: tuple[NodeBrief, ...] = ()
    silent: dict[str, str] = {}


class RunOnNodes(msgspec.Struct, frozen=True, kw_only=True):
    """One run on all nodes that show it. `first`: of the node where it is worst, `worst`; `ranks`: with the node of each."""

    first: RunBrief
    worst: str
    nodes: tuple[str, ...]
    ranks: tuple[tuple[str, RankBrief], ...]
    step: int | None
    absent: int

    def rank_words(self) -> str:
        """Which ranks are here, of how many: `0-7 of 8`."""
        here = [rank.rank for _, rank in self.ranks if rank.state != "exited"]
        return f"{shorten_ranks(fold_ranks(here), 24) or 'none'} of {self.first.world_size}"


def merge_runs(nodes: Iterable[NodeBrief]) -> tuple[RunOnNodes, ...]:
    """All runs, those with an incident first, then the largest."""
    shown: dict[tuple[str, ...], list[tuple[str, RunBrief]]] = {}
    for node in nodes:
        for run in node.runs:
            shown.setdefault((*run.key, str(run.attempt)), []).append((node.node, run))
    runs = [_merged(each) for each in shown.values()]
    return tuple(sorted(runs, key=lambda one: (not one.first.incident, -len(one.ranks), one.first.name, one.first.id)))  # fmt: skip


def _merged(shown: Sequence[tuple[str, RunBrief]]) -> RunOnNodes:
    worst, first = max(shown, key=lambda one: (bool(one[1].incident), severity_order(one[1].stage)))
    steps = [run.step for _, run in shown if run.step is not None]
    ranks = [(node, rank) for node, run in shown for rank in run.ranks]
    return RunOnNodes(
        first=first,
        worst=worst,
        nodes=tuple(sorted({node for node, _ in shown})),
        ranks=tuple(sorted(ranks, key=lambda one: one[1].rank)),
        step=max(steps) if steps else None,
        absent=sum(run.absent for _, run in shown),
    )


def severity_order(stage: str) -> int:
    """How far a stage of the stall watch is from all being well; -1 for one that is not known."""
    return STAGES.index(stage) if stage in STAGES else -1
