"""The last words of ranks in a log: whose they are, which error they end with, and whether they only blame a peer. Pure.

torch marks the lines of an uncaught exception with `[rank3]:`, `torchrun --tee` marks lines with `[default3]:` (the local
rank). All other lines belong to nobody in particular, unless the log is one rank's own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mldebug.endings.cudamemory import device_memory
from mldebug.endings.facts import RankError
from mldebug.redact import safe_line

_MARK = re.compile(r"\[(?P<role>rank|[A-Za-z_]\w{0,30}?)(?P<number>\d{1,7})\]: ?")
_HEADER = "Traceback (most recent call last):"
_ERROR = re.compile(r"(?P<name>[A-Za-z_][\w.]{0,120})(?:: .*|:?)$")
_NOT_OURS = ("ChildFailedError", "SignalException", "SystemExit", "KeyboardInterrupt")
_FATAL = re.compile(
    r"^(?:Fatal Python error: .*|terminate called after throwing an instance of .*|\s*what\(\): +.*)$"
)
_PEER = re.compile(
    r"Connection closed by peer|Socket Timeout|Socket closed"
    r"|Timed out waiting \d+ ?ms for (?:recv|send) operation|[Aa]pplication timeout caused pair closure"
    r"|ncclRemoteError|remote process exit|Watchdog caught collective operation timeout"
    r"|NCCL communicator was aborted|watchdog thread terminated with exception"
    r"|failed to recv, got 0 bytes|Connection was likely closed|DistNetworkError|DistStoreError"
    r"|recvValue failed|sendBytes failed|wait timeout after \d+ ?ms|TCPStore.{0,60}timed? ?out"
    r"|by a remote worker|\[c10d\] The client socket has (?:failed|timed out)",
)
# What any socket may say, that of an object store too: a peer's only where torch's own words stand beside it
_SOCKET = re.compile(r"Connection reset by peer|Broken pipe")
_TORCH = re.compile(r"^(?:RuntimeError|torch\.)|gloo|c10d|nccl|Dist[A-Z]\w*Error", re.IGNORECASE)
# The job's own word that the reason lies elsewhere: ranks that agree to stop
_SECOND_HAND = re.compile(
    r"\b(?:another|other|some|remote|failed) (?:rank|worker|process|peer)|\bon (?:an)?other rank",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|HIP out of memory|XPU out of memory|OutOfMemoryError|^MemoryError"
    r"|(?:CUDA|HIP) error: out of memory|cuda runtime error \(2\)|CUDNN_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (?:can't|not enough memory)"
    r"|Cannot allocate memory",
)
_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d{1,10})[\d, ]{0,200}\).{0,40}(?:killed by signal|exited unexpectedly)"
)
MAX_LINES = 30


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """A log, taken apart."""

    by_rank: dict[int, tuple[str, ...]] = {}
    shared: tuple[str, ...] = ()


def take_apart(lines: Iterable[str], ranks_of_local: Mapping[int, int]) -> Words:
    """Give marked lines to their ranks; `ranks_of_local` turns local ranks into ranks."""
    by_rank: dict[int, list[str]] = {}
    shared: list[str] = []
    for line in lines:
        rank, text = _owner(line, ranks_of_local)
        by_rank.setdefault(rank, []).append(text) if rank is not None else shared.append(text)
    return Words(by_rank={rank: tuple(own) for rank, own in by_rank.items()}, shared=tuple(shared))


def _owner(line: str, ranks_of_local: Mapping[int, int]) -> tuple[int | None, str]:
    mark = _MARK.match(line)
    if mark is None:
        return None, line
    rest = line[mark.end() :]
    number = int(mark["number"])
    if mark["role"] == "rank":
        return number, rest
    inner = _MARK.match(rest)  # [default3]:[rank3]: Traceback …
    if inner and inner["role"] == "rank":
        return int(inner["number"]), rest[inner.end() :]
    return ranks_of_local.get(number), rest


def last_error(lines: Sequence[str], source: str) -> RankError | None:
    """The exception that the last traceback among these lines ends with, or what else tells why a process died.

    The launcher's own exceptions and the KeyboardInterrupt of a process that was told to stop do not count.
    """
    found = _last_traceback(lines)
    if found is None:
        return _fatal(lines, source)
    start, end = found
    error = safe_line(lines[end].strip(), 300)
    told = tuple(safe_line(line, 400) for line in lines[max(start, end - MAX_LINES) : end + 1])
    return RankError(
        error=error,
        lines=told,
        source=source,
        blames_peer=blames_peer(error),
        memory=device_memory(lines[end]),  # whole: the figures stand far behind
    )


def _last_traceback(lines: Sequence[str]) -> tuple[int, int] | None:
    """(first line, line of the error) of the last traceback that is a training process's own."""
    for start in reversed([at for at, line in enumerate(lines) if line.strip() == _HEADER]):
        for at in range(start + 1, min(len(lines), start + 400)):
            if lines[at].startswith(" ") or not lines[at].strip():
                continue
            match = _ERROR.match(lines[at].rstrip())
            if match and match["name"].rpartition(".")[2] not in _NOT_OURS:
                return start, at
            break
    return None


def _fatal(lines: Sequence[str], source: str) -> RankError | None:
    """No traceback: a C++ exception, a fatal error of Python, or the watchdog of a collective."""
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if _FATAL.match(line) or "Watchdog caught collective operation timeout" in line:
            text = safe_line(line.strip(), 300)
            told = tuple(safe_line(one, 400) for one in lines[max(0, at - 10) : at + 1])
            return RankError(
                error=text,
                lines=told,
                source=source,
                blames_peer=blames_peer(text),
                memory=device_memory(line),
            )
    return None


def blames_peer(error: str) -> bool:
    """Is it an error that a rank gets because another one is gone, does not come, or has told it to stop?"""
    if _PEER.search(error) or _SECOND_HAND.search(error):
        return True
    return _SOCKET.search(error) is not None and _TORCH.search(error) is not None


def is_out_of_memory(error: str) -> bool:
    """Does it say that a device or the host had no memory left?"""
    return _OUT_OF_MEMORY.search(error) is not None


def lost_worker(error: str) -> int | None:
    """The pid of the DataLoader worker whose death the error tells of."""
    match = _WORKER.search(error)
    return int(match["pid"]) if match else None
