"""`mldebug dump --job NAME` on any node: whether the agents know more of it than this node shows."""

import pytest

from mldebug.cluster.messages import ClusterView, PeerView, RunNews
from mldebug.cluster.run_identity import run_id
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.cluster.peers.reach import run_elsewhere

KEY, OTHER = ("torchrun", "", "10.0.0.1:29500"), ("torchrun", "", "10.0.0.1:29501")
HERE = Snapshot(
    node="n1",
    at=0.0,
    started_at=0.0,
    runs=(RunState(id="4f00aa", name="train.py", launcher="torchrun", ranks={0: 10, 1: 11}),),
)


def news(key: tuple[str, ...], ranks: str, name: str = "train.py") -> RunNews:
    return RunNews(key=key, name=name, ranks=ranks, world_size=4)


def view(**nodes: tuple[RunNews, ...]) -> ClusterView:
    return ClusterView(
        coordinator="n1", peers=tuple(PeerView(node=n, runs=r) for n, r in nodes.items())
    )


WHOLE = view(n1=(news(KEY, "0-1"),), n2=(news(KEY, "2-3"),))


@pytest.mark.parametrize("job", ["train.py", run_id(KEY), run_id(KEY)[:4], "4f00aa", "4f"])
def test_by_name_by_its_id_and_by_the_id_that_status_shows(job: str) -> None:
    assert run_elsewhere(job, HERE, WHOLE) == run_id(KEY)


def test_a_job_of_other_nodes_alone_is_found() -> None:
    result = view(n2=(news(KEY, "0-1", "other.py"),), n1=(news(OTHER, "0-1"),))
    assert run_elsewhere("other.py", HERE, result) == run_id(KEY)


@pytest.mark.parametrize(
    ("job", "cluster_view"),
    [
        ("eval.py", WHOLE),
        ("train.py", view(n1=(news(KEY, "0-1"),))),  # of this node alone
        ("train.py", view(n1=(news(KEY, "0-1"),), n2=(news(OTHER, "0-1"),))),  # which of the two?
        ("train.py", view()),
    ],
)
def test_what_is_of_this_node_or_cannot_be_told_apart_is_looked_at_here(
    job: str, cluster_view: ClusterView
) -> None:
    assert run_elsewhere(job, HERE, cluster_view) is None
