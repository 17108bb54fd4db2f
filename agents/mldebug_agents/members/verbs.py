"""What people on this node may ask about all nodes: their agent asks whoever coordinates."""

from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from mldebug.across.members import (
    MAX_MESSAGE,
    ClusterView,
    DumpOrder,
    joined,
    of_user,
    read,
)
from mldebug.across.wire import MAX_BYTES
from mldebug.errors import MldebugError, UsageError
from mldebug.reportmodel import Report
from mldebug_agents.members.desk import Members
from mldebug_agents.members.door import DUMP_DEADLINE
from mldebug_agents.members.errors import RefusedError
from mldebug_agents.members.openapi import DUMP, VIEW
from mldebug_agents.members.seeking import ANSWER
from mldebug_agents.members.talk import Peer, Talk

CLUSTER_PATH, DUMP_PATH = "/api/v1/cluster", "/api/v1/dump"
MAX_VIEW = 32 * MAX_MESSAGE
MAX_REPORT = 8 * MAX_BYTES
MOST = 4  # coordinators asked

Verb = Callable[[Mapping[str, str], int | None], object]


def member_verbs(members: Members | None, talk: Talk | None) -> dict[str, Verb]:
    """By path, each with the user of whose runs it is; None: of everybody's. Each runs in a thread of the server."""

    def coordinators() -> tuple[Talk, tuple[Peer, ...]]:
        if members is None or talk is None:
            raise MldebugError(
                "this agent knows no others",
                "cluster: {key_file: …, networks: […]}, see docs/across-nodes.md",
            )
        if not members.coordinators:
            raise MldebugError(f"nobody coordinates: {members.sentence}", "see the agent's log")
        return talk, members.coordinators

    def cluster(asked: Mapping[str, str], uid: int | None) -> ClusterView:
        by, all_ = coordinators()
        told = (by.ask(to, VIEW, b"", timeout=ANSWER, most=MAX_VIEW) for to in all_[:MOST])
        return of_user(joined([read(one, ClusterView) for one in told]), uid)

    def dump(asked: Mapping[str, str], uid: int | None) -> Report:
        by, all_ = coordinators()
        if not (job := asked.get("job", "")):
            raise UsageError("no job was named", "add --job NAME")
        order = msgspec.json.encode(DumpOrder(job=job, uid=uid))
        for to in all_[: MOST - 1]:  # the jobs of a node may have one each
            with suppress(RefusedError):
                return _report(by, to, order)
        return _report(by, all_[-1], order)

    return {CLUSTER_PATH: cluster, DUMP_PATH: dump}


def _report(by: Talk, to: Peer, order: bytes) -> Report:
    told = by.ask(to, DUMP, order, timeout=DUMP_DEADLINE, most=MAX_REPORT)
    return msgspec.json.decode(told, type=Report)
