"""Requests about all nodes that users of this node may make: the agent passes them to the coordinating agents."""

import time
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from mldebug.cluster.known_peers import joined, of_user
from mldebug.cluster.messages import (
    CLUSTER_PATH,
    DUMP_DEADLINE,
    DUMP_PATH,
    MAX_REPORT,
    MAX_VIEW,
    ClusterView,
    DumpOrder,
    read,
)
from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.report_model import Report
from mldebug_agents.cluster.peers.controller import PeersController
from mldebug_agents.cluster.peers.coordinator_search import ANSWER
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.openapi import DUMP, VIEW

PATIENCE = 8.0  # seconds for the views of all coordinators: whoever asks waits for 10
MAX_WHYS = 4  # in a sentence

Verb = Callable[[Mapping[str, str], int | None], object]


def peer_verbs(peers: PeersController | None, client: PeerClient | None) -> dict[str, Verb]:
    """The functions behind the HTTP paths by which users ask all agents together, by path. Each takes the parameters of the
    request and the id of the user whose runs are wanted (None: all users), and raises MldebugError where no agent coordinates.
    """

    def coordinators() -> tuple[PeerClient, tuple[Peer, ...]]:
        if peers is None or client is None:
            raise MldebugError(
                "this agent knows no others",
                "cluster: {key_file: …, networks: […]}, see docs/across-nodes.md",
            )
        if not peers.coordinators:
            raise MldebugError(f"nobody coordinates: {peers.sentence}", "see the agent's log")
        return client, peers.coordinators

    def cluster(parameters: Mapping[str, str], uid: int | None) -> ClusterView:
        by, all_ = coordinators()
        return of_user(_views(by, all_), uid)

    def dump(parameters: Mapping[str, str], uid: int | None) -> Report:
        by, all_ = coordinators()
        if not (job := parameters.get("job", "")):
            raise UsageError("no job was named", "add --job NAME")
        trigger: Literal["manual", "alert"] = (
            "alert" if parameters.get("trigger") == "alert" else "manual"
        )
        order = msgspec.json.encode(DumpOrder(job=job, uid=uid, trigger=trigger))
        knows = peers.coordinators_of(job) if peers is not None else ()
        return _dump(by, tuple(dict.fromkeys((*knows, *all_))), order)

    return {CLUSTER_PATH: cluster, DUMP_PATH: dump}


def _views(by: PeerClient, all_: tuple[Peer, ...]) -> ClusterView:
    """What all of them see, as one; who does not answer keeps nobody's view. The error of the first, where nobody does."""
    until = time.monotonic() + PATIENCE
    views: list[ClusterView] = []
    errors: dict[str, MldebugError] = {}
    for to in all_:
        left = until - time.monotonic()
        try:
            views.append(_view(by, to, min(ANSWER, left)))
        except MldebugError as error:
            errors[f"{to.host}:{to.port}"] = error
    if not views:
        raise next(iter(errors.values()))
    silent = {where: one.message for where, one in errors.items()}
    return msgspec.structs.replace(joined(views), silent=silent)


def _view(by: PeerClient, to: Peer, timeout: float) -> ClusterView:
    if timeout <= 0:
        raise MldebugError("there was no time left to ask it")
    return read(by.ask(to, VIEW, b"", timeout=timeout, most=MAX_VIEW), ClusterView)


def _dump(by: PeerClient, all_: tuple[Peer, ...], order: bytes) -> Report:
    """Of the first that does it: the runs of a node may have a coordinator each. Each is asked once, for one question is one capture."""
    until = time.monotonic() + DUMP_DEADLINE
    errors: list[MldebugError] = []
    for to in all_:
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            report = by.ask(to, DUMP, order, timeout=left, most=MAX_REPORT)
            return msgspec.json.decode(report, type=Report)
        except MldebugError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    whys = list(dict.fromkeys(one.message for one in errors))
    raise MldebugError("; ".join(whys[:MAX_WHYS]))
