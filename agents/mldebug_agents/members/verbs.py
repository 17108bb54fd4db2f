"""What people on this node may ask about all nodes: their agent asks whoever coordinates."""

from collections.abc import Callable, Mapping

import msgspec

from mldebug.across.members import MAX_MESSAGE, ClusterView, DumpOrder, read
from mldebug.across.wire import MAX_BYTES
from mldebug.errors import MldebugError, UsageError
from mldebug.reportmodel import Report
from mldebug_agents.members.desk import Members
from mldebug_agents.members.door import DUMP, DUMP_DEADLINE, VIEW
from mldebug_agents.members.seeking import ANSWER
from mldebug_agents.members.talk import Peer, Talk

CLUSTER_PATH, DUMP_PATH = "/api/v1/cluster", "/api/v1/dump"
MAX_VIEW = 32 * MAX_MESSAGE
MAX_REPORT = 8 * MAX_BYTES

Verb = Callable[[Mapping[str, str]], object]


def member_verbs(members: Members | None, talk: Talk | None) -> dict[str, Verb]:
    """By path. Each runs in a thread of the server."""

    def coordinator() -> tuple[Talk, Peer]:
        if members is None or talk is None:
            raise MldebugError(
                "this agent knows no others",
                "cluster: {key_file: …, peers: […]}, see docs/across-nodes.md",
            )
        if members.found is None:
            raise MldebugError("no other agent answers, and this one is alone", "see its log")
        return talk, members.found.peer

    def cluster(asked: Mapping[str, str]) -> ClusterView:
        by, to = coordinator()
        return read(by.ask(to, VIEW, b"", timeout=ANSWER, most=MAX_VIEW), ClusterView)

    def dump(asked: Mapping[str, str]) -> Report:
        by, to = coordinator()
        if not (job := asked.get("job", "")):
            raise UsageError("no job was named", "add --job NAME")
        order = msgspec.json.encode(DumpOrder(job=job))
        told = by.ask(to, DUMP, order, timeout=DUMP_DEADLINE, most=MAX_REPORT)
        return msgspec.json.decode(told, type=Report)

    return {CLUSTER_PATH: cluster, DUMP_PATH: dump}
