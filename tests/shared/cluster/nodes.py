"""Captures of many nodes, as they would send them: `node_capture("a2", sleeper(5), waiter(4))`."""

from collections.abc import Iterable

import msgspec

from mldebug.cluster.merge import MergedRuns, NodeReplies, merge
from mldebug.cluster.wire import NodeReply
from mldebug.core.model import (
    Job,
    NodeCapture,
    ProcessCapture,
    QueriedNode,
    RankCapture,
    RankIdentity,
)
from shared.diagnosis.builders import WAITER, process, still

INIT = (
    "rendezvous (torch/distributed/rendezvous.py:280)",
    "init_process_group (torch/distributed/distributed_c10d.py:1700)",
    "main (train.py:12)",
)
SLEEP = ("load (train.py:7)", "<module> (train.py:50)")


def rank(number: int, what: ProcessCapture, world: int) -> RankCapture:
    """One rank of a run under srun."""
    pid = 1000 + number
    identity = RankIdentity(
        rank=number,
        world_size=world,
        pid=pid,
        start_ticks=7 * number,
        launcher="slurm",
        run_id="7.0",
    )
    return RankCapture(identity=identity, process=msgspec.structs.replace(what, pid=pid))


def waiter() -> ProcessCapture:
    """It waits in all_reduce, watched."""
    return process(*WAITER, move=still())


def sleeper() -> ProcessCapture:
    """It sleeps by itself, watched for long."""
    return process(*SLEEP, wchan="hrtimer_nanosleep", move=still(span=20.0))


def starter() -> ProcessCapture:
    """It waits in init_process_group."""
    return process(*INIT, wchan="ep_poll", move=still())


def node_capture(node: str, ranks: Iterable[RankCapture], **more: object) -> NodeCapture:
    """What one node took."""
    found = tuple(ranks)
    world = found[0].identity.world_size
    job = Job(
        id=f"id-{node}", name="train.py", launcher="slurm", world_size=world, nodes=(node,),
        ranks=tuple(one.identity for one in found),
    )  # fmt: skip
    capture = NodeCapture(node=node, taken_at=1_700_000_000.0, job=job, ranks=found)
    return msgspec.structs.replace(capture, **more)


def run(
    nodes: int,
    each: int,
    odd: dict[int, ProcessCapture] | None = None,
    rest: ProcessCapture | None = None,
) -> dict[str, NodeCapture]:
    """A whole run by name of node: who is in `odd` does that, the others wait."""
    world, rest = nodes * each, rest or waiter()
    return {
        f"a{node + 1}": node_capture(
            f"a{node + 1}",
            [
                rank(n, (odd or {}).get(n, rest), world)
                for n in range(node * each, (node + 1) * each)
            ],
        )
        for node in range(nodes)
    }


def replies(captures: dict[str, NodeCapture]) -> dict[str, NodeReply]:
    """One reply for each node."""
    return {
        name: NodeReply(node=name, machine=f"boot {name}", captures=(capture,))
        for name, capture in captures.items()
    }


def merged(
    captures: dict[str, NodeCapture], failed: Iterable[QueriedNode] = (), listed_by: str = "Slurm"
) -> MergedRuns:
    """All of them put together."""
    return merge(NodeReplies(replies(captures), tuple(failed)), listed_by)


def silent(*names: str) -> list[QueriedNode]:
    """Nodes of which nothing came."""
    return [QueriedNode(name=name, state="silent", reason="No route to host") for name in names]
