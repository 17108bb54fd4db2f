"""Whose failure the last words of a rank tell of: its own, somebody else's, or that is not said. Pure.

Whoever speaks first need not be to blame: a rank whose peer is gone says so before anybody else says anything. So words about a
peer, a store, a rendezvous or a watchdog never blame their speaker. An error of the rank's own device is its own failure also where
the watchdog's thread only passes it on. What neither says stays unclear, and names nobody with more than low confidence.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from itertools import chain

from mldebug.diagnosis.exits.words import phrases


class Blame(StrEnum):
    """Whom an error accuses."""

    OWN = "own"
    PEER = "peer"  # another rank, or "some rank": the speaker is a victim
    UNCLEAR = "unclear"


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_DEVICE = _any(chain(*phrases.DEVICE.values()))
_PEER = _any(chain(*phrases.PEER.values()))
_LAUNCHER = _any(chain(*phrases.LAUNCHERS.values()))
_EITHER = _any(phrases.UNCLEAR)
# A file or disk that NCCL needs on this node
_OWN_NODE = re.compile(r"No space left on device|Too many open files|Cannot allocate memory")
# What any socket may say, that of an object store too: a peer's only where words of a process group stand beside it
_SOCKET = re.compile(
    r"Connection (?:reset by peer|refused|timed out)|Broken pipe|Software caused connection abort"
)
_GROUP = re.compile(r"^(?:RuntimeError|torch\.)|gloo|c10d|nccl|Dist[A-Z]\w*Error", re.IGNORECASE)
# The job's own word that the reason lies elsewhere: ranks that agree to stop
_SECOND_HAND = re.compile(
    r"\bwait(?:ing|ed)?(?: \d+ ?s\w{0,6})? (?:for|on) (?:all )?(?:ranks?|workers?|peers?)\b|\b(?:another|other|some|remote|failed) (?:rank|worker|process|peer)|\bon (?:an)?other rank",
    re.IGNORECASE,
)
# What waits for somebody says so in words that no table has: of an error of general type that is no proof that the fault is its own
_WAITED = re.compile(
    r"(?:^|\n)[\w.]{0,120}?(?:TimeoutError|RuntimeError|SystemError|TrainingFailedError|WorkerError|UnavailableError|RpcError|DisconnectError|RestartAbort)\b"
    r".{0,400}?(?:timed? ?out|[Tt]imeout|TIMEOUT|[Dd]eadline ?[Ee]xceeded|DEADLINE_EXCEEDED|UNAVAILABLE|ABORTED|not responding|never (?:arrived|came)|[Uu]nreachable|[Dd]isconnect"
    r"|transport error|tensorpipe|RPCErr|no message from|[Ff]ailed to connect|health check failed)"
)
# NCCL gives no reason: it may be a peer, the network, the node
_NO_REASON = re.compile(
    r"unhandled system error|internal error - please report|nccl(?:Internal|System|UnhandledCuda)Error|unhandled (?:cuda|hip) error"
    r"|\bNCCL error \d|DistBackendError|DistError\b",
    re.IGNORECASE,
)
_REASON = re.compile(r"\b(?:Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'")


def blame_of(words: str) -> Blame:
    """Whom the whole text of an error accuses, its `Last error:` included."""
    if _EITHER.search(words):
        return Blame.UNCLEAR
    if _DEVICE.search(words):
        return Blame.OWN
    if _GROUP.search(words) and _OWN_NODE.search(words):
        return Blame.OWN
    if _PEER.search(words) or _LAUNCHER.search(words) or _SECOND_HAND.search(words):
        return Blame.PEER
    if _SOCKET.search(words) and _GROUP.search(words):
        return Blame.PEER
    if _WAITED.search(words):
        return Blame.UNCLEAR
    silent = _NO_REASON.search(words) is not None and not _REASON.search(words)
    return Blame.UNCLEAR if silent else Blame.OWN


def accuses_others(line: str) -> bool:
    """Whether a library's own words about others stand in this line, and not a launcher's."""
    return _PEER.search(line) is not None and blame_of(line) is Blame.PEER


def blame_of_chain(first: Blame, last: Blame, *, explicit: bool) -> Blame:
    """Whom a chain of exceptions accuses: what began it, not what was made of it.

    `explicit`: raised `from` the first. Else the first was being handled, and may have been an everyday one: what a peer then did
    to the handler leaves it unclear.
    """
    if first is Blame.PEER or last is first:
        return first
    return first if explicit else Blame.UNCLEAR
