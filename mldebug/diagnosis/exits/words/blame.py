"""Whether the last error of a rank is its own failure, another rank's, or does not say. Pure.

The rank that writes an error first need not be to blame: one whose peer is gone writes first. So an
error is a rank's own only where something shows it: the exception's type (`error_types`), an error
of its device or of a child process, or a text and an innermost frame that have nothing to do with
others. Errors about a peer, a store, a rendezvous or a watchdog, and whatever passes on another's
failure, never blame the rank that wrote them. All others are unclear, and name nobody with more
than low confidence.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain

from mldebug.diagnosis.exits.words import phrases
from mldebug.diagnosis.exits.words.error_text import BEFORE
from mldebug.diagnosis.exits.words.error_types import ErrorType, name_of_type, spaced, type_of
from mldebug.diagnosis.exits.words.raised_in import NOWHERE, RaisedIn
from mldebug.diagnosis.exits.words.statements import (
    DATA,
    checks_itself,
    is_elsewhere,
    is_of_itself,
    waited_in_vain,
)


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
_CONTESTED = _any((*phrases.CONTESTED, *phrases.OF_AN_END))
_ARITHMETIC = ("FloatingPointError", "OverflowError", "ArithmeticError")
_NOT_FINITE = re.compile(phrases.NOT_FINITE, re.IGNORECASE)
_LOSS = re.compile(r"\bloss(?:es)?\b", re.IGNORECASE)
_SHARED_NUMBERS = re.compile(phrases.SHARED_NUMBERS, re.IGNORECASE)
_SHARED_SCALES = re.compile(phrases.SHARED_SCALES, re.IGNORECASE)
_NOT_SHARED = re.compile(f"{phrases.BEFORE_REDUCED}|{phrases.OF_A_DATUM}", re.IGNORECASE)
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
    r"|\b(?:because|since|as) (?:the )?(?:rank|worker|process|peer|host|node|replica) \d{1,7} (?:has |was |is )?(?:failed|died|crashed|exited|gone|killed|lost|aborted|raised|reported|stopped)\b"
    r"|\b(?:rank|worker|process|peer|host|node|replica) \d{1,7} (?:has |had )?(?:sent|signal\w{1,4}|requested|called|triggered|asked for) (?:an? |the |for an? )?(?:abort|stop|shut ?down|exit|cancel\w{0,6}|error)\b"
    r"|\b(?:another|other|some|remote) (?:rank|worker|process|peer)|\bfailed rank|\bon (?:an)?other rank",
    re.IGNORECASE,
)
_OTHER = r"(?:ranks?|workers?|members?|peers?|process(?:es)?|hosts?|nodes?|servers?|trainers?|learners?|replicas?|followers?|leader|master|coordinator|stages?|quorum|barriers?)"
# A wait that was in vain, and for whom
_WAITED_FOR_OTHERS = re.compile(
    rf"(?!.{{0,400}}\b(?:must|should|has to|needs to) be\b).{{0,300}}?(?:\btim(?:ed|e)[- ]?out\b.{{0,24}}\b(?:wait\w{{0,4}}|connecting to|trying to (?:connect|reach))\b.{{0,60}}\b{_OTHER}\b"
    rf"|\bwait(?:ed|ing)\b.{{0,12}}\b(?:for|on)\b.{{0,40}}\b{_OTHER}\b.{{0,40}}\btim(?:ed|e)[- ]?out\b|\b\d{{1,6}} ?(?:/|of) ?\d{{1,6}} {_OTHER}\b.{{0,20}}\bafter \d)",
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
# The job as a whole: each of its ranks would say so, and who is first to is chance
_OF_THE_JOB = re.compile(
    r"\bworld[ _-]?size\b|\bMP=\d|\b(?:tensor|pipeline|data|model|expert|context|sequence)[ _-](?:model[ _-])?parallel(?:ism)?[ _-](?:world[ _-])?(?:size|degree)"
    r"|\b(?:DP|TP|PP|EP|CP) (?:world )?size\b|\bnumber of (?:ranks|processes|nodes)\b|\bnum[ _-](?:ranks|processes|nodes)\b|\b\d{1,7} (?:ranks|processes)\b",
    re.IGNORECASE,
)
# Words of libraries that stand in an exception of the job's own which quotes them
_QUOTED = re.compile(
    r"\.(?:cc|cpp|hpp|cu):\d|\]:\d{2,5}|<\d{1,5}>|WorkNCCL\(|NCCL error|[Cc]losed by (?:remote )?peer|[Rr]eset by (?:remote )?peer|Dist\w{4,10}Error|HorovodInternalError"
)
# Bytes that make no sense: read from another process they are that one's, which died while it wrote or was in another call
_OF_BYTES = re.compile(r"_?pickle\.\w+|struct\.error|zlib\.error|json\.decoder\.\w+|Unicode\w+")
# What no other rank can have caused, wherever it was raised
_ALONE = re.compile(r"(?:\w{1,40}\.){0,3}(?:Name|UnboundLocal|Import|ModuleNotFound|Syntax|Indentation|Recursion|NotImplemented|ZeroDivision|Memory|OutOfMemory)Error")  # fmt: skip
# A stream ended before its message: who writes into it may be gone
_ENDED = re.compile(r"\b\d{1,12} bytes read on a total of \d|\b(?:0|zero) bytes (?:read|received)\b|\b(?:unexpected|premature) (?:end of stream|EOF|eof)\b|\bstream (?:was )?(?:closed|ended)\b")  # fmt: skip
_OF_FILES = ("FileNotFoundError", "FileExistsError", "PermissionError", "BlockingIOError")
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
    r"|\bNCCL error \d|DistBackendError|DistError\b"
    # another device was only waited for; what it waited for, lines below say, if any
    r"|(?:ACL|NPU|npu\w{1,40}).{0,60}synchroni[sz]e\w{0,24}(?: failed|,? error code)|stream sync(?:hronize)? timeout",
    re.IGNORECASE,
)
# What NCCL was told by a device that is broken or full; all else ("invalid argument") may come of what GPUs set up together
_REASON = re.compile(
    r"\b(?:Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'[^'\n]{0,60}(?:memory|launch|illegal|misaligned|ECC|assert|hardware|ordinal|no CUDA|busy or|driver)"
)
# A wait that was in vain, in whatever words: of whom or for what the text alone does not tell
_IN_VAIN = re.compile(
    r"\b[Tt]im(?:ed|e)[- ]?out\b.{0,20}\b(?:wait|after|for)|\b[Ww]ait(?:ed|ing)\b|\b[Gg](?:ave|iving) up\b|\bnever (?:\w+ed|came)\b|\bafter \d[\d.]* ?(?:s|sec\w{0,4}|min\w{0,4}|ms)\b"
)
# What a job's own `raise` says of its data, numbers or settings
_OF_ITS_DATA = re.compile(
    rf"\b(?:{DATA}|nan|inf|(?:non-?|not )finite|overflow|checksum|corrupt\w{{0,4}}|malformed|unsupported|unknown|invalid|dtype|shapes?|dimensions?|out of range|batch size"
    r"|config\w{0,10}|argument)\b",
    re.IGNORECASE,
)
# A piece of memory that another process has shared, and that may be gone with it
_OF_A_HANDLE = re.compile(
    r"^FileNotFoundError\b|invalid (?:resource handle|argument|device context)|mapping of buffer|operation not (?:supported|permitted)|CUDA_ERROR_(?:INVALID_(?:HANDLE|VALUE|CONTEXT)|NOT_(?:SUPPORTED|PERMITTED)|MAP_FAILED)"
)
# C++ checks of Paddle, which come as whatever type of Python's: `OSError: (External) NCCL error(2), …`
_ENFORCED = re.compile(
    r"\w{1,40}: \((?:External|Unavailable|PreconditionNotMet|InvalidArgument|ExecutionTimeout|Fatal|Unimplemented|OutOfRange|NotFound|PermissionDenied)\) "
)
# The status codes of gRPC with which errors of JAX and of accelerators' runtimes begin: what the program asked for is its own, all else any process of the job may have caused
_STATUS = re.compile(
    r"[\w.]{1,120}: (?:Bad StatusOr access: |.{0,60}failed: )?"
    r"(?:CANCELLED|UNKNOWN|DEADLINE_EXCEEDED|ABORTED|FAILED_PRECONDITION|INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED): "
)
# Kernels that wait for other GPUs print this and trap: DeepEP, NVSHMEM, one-shot all-reduces
_DEVICE_WAIT = re.compile(phrases.DEVICE_WAIT, re.IGNORECASE)
_TRAPPED = re.compile(
    r"unspecified launch failure|illegal instruction|CUDA_ERROR_LAUNCH_FAILED|CUDA_ERROR_ILLEGAL_INSTRUCTION"
)


def blame_of(words: str, place: RaisedIn = NOWHERE) -> Blame:
    """Whether an error is a failure of the rank itself or of another rank. One about what others have sent may be of either.

    `words`: its whole text, with NCCL's `Last error:`.

    `place`: where it was raised; not needed for errors of libraries or of the kernel.
    """
    found = _judge_words(words, place)
    if found is not Blame.OWN or not place.of_received or _ALONE.fullmatch(name_of_type(words)):
        return found
    by_machine = any(one.search(words) for one in (_ERRNO, _DEVICE))
    return Blame.OWN if by_machine else Blame.UNCLEAR


@lru_cache(maxsize=64)  # all ranks of a job that lost a peer say the same
def _judge_words(words: str, place: RaisedIn) -> Blame:
    """Whose failure an error is by its type, its text and the frame in which it was raised."""
    name = name_of_type(words)
    kind = type_of(name)
    if kind in (ErrorType.STATED, ErrorType.SYSTEM) and _ENFORCED.match(words):
        kind = ErrorType.GENERAL
    if kind is ErrorType.RELAY or _RELAYED.search(words):
        return Blame.PEER
    by_machine = any(one.search(words) for one in (_ERRNO, _DEVICE, _OWN))
    if not by_machine and (kind is not ErrorType.LOCAL or name in _ARITHMETIC) and _is_of_all(words):  # fmt: skip
        return Blame.PEER if is_elsewhere(words) else Blame.UNCLEAR
    if _CONTESTED.search(words) or (place.opened and _OF_A_HANDLE.search(words)):
        return Blame.UNCLEAR
    in_vain = _ERRNO.search(words) is None and _IN_VAIN.search(words) is not None
    bare = all(line.strip().rstrip(":") == name for line in words.split("\n") if line.strip())
    foreseen = not (place.own_raise or place.unknown)
    of_itself = checks_itself(place.source, foreseen=foreseen) if bare else is_of_itself(words[len(name) :].lstrip(": "), foreseen=foreseen)  # fmt: skip
    itself = _OWN.search(words) is not None or of_itself
    stated = kind is ErrorType.STATED or (place.stated and "." not in name)
    if kind is ErrorType.LOCAL and stated and (in_vain or not itself):
        return _of_statement(words, unclear=True)
    if kind is ErrorType.LOCAL and not (in_vain and name in _OF_FILES):
        garbled = place.group and _OF_BYTES.fullmatch(name) is not None
        return Blame.UNCLEAR if garbled or _DIFFER.match(words) else Blame.OWN
    if _EITHER.search(words):
        return Blame.UNCLEAR
    text = words.replace(name, "", 1) if name.endswith("TimeoutError") else words
    others = _OTHERS.search(spaced(text)) is not None or _OTHERS.search(text) is not None
    if kind is ErrorType.STATED:
        return _of_statement(words, unclear=in_vain or (place.group and others) or not itself)
    if kind is ErrorType.SERVICE:
        return Blame.UNCLEAR if _ADDRESS.search(words) else Blame.OWN
    if kind is ErrorType.HTTP:
        if _WEB.search(words) and not _ADDRESS.search(words):
            return Blame.OWN
        return Blame.PEER if _PEER.search(words) else Blame.UNCLEAR
    if kind is ErrorType.SYSTEM and stated and not itself and not _ERRNO.search(words):
        return _of_statement(words, unclear=True)
    if kind is ErrorType.SYSTEM and not in_vain and (bare or _ERRNO.search(words) or _PLACE.search(words)):  # fmt: skip
        return Blame.UNCLEAR if bare else Blame.OWN
    if place.stated and not by_machine and waited_in_vain(words):
        return Blame.PEER
    not_of_itself = in_vain or not itself or not _OF_ITS_DATA.search(spaced(words))
    unforeseen = (bare or place.own_raise) and not_of_itself
    ended = _ENDED.search(words) is not None
    shared = kind is ErrorType.SHARED or ended or others or place.group or place.unknown
    return _of_library(words, shared=shared or unforeseen)


def _is_of_all(words: str) -> bool:
    """Whether a number is not finite of which every rank holds the same: a norm, gradients or a loss after their reduction, weights, a loss scale."""
    words = f"{words}\n{spaced(words)}"
    if _SHARED_SCALES.search(words):
        return True
    shared = _NOT_FINITE.search(words) and _SHARED_NUMBERS.search(words)
    return shared is not None and _NOT_SHARED.search(words) is None


def may_be_of_all(words: str) -> bool:
    """Whether an error says that a loss is not finite, and not which: of a loss that was reduced before, every rank would have said so."""
    words = f"{words}\n{spaced(words)}"
    return _LOSS.search(words) is not None and _NOT_FINITE.search(words) is not None and _NOT_SHARED.search(words) is None  # fmt: skip


def _of_statement(words: str, *, unclear: bool) -> Blame:
    """Of an error by which code says that something is not as it should be."""
    if (
        is_elsewhere(words)
        or _SAID_OF_OTHERS.search(words)
        or _WAITED_FOR_OTHERS.match(words)
        or waited_in_vain(words)
        or (_QUOTED.search(words) and _PEER.search(words))
    ):
        return Blame.PEER
    return (
        Blame.UNCLEAR if unclear or _DIFFER.match(words) or _OF_THE_JOB.search(words) else Blame.OWN
    )


def _of_library(words: str, *, shared: bool) -> Blame:
    """Of an error that any code may raise. `shared`: its type, words or place may have to do with others."""
    if is_elsewhere(words):
        return Blame.PEER
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
    without_reason = _NO_REASON.search(words) or _STATUS.match(words)
    return Blame.UNCLEAR if shared or without_reason or _OF_THE_JOB.search(words) else Blame.OWN


def waited_on_device(lines: Sequence[str], start: int, words: str) -> bool:
    """Whether a CUDA error comes from a kernel that ended itself because another rank did not come: a library says so shortly before.

    `words`: the error; `start`: the line where its traceback begins.
    """
    trapped = _TRAPPED.search(words) is not None
    return trapped and any(
        _DEVICE_WAIT.search(line) for line in lines[max(0, start - BEFORE) : start]
    )


def accuses_others(line: str) -> bool:
    """Whether a library says in this line that another rank is at fault; False for lines of launchers."""
    return _PEER.search(line) is not None and blame_of(line) is Blame.PEER


def blame_of_chain(first: Blame, last: Blame, *, explicit: bool) -> Blame:
    """Whom a chain of exceptions blames: the first one decides.

    `explicit`: the later one was raised `from` it.

    If not, and the two disagree, the answer is UNCLEAR unless the first blames a peer: the first
    may have been harmless, and the later one the real failure.
    """
    if first is Blame.PEER or last is first:
        return first
    return first if explicit else Blame.UNCLEAR
