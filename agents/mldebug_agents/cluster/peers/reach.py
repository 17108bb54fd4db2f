"""Whether a job that a user names has ranks on other nodes, as far as the agents know; then those nodes are captured too."""

from collections.abc import Iterator

from mldebug.cluster.known_peers import lives
from mldebug.cluster.messages import ClusterView, RunNews
from mldebug.cluster.run_identity import run_id
from mldebug.core.ranksets import fold_ranks
from mldebug.status.snapshot import Snapshot


def run_elsewhere(job: str, snapshot: Snapshot, view: ClusterView) -> str | None:
    """The id of a run with this id or name that has ranks on other nodes; None where there is none, or several."""
    shown = list(_shown(view))
    keys = {
        news.key
        for node, news in shown
        if news.name == job
        or run_id(news.key).startswith(job)
        or _is_ours(job, snapshot, node, news)
    }
    if len(keys) != 1:
        return None
    nodes = {node for node, news in shown if news.key in keys}
    return run_id(keys.pop()) if nodes - {snapshot.node} else None


def _shown(view: ClusterView) -> Iterator[tuple[str, RunNews]]:
    return ((one.node, news) for one in view.peers for news in one.runs if lives(news))


def _is_ours(job: str, snapshot: Snapshot, node: str, news: RunNews) -> bool:
    """`mldebug status` calls a run of this node by an id of its own."""
    named = (run for run in snapshot.runs if run.id.startswith(job) and node == snapshot.node)
    return any(one.name == news.name and fold_ranks(one.ranks) == news.ranks for one in named)
