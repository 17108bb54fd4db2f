"""Whose failure the last words of a rank tell of: its own, somebody else's, or that is not said. Pure.

Whoever speaks first need not be to blame: a rank whose peer is gone says so before anybody else says anything. So a failure is a
rank's own only where something shows it: the type of its exception (`error_types`), an error of its device or of a process of its own,
or a text and an innermost frame that have nothing to do with others. Words about a peer, a store, a rendezvous, a watchdog, and whatever
passes on another's failure never blame their speaker. All else is unclear, and names nobody with more than low confidence.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from itertools import chain

from mldebug.diagnosis.exits.words import phrases
from mldebug.diagnosis.exits.words.error_types import ErrorType, name_of_type, spaced, type_of


class Blame(StrEnum):
    """Whether an error was caused by the rank itself (`own`), by another rank (`peer`: the rank is a victim), or cannot be told (`unclear`)."""

    OWN = "own"
    PEER = "peer"  # another rank, or "some rank": the speaker is a victim
    UNCLEAR = "unclear"


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_DEVICE = _any(chain(*phrases.DEVICE.values()))
_PEER = _any(chain(*phrases.PEER.values()))
_LAUNCHER = _any(chain(*phrases.LAUNCHERS.values()))
_EITHER = _any(phrases.UNCLEAR)
_RELAYED = _any(phrases.RELAYED)
_OWN = _any(chain(*phrases.OWN.values()))
_OTHERS = re.compile("|".join(phrases.OTHERS), re.IGNORECASE)
# A file, a disk or a port that a library of a process group needs on this node
_OWN_NODE = re.compile(
    r"No space left on device|Too many open files|Cannot allocate memory|EADDRINUSE|Address already in use|failed to listen on any local"
    r"|Unable to find address for"
)
# What any socket may say, that of an object store too: a peer's only where words of a process group stand beside it
_SOCKET = re.compile(
    r"Connection (?:reset by peer|refused|timed out)|Broken pipe|Software caused connection abort"
)
_GROUP = re.compile(r"^(?:RuntimeError|torch\.)|gloo|c10d|nccl|Dist[A-Z]\w*Error", re.IGNORECASE)
# The job's own word that the reason lies elsewhere: ranks that agree to stop
_SECOND_HAND = re.compile(
    r"\bwait(?:ing|ed)?(?: \d+ ?s\w{0,6})? (?:for|on) (?:all )?(?:ranks?|workers?|peers?|processes|hosts)\b"
    r"|\b(?:another|other|some|remote) (?:rank|worker|process|peer)|\bfailed rank|\bon (?:an)?other rank",
    re.IGNORECASE,
)
# The same where it cannot be meant of data: an exception of the job's own may be about ranks
_SAID_OF_OTHERS = re.compile(
    r"\b(?:another|other|some|a remote|one of the|an?) (?:rank|worker|process|peer|host|node)s?\b.{0,12}\b(?:failed|died|crashed|exited|is gone|are gone|was killed|was lost"
    r"|aborted|raised|reported|stopped|did not|has not|is not reachable)"
    r"|\b[Tt]im(?:ed|e) ?out (?:while |in |when )?(?:wait\w*|at|in) .{0,40}\b(?:ranks?|workers?|peers?|process(?:es)?|hosts?|barrier)\b|barrier.{0,20}timed out",
)
_DIFFER = re.compile(
    r"(?=[\s\S]*\b(?:other|all|every|across|between|among|different|each)\s(?:\w+\s){0,2}(?:rank|worker|process|host|node|replica|peer)(?:e?s)?\b)"
    r"[\s\S]*?\b(?:mismatch|disagree|inconsistent|differ(?:s|ent)?\b|not (?:the )?(?:same|equal|identical)|must (?:match|agree|be (?:the same|equal|identical))|out of sync|desync|diverge)",
    re.IGNORECASE,
)
# Words of libraries that stand in an exception of the job's own which quotes them
_QUOTED = re.compile(
    r"\.(?:cc|cpp|hpp|cu):\d|\]:\d{2,5}|<\d{1,5}>|WorkNCCL\(|NCCL error|[Cc]losed by (?:remote )?peer|[Rr]eset by (?:remote )?peer|Dist\w{4,10}Error|HorovodInternalError"
)
_ERRNO = re.compile(
    r"\[Errno (?:1|2|5|6|7|9|11|12|13|14|16|17|18|19|20|21|22|23|24|26|27|28|30|36|39|40|95|98|99|116|122)\]"
)
_PLACE = re.compile(
    r"(?:[\s'\"(:=]|^)/[\w.]|'[\w-]{1,80}\.\w{1,8}'|\b[a-z][a-z\d]{1,9}://(?!\d|localhost|\[)[\w.-]"
)
_ADDRESS = re.compile(
    r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|\blocalhost\b|host='[\w-]{1,80}', port=(?!443|80\b)"
)
_WEB = re.compile(r"https://|\b(?:[\w-]{1,80}\.){1,6}[a-z]{2,8}\b(?=[:/'\")]|$)|port=(?:443|80)\b")
# NCCL gives no reason: it may be a peer, the network, the node
_NO_REASON = re.compile(
    r"unhandled system error|internal error - please report|nccl(?:Internal|System|UnhandledCuda)Error|unhandled (?:cuda|hip) error"
    r"|\bNCCL error \d|DistBackendError|DistError\b",
    re.IGNORECASE,
)
_REASON = re.compile(r"\b(?:Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'")


def blame_of(words: str, *, in_group: bool = False, in_unknown: bool = False) -> Blame:
    """Whether the whole text of an error (with its `Last error:`) shows a failure of the rank itself or of another rank.

    `in_group`: it was raised in communication code; `in_unknown`: in an installed package that may be such code.
    """
    name = name_of_type(words)
    kind = type_of(name)
    if kind is ErrorType.RELAY or _RELAYED.search(words):
        return Blame.PEER
    if kind is ErrorType.LOCAL:
        return Blame.OWN
    if _EITHER.search(words):
        return Blame.UNCLEAR
    text = words.replace(name, "", 1) if name.endswith("TimeoutError") else words
    others = _OTHERS.search(spaced(text)) is not None or _OTHERS.search(text) is not None
    if kind is ErrorType.STATED:
        return _of_statement(words, unclear=in_group and others)
    if kind is ErrorType.SERVICE:
        return Blame.UNCLEAR if _ADDRESS.search(words) else Blame.OWN
    if kind is ErrorType.HTTP:
        return Blame.OWN if _WEB.search(words) and not _ADDRESS.search(words) else Blame.UNCLEAR
    bare = words.strip().rstrip(":") == name
    if kind is ErrorType.SYSTEM and (bare or _ERRNO.search(words) or _PLACE.search(words)):
        return Blame.UNCLEAR if bare else Blame.OWN
    return _of_library(words, shared=kind is ErrorType.SHARED or others or in_group or in_unknown)


def _of_statement(words: str, *, unclear: bool) -> Blame:
    """Of an error by which code says that something is not as it should be."""
    if _SAID_OF_OTHERS.search(words) or (_QUOTED.search(words) and _PEER.search(words)):
        return Blame.PEER
    return Blame.UNCLEAR if unclear or _DIFFER.match(words) else Blame.OWN


def _of_library(words: str, *, shared: bool) -> Blame:
    """Of an error that any code may raise. `shared`: its type, words or place may have to do with others."""
    if _DEVICE.search(words) or _OWN.search(words):
        return Blame.OWN
    if _GROUP.search(words) and _OWN_NODE.search(words):
        return Blame.OWN
    if _PEER.search(words) or _LAUNCHER.search(words) or _SECOND_HAND.search(words):
        return Blame.PEER
    if _SOCKET.search(words) and _GROUP.search(words):
        return Blame.PEER
    if _REASON.search(words):
        return Blame.OWN
    return Blame.UNCLEAR if shared or _NO_REASON.search(words) else Blame.OWN


def accuses_others(line: str) -> bool:
    """Whether a library says in this line that another rank is at fault; lines of launchers do not count."""
    return _PEER.search(line) is not None and blame_of(line) is Blame.PEER


def blame_of_chain(first: Blame, last: Blame, *, explicit: bool) -> Blame:
    """Whom a chain of exceptions accuses: the first exception decides, not those that were raised while it was handled.

    `explicit`: raised `from` the first. Else the first was being handled, and may have been an everyday one: what a peer then did
    to the handler leaves it unclear.
    """
    if first is Blame.PEER or last is first:
        return first
    return first if explicit else Blame.UNCLEAR
