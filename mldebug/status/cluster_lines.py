"""All nodes as their coordinator knows them, in lines for a terminal: runs first, then nodes that are silent."""

from collections.abc import Iterable, Iterator

from mldebug.cluster.messages import ClusterView, PeerView, RunNews
from mldebug.cluster.run_identity import RunKey, run_id
from mldebug.core.ranksets import fold_nodes, join_ranks, shorten_ranks
from mldebug.core.redact import clean
from mldebug.stall.sentences import seconds
from mldebug.status.merged_runs import severity_order

MAX_NAMES = 100  # characters

Shown = tuple[PeerView, RunNews]


def cluster_lines(view: ClusterView) -> Iterator[str]:
    """Lines of text about the agents of other nodes: one for each run over several nodes, and one for each kind of trouble."""
    here = [
        one
        for one in view.peers
        if one.seconds_ago is not None and one.seconds_ago < view.silent_after
    ]
    count = len(view.peers)
    of = f"{len(here)} of {count} {'node' if count == 1 else 'nodes'} here"
    yield f"{clean(view.coordinator, 100)} coordinates; {of}: {_names(here)}"
    for shown in _runs(view.peers).values():
        yield from _run_lines(shown)
    if lost := [one for one in view.peers if (one.seconds_ago or 0.0) >= view.silent_after]:
        longest = max(one.seconds_ago or 0.0 for one in lost)
        yield f"not heard of for up to {seconds(round(longest))}: {_names(lost)}"
    if never := [one for one in view.peers if one.seconds_ago is None]:
        yield f"never heard of: {_names(never)}"
    for address, why in sorted(view.silent.items())[:8]:
        yield f"its runs are not shown: {clean(address, 60)} coordinates, and {clean(why, 200)}"
    for address, why in sorted(view.refused.items())[:8]:
        yield f"not believed: {clean(address, 60)}: {clean(why, 200)}"


def stalled(view: ClusterView) -> bool:
    """Whether any run has an open incident."""
    return any(run.incident for peer in view.peers for run in peer.runs)


def _runs(peers: Iterable[PeerView]) -> dict[tuple[RunKey, int], list[Shown]]:
    found: dict[tuple[RunKey, int], list[Shown]] = {}
    for peer in peers:
        for run in peer.runs:
            found.setdefault((run.key, run.attempt), []).append((peer, run))
    return found


def _run_lines(shown: list[Shown]) -> Iterator[str]:
    worst = max((run for _, run in shown), key=lambda run: severity_order(run.stage))
    ranks = join_ranks(run.ranks for _, run in shown)
    steps = [run.step for _, run in shown if run.step is not None]
    step = f", step {max(steps)}" if steps else ""
    nodes = _names(peer for peer, _ in shown)
    who = f"{clean(worst.name, 60)} ({run_id(worst.key)})"
    yield f"{who}: ranks {shorten_ranks(ranks)} of {worst.world_size} on {nodes}{step}"
    yield f"  {worst.stage}: {clean(worst.sentence, 300)}"


def _names(peers: Iterable[PeerView]) -> str:
    return shorten_ranks(fold_nodes(clean(peer.node, 100) for peer in peers), MAX_NAMES) or "none"
