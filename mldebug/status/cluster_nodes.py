"""The nodes of a cluster, as their coordinator knows them, in the form in which commands show nodes that were asked themselves. Pure."""

from collections.abc import Iterator

from mldebug.cluster.messages import ClusterView, PeerView, RunNews
from mldebug.cluster.run_identity import run_id, user_of
from mldebug.core.model import NodeBrief, RankBrief, RunBrief
from mldebug.core.ranksets import rank_intervals
from mldebug.core.redact import clean
from mldebug.core.units import duration_words
from mldebug.status.merged_runs import ViewedNodes

MOST_RANKS = 256  # of one run on one node


def viewed(view: ClusterView) -> ViewedNodes:
    """Nodes that announce themselves, with their runs and GPUs; the others, and coordinators that do not answer, with the reason. What a
    node knows of single ranks, its alerts and its storage it does not announce.
    """
    answers, silent = [], {clean(where, 60): clean(why, 200) for where, why in view.silent.items()}
    for one in view.peers:
        name = clean(one.node, 100)
        if one.seconds_ago is None:
            silent[name] = "never heard of"
        elif one.seconds_ago >= view.silent_after:
            silent[name] = f"not heard of for {duration_words(int(one.seconds_ago))}"
        else:
            answers.append(_node(name, one))
    return ViewedNodes(answers=tuple(answers), silent=silent)


def _node(name: str, peer: PeerView) -> NodeBrief:
    return NodeBrief(
        node=name, agent_seconds=0.0, age=peer.seconds_ago or 0.0, runs=tuple(map(_run, peer.runs)), gpus=peer.gpus,
        gpu_note="" if peer.gpus else f"{name} announces none",
    )  # fmt: skip


def _run(news: RunNews) -> RunBrief:
    return RunBrief(
        key=news.key, id=run_id(news.key), name=news.name, user=user_of(news.key) or "root", world_size=news.world_size,
        attempt=news.attempt, age=news.age, ranks=tuple(_ranks(news)), watched=True, step=news.step, stage=news.stage,
        sentence=news.sentence, incident=news.incident, report=news.sentence if news.incident else "",
    )  # fmt: skip


def _ranks(news: RunNews) -> Iterator[RankBrief]:
    numbers = (rank for span in rank_intervals(news.ranks) for rank in span)
    for _, rank in zip(range(MOST_RANKS), numbers, strict=False):
        yield RankBrief(rank=rank, state="announced")
