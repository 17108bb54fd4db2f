"""Parses an answer of NCCL RAS, JSON or text. A job may have written anything into it, so all is bounded, cleaned, or refused.

JSON since NCCL 2.28.7, where 2.28.7 and 2.28.9 leave a comma out; text (`mldebug.capture.nccl_ras.text_form`) since 2.24. Fields are those of
`src/ras/client_support.cc`.
"""

import re
from typing import Annotated

import msgspec

from mldebug.capture.nccl_ras.communicators import communicator
from mldebug.capture.nccl_ras.text_form import MAX_NAME, parse_text
from mldebug.core.model import NcclAbsent, NcclCommunicator, NcclRank, NcclRas
from mldebug.core.ranksets import MAX_RANK
from mldebug.core.redact import clean

MAX_BYTES = 32 << 20
MAX_COMMUNICATORS = 4096
MAX_RANKS = 262_144  # of all communicators together
MAX_OBJECTS = (
    4 * MAX_RANKS
)  # braces: a rank has three. `{"rank":1}` is ten bytes, and takes 150 once it is decoded
MAX_FUNCTIONS = 64  # of one rank; NCCL has about ten

Whole = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Name = Annotated[str, msgspec.Meta(max_length=400)]

_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s*\n\s*"status")')
_ERRORS = {0: "", 7: "initializing"}  # ncclSuccess, ncclInProgress


class _Status(msgspec.Struct, frozen=True):
    init_state: Whole = 0
    async_error: Whole = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False

    @property
    def word(self) -> str:
        """The most telling of them."""
        if self.abort_flag:
            return "aborted"
        if self.finalize_called or self.destroy_flag:
            return "finalized"
        for code in (self.init_state, self.async_error):
            if code not in _ERRORS:
                return f"error {code}"
        return _ERRORS[self.init_state] or "running"


class _Gone(msgspec.Struct, frozen=True):
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct, frozen=True):
    rank: Whole
    host: Name = ""
    pid: Whole = -1
    cuda_dev: Whole = -1
    status: _Status = _Status()
    collective_counts: Annotated[dict[Name, Count], msgspec.Meta(max_length=MAX_FUNCTIONS)] = {}


class _Absent(msgspec.Struct, frozen=True):
    rank: Whole
    host: Name = ""
    pid: Whole = -1
    cuda_dev: Whole = -1
    status: _Gone = _Gone()


class _Communicator(msgspec.Struct, frozen=True):
    hash: Name
    size: Whole
    secondary_hash: Name = ""
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_Absent, ...] = ()


class _Collection(msgspec.Struct, frozen=True):
    collection_time_sec: float = 0.0
    timeouts_count: Whole = 0


class _Answer(msgspec.Struct, frozen=True):
    nccl_version: Name
    communicators: tuple[_Communicator, ...]
    ras: _Collection = _Collection()


def parse(data: bytes) -> NcclRas:
    """Parse an answer of NCCL RAS, JSON or text. Raises ValueError with the reason."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    if not data.strip():
        raise ValueError("it is empty")
    return (
        _parse_json(data)
        if data.lstrip()[:1] == b"{"
        else parse_text(data.decode(errors="replace"))
    )


def _parse_json(data: bytes) -> NcclRas:
    if data.count(b"{") > MAX_OBJECTS:
        raise ValueError(f"it has more than {MAX_OBJECTS:,} objects")
    try:
        found = msgspec.json.decode(_NO_COMMA.sub(rb"\1,\2", data), type=_Answer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no answer of NCCL RAS: {clean(str(error), 200)}") from error
    rows = sum(
        len(communicator.ranks) + len(communicator.missing_ranks)
        for communicator in found.communicators
    )
    if len(found.communicators) > MAX_COMMUNICATORS or rows > MAX_RANKS:
        raise ValueError(f"it tells {len(found.communicators)} communicators and {rows} ranks")
    return NcclRas(
        version=clean(found.nccl_version, MAX_NAME),
        communicators=tuple(map(_communicator, found.communicators)),
        seconds=found.ras.collection_time_sec,
        timeouts=max(0, found.ras.timeouts_count),
    )


def _communicator(raw: _Communicator) -> NcclCommunicator:
    key = ":".join(part for part in (raw.hash, raw.secondary_hash) if part)
    return communicator(
        clean(key, 2 * MAX_NAME),
        max(0, raw.size),
        [_rank(rank) for rank in raw.ranks if 0 <= rank.rank <= MAX_RANK],
        [_absent(rank) for rank in raw.missing_ranks if 0 <= rank.rank <= MAX_RANK],
    )


def _rank(raw: _Rank) -> NcclRank:
    counts = {clean(name, MAX_NAME): many for name, many in raw.collective_counts.items() if many}
    return NcclRank(
        rank=raw.rank,
        host=host(raw.host),
        pid=at_least(raw.pid, least=1),
        gpu=at_least(raw.cuda_dev),
        status=raw.status.word,
        counts=counts,
    )


def _absent(raw: _Absent) -> NcclAbsent:
    return NcclAbsent(
        rank=raw.rank,
        host=host(raw.host),
        pid=at_least(raw.pid, least=1),
        gpu=at_least(raw.cuda_dev),
        unresponsive=raw.status.unresponsive,
        dead=raw.status.considered_dead,
    )


def host(name: str) -> str:
    """A host's address, cleaned; "" for NCCL's "unknown"."""
    return "" if name == "unknown" else clean(name, MAX_NAME)


def at_least(number: int, least: int = 0) -> int | None:
    """The number; None where it is below `least`, because NCCL writes -1 for values that it does not know."""
    return number if number >= least else None
