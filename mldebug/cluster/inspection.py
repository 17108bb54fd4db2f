"""The messages by which a person has ranks on other nodes inspected: from the agent of the person's node to the one that coordinates, from that one
to the nodes of these ranks, and what they answer. Pure.

Nobody's agent decides for another node: each looks once more whether that person may, and whether the run stalls.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from mldebug.capture.inspection import (
    MOST_RANKS,
    InspectedRanks,
    InspectionOptions,
    RankHolders,
    RankProfile,
    tidied,
)
from mldebug.cluster.messages import PeerMessage, read
from mldebug.cluster.run_identity import RunKey, is_of
from mldebug.cluster.wire import MAX_BYTES
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.model import MeasuredData
from mldebug.core.ranksets import Intervals, count_ranks, rank_intervals
from mldebug.core.redact import clean

INSPECT_PATH = "/api/v1/inspect"
MAX_FILES = (
    24 << 20
)  # bytes of all evidence files of one inspection, as they travel: traces are compressed
MAX_WORDS = 1 << 20  # bytes of what a node says of its ranks, without files, as JSON
MAX_NAMED = 4 * MOST_RANKS  # files of one node
MAX_PASSED_ON = 4 * MAX_WORDS  # the same of what a coordinator says of all nodes' ranks
MAX_INSPECTION = MOST_RANKS * MAX_BYTES + 2 * MAX_FILES  # bytes of the whole answer, as JSON has it
ON_THE_WAY = 20.0  # seconds beyond what the ranks may take


class InspectOrder(PeerMessage, frozen=True, kw_only=True):
    """A person's request to inspect ranks of a run, wherever they are. `ranks`: folded, "" for the lowest."""

    job: str  # its id, the begin of it, or its name
    ranks: str = ""
    uid: int | None = None  # only a run of this user; None: of anybody
    options: InspectionOptions


class NodeInspectOrder(PeerMessage, frozen=True, kw_only=True):
    """A coordinator's order to the nodes of a run, to inspect ranks there. `ranks`: by the node that is to inspect them, folded; `most`: bytes of files that it may send."""

    key: RunKey
    attempt: int
    ranks: dict[str, str]
    uid: int | None = None
    options: InspectionOptions
    most: int = MAX_FILES


class NodeInspection(PeerMessage, frozen=True, kw_only=True):
    """What one node has found. `reply`: a capture of the run there, for the report, packed as in `mldebug.cluster.wire`."""

    found: InspectedRanks
    reply: bytes = b""


class _Parts(MeasuredData, frozen=True, kw_only=True):
    """The parts of an `InspectedRanks`, not yet decoded."""

    profiles: msgspec.Raw = msgspec.Raw(b"[]")
    memory: msgspec.Raw = msgspec.Raw(b"[]")
    files: msgspec.Raw = msgspec.Raw(b"{}")


class Inspection(PeerMessage, frozen=True, kw_only=True):
    """What all nodes have found that have one of these ranks. `job`: the run's id; `replies`: their captures, packed, by node."""

    job: str
    found: InspectedRanks
    replies: dict[str, bytes] = {}


def ranks_by_node(text: str, shown: Mapping[str, Intervals]) -> dict[str, tuple[int, ...]]:
    """Where the ranks are that a person means (folded; "": the lowest), by node. `shown`: the ranks that each node has announced, sorted.

    Raises UsageError for what is no list of ranks, MldebugError for too many, for a rank that no node shows, and for one that two show.
    """
    wanted = rank_intervals(text) if text else _lowest(shown)
    if count_ranks(wanted) > MOST_RANKS:
        raise MldebugError(
            f"{count_ranks(wanted)} ranks are too many at once: at most {MOST_RANKS}"
        )
    found: dict[str, list[int]] = {}
    for rank in (one for first, last in wanted for one in range(first, last + 1)):
        nodes = [name for name, spans in shown.items() if _has(spans, rank)]
        if not nodes:
            raise MldebugError(f"no node shows rank {rank} of it", "mldebug status --cluster")
        if len(nodes) > 1:
            raise MldebugError(
                f"{' and '.join(nodes[:2])} both show rank {rank}: neither is believed"
            )
        found.setdefault(nodes[0], []).append(rank)
    return {name: tuple(ranks) for name, ranks in found.items()}


def _lowest(shown: Mapping[str, Intervals]) -> Intervals:
    firsts = [spans[0][0] for spans in shown.values() if spans]
    if not firsts:
        raise MldebugError("no node shows a rank of it yet", "mldebug status --cluster")
    return ((min(firsts), min(firsts)),)


def _has(spans: Intervals, rank: int) -> bool:
    return any(first <= rank <= last for first, last in spans)


def is_allowed(key: RunKey, uid: int | None) -> bool:
    """Whether the person with this user id may have the run inspected; None: one who may see all."""
    return uid is None or is_of(key, uid)


def most_bytes(files: int) -> int:
    """How many bytes a node's answer may have, as JSON, if its evidence files may have so many (`files`)."""
    return MAX_BYTES + 2 * files


def not_inspected(order: InspectOrder, ranks: Iterable[int], node: str, why: str) -> InspectedRanks:
    """The answer for ranks whose node could not be asked: each with the reason."""
    if order.options.what == "memory":
        return InspectedRanks(
            memory=tuple(RankHolders(rank=one, pid=0, node=node, failure=why) for one in ranks)
        )
    return InspectedRanks(
        profiles=tuple(RankProfile(rank=one, pid=0, node=node, failure=why) for one in ranks)
    )


class _Outline(PeerMessage, frozen=True, kw_only=True):
    """A `NodeInspection` or an `Inspection`, not yet decoded: what a list of JSON becomes in memory is forty times as large."""

    found: _Parts


def read_inspection(data: bytes) -> NodeInspection:
    """Decode what a node has found; a capture that is too large is left out. Raises EvidenceError where it says more than ranks can have to say."""
    _check_size(data, MAX_WORDS)
    answer = read(data, NodeInspection)
    if len(answer.reply) > MAX_BYTES:
        return msgspec.structs.replace(answer, reply=b"")
    return answer


def read_passed_on(data: bytes) -> Inspection:
    """Decode what a coordinator says that all nodes have found, its texts cleaned. Raises EvidenceError where that cannot be."""
    _check_size(data, MAX_PASSED_ON)
    answer = read(data, Inspection)
    return msgspec.structs.replace(answer, job=clean(answer.job, 40), found=tidied(answer.found))


def _check_size(data: bytes, most: int) -> None:
    parts = read(data, _Outline).found
    if len(memoryview(parts.profiles)) + len(memoryview(parts.memory)) > most:
        raise EvidenceError(f"it says more than {most >> 10} KiB of its ranks")
    if sum(1 for _ in re.finditer(rb":", parts.files)) > MAX_NAMED:
        raise EvidenceError(f"it sends more than {MAX_NAMED} files")
