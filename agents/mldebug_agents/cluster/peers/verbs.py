"""Requests about all nodes that users of this node may make: the agent passes them to the coordinating agents."""

import time
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from mldebug.capture.inspection import InspectionOptions
from mldebug.cluster.inspection import INSPECT_PATH, MAX_INSPECTION, ON_THE_WAY, InspectOrder
from mldebug.cluster.known_peers import joined, of_user
from mldebug.cluster.messages import (
    CLUSTER_PATH,
    DUMP_DEADLINE,
    DUMP_PATH,
    MAX_REPORT,
    MAX_REPORT_VALUES,
    MAX_VIEW,
    ClusterView,
    DumpOrder,
    check_count,
    read,
)
from mldebug.core.errors import FailedCheckError, MldebugError, UsageError
from mldebug.core.redact import clean
from mldebug.core.report_model import Report
from mldebug.incidents.report_store import is_id
from mldebug_agents.cluster.peers.controller import PeersController
from mldebug_agents.cluster.peers.coordinator_search import ANSWER
from mldebug_agents.cluster.peers.inspections import Turns
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.openapi import DUMP, INSPECT, VIEW
from mldebug_agents.system.gone import Gone, current, never

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
                "this agent knows no agents of other nodes",
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
        return _report(_first(by, of(job, all_), DUMP, order, DUMP_DEADLINE, MAX_REPORT))

    def inspect(parameters: Mapping[str, str], uid: int | None) -> msgspec.Raw:
        by, all_ = coordinators()
        order = _inspect_order(parameters, uid)
        patience = order.options.deadline + 2 * ON_THE_WAY
        with turns.take(uid):
            body = msgspec.json.encode(order)
            return msgspec.Raw(
                _first(by, of(order.job, all_), INSPECT, body, patience, MAX_INSPECTION, current())
            )

    def of(job: str, all_: tuple[Peer, ...]) -> tuple[Peer, ...]:
        knows = peers.coordinators_of(job) if peers is not None else ()
        return tuple(dict.fromkeys((*knows, *all_)))

    turns = Turns()
    return {CLUSTER_PATH: cluster, DUMP_PATH: dump, INSPECT_PATH: inspect}


def _report(data: bytes) -> Report:
    """The report of another node. Raises MldebugError where it is none, has a name that is none, or holds more than a report can."""
    check_count(data, MAX_REPORT_VALUES)
    try:
        report = msgspec.json.decode(data, type=Report)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MldebugError(f"what came is no report: {clean(str(error))}") from error
    if not is_id(report.id):
        raise MldebugError(f"what came is no report: {clean(report.id, 60)!r} is no name of one")
    return report


def _inspect_order(parameters: Mapping[str, str], uid: int | None) -> InspectOrder:
    """What a person wants. Raises UsageError where it cannot be."""
    words = dict(parameters)
    job, ranks = words.pop("job", ""), words.pop("ranks", "")
    if not job:
        raise UsageError("no job was named", "add --job NAME")
    try:
        options = msgspec.convert(words, InspectionOptions, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"that cannot be asked for: {error}", "mldebug profile --help") from None
    return InspectOrder(job=job, ranks=ranks, uid=uid, options=options)


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


def _first(
    by: PeerClient,
    all_: tuple[Peer, ...],
    path: str,
    order: bytes,
    patience: float,
    most: int,
    gone: Gone = never,
) -> bytes:
    """The answer of the first that carries it out: the runs of a node may have a coordinator each. Each is asked once, for one question
    is one capture. `patience`: seconds in all; `most`: bytes of an answer; `gone`: nobody waits for it any more.
    """
    until = time.monotonic() + patience
    errors: list[MldebugError] = []
    for to in all_:
        left = until - time.monotonic()
        if left <= 0 or gone():
            break
        try:
            return by.ask(to, path, order, timeout=left, most=most, gone=gone)
        except MldebugError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    whys = list(dict.fromkeys(one.message for one in errors))
    kind = FailedCheckError if any(isinstance(one, FailedCheckError) for one in errors) else MldebugError  # fmt: skip
    raise kind("; ".join(whys[:MAX_WHYS]))
