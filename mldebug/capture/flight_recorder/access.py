"""By which methods the Flight Recorder of a rank can be read, given its PyTorch version, backends and environment.

Versions, names and defaults: PyTorch's `ProcessGroupNCCL.cpp`, `FlightRecorderDetail.hpp` and `FlightRecorder.cpp` of 2.7 to 2.15.
The table in docs/flight-recorder-collection.md says the same to people.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from mldebug.core.model import MeasuredData

PIPE, OLD_SIZE, SIZE = (
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_BUFFER_SIZE",
)
OLD_PREFIX, PREFIX = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"
DYNAMIC = "TORCH_FR_DUMP_DYNAMIC_FILE_NAME"
ON_TIMEOUT, FR_ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT"
MONITORING = "TORCH_NCCL_ENABLE_MONITORING"
BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
USE_NCCL2 = "TORCH_DIST_USE_NCCL2"
SOCKET = "TORCH_WORKER_SERVER_SOCKET"
NAMES = frozenset(
    (
        *(PIPE, OLD_SIZE, SIZE, OLD_PREFIX, PREFIX, DYNAMIC, ON_TIMEOUT, FR_ON_TIMEOUT),
        *(MONITORING, *BLOCKING, USE_NCCL2, SOCKET, "HOME", "XDG_CACHE_HOME"),
    )
)  # fmt: skip
"""The only variables that are read of a rank's environment."""

TorchVersion = tuple[int, int]
_FILES_OF = ((2, 7), (2, 10), (2, 13))  # versions that have other files than those before


class AccessKind(StrEnum):
    """The ways to read a rank's Flight Recorder, sorted by how little they disturb the rank."""

    HOOK = "hook"
    SERVER = "worker server"
    DUMP = "dump file"
    FIFO = "debug FIFO"


class RankFacts(MeasuredData, frozen=True, kw_only=True):
    """The facts of one rank that decide how its Flight Recorder can be read. `backends`: as the names of its threads show."""

    rank: int
    torch: TorchVersion | None = None
    nccl: bool = False  # a library of NCCL is mapped
    backends: frozenset[str] = frozenset()
    environ: dict[str, str] = {}  # of `NAMES` only
    hooked: bool = False
    servers: tuple[str, ...] = ()  # places where its worker servers listen


class AccessMethod(NamedTuple):
    """One way to read a rank's Flight Recorder, and the paths that it needs: sockets, files that PyTorch may dump into, or the
    FIFO.
    """

    kind: AccessKind
    places: tuple[str, ...] = ()


class AccessPlan(NamedTuple):
    """How a rank's Flight Recorder can be read. `ways`: methods in the order to try; `closed`: each unusable method with the
    reason; `better`: the setting that would allow a better one.
    """

    ways: tuple[AccessMethod, ...]
    closed: tuple[tuple[AccessKind, str], ...]
    better: str = ""

    @property
    def dumps(self) -> tuple[str, ...]:
        """The files into which this rank's PyTorch writes its dumps; empty where dumps cannot be used."""
        return next((way.places for way in self.ways if way.kind is AccessKind.DUMP), ())


def plan(facts: RankFacts) -> AccessPlan:
    """All ways to read the Flight Recorder of one rank, in the order in which they are tried."""
    ways, closed = [], []
    if facts.hooked:
        ways.append(AccessMethod(AccessKind.HOOK))
    if facts.servers:
        ways.append(AccessMethod(AccessKind.SERVER, facts.servers))
    for kind, refusal, places in (
        (AccessKind.DUMP, _no_dump(facts), dump_files(facts)),
        (AccessKind.FIFO, _no_fifo(facts), (f"{facts.environ.get(PIPE, '')}{facts.rank}.pipe",)),
    ):
        if refusal:
            closed.append((kind, refusal))
        else:
            ways.append(AccessMethod(kind, places))
    return AccessPlan(tuple(ways), tuple(closed), _better(facts, {way.kind for way in ways}))


def dump_files(facts: RankFacts) -> tuple[str, ...]:
    """The paths of the files to which this rank's PyTorch writes its Flight Recorder; several where releases of one version differ."""
    environ, torch = facts.environ, facts.torch or (0, 0)
    named = environ.get(PREFIX) if torch >= (2, 8) else None
    named = named or environ.get(OLD_PREFIX)
    prefixes = (named,) if named else tuple(_default_prefixes(environ, torch))
    return tuple(f"{one}{facts.rank}" for one in prefixes)


def _default_prefixes(environ: Mapping[str, str], torch: TorchVersion) -> Iterator[str]:
    """From 2.9 in the home of the job; `$XDG_CACHE_HOME` counts in 2.13 and, so its sources, somewhere after 2.9."""
    if torch < (2, 9):
        yield "/tmp/nccl_trace_rank_"  # noqa: S108 - PyTorch's choice
        return
    cache = environ.get("XDG_CACHE_HOME")
    if cache:
        yield f"{cache}/torch/comm_lib_trace_rank_"
    if not cache or torch < (2, 13):
        yield f"{environ.get('HOME') or '/tmp'}/.cache/torch/comm_lib_trace_rank_"  # noqa: S108


def possible_dumps(facts: RankFacts) -> tuple[str, ...]:
    """The files into which the rank may dump: by its PyTorch version or, while that is not known, those of every version."""
    if facts.torch is not None:
        return plan(facts).dumps
    guesses = (msgspec.structs.replace(facts, torch=version) for version in _FILES_OF)
    return tuple(dict.fromkeys(path for one in guesses for path in dump_files(one)))


def is_nccl2(facts: RankFacts) -> bool:
    """Whether the name "nccl" stands for PyTorch's backend nccl2 in this process: by its threads, else by its setting, else by
    its version (an option since 2.14, the default since 2.15).
    """
    if facts.backends & {"nccl", "nccl2"}:
        return "nccl" not in facts.backends
    chosen = facts.environ.get(USE_NCCL2)
    torch = facts.torch or (0, 0)
    return torch >= (2, 14) and (_true(chosen) if chosen else torch >= (2, 15))


def expected(facts: RankFacts) -> bool:
    """Whether the rank can have a Flight Recorder: not with gloo alone, nor before its first process group."""
    if facts.servers or facts.hooked:
        return True
    return bool(facts.backends & {"nccl", "nccl2"}) or (not facts.backends and facts.nccl)


def _gloo_alone(facts: RankFacts) -> bool:
    return facts.backends == {"gloo"}


def records(facts: RankFacts) -> bool:
    """Whether PyTorch's NCCL recorder records calls: as the buffer size set in the environment says; without one, from PyTorch
    2.11 on or where mldebug's hook is loaded.
    """
    torch = facts.torch or (0, 0)
    names = (SIZE, OLD_SIZE) if torch >= (2, 8) else (OLD_SIZE,)
    size = next((facts.environ[name] for name in names if name in facts.environ), None)
    if size is None:
        return facts.hooked or torch >= (2, 11)
    return _number(size) > 0


def _no_dump(facts: RankFacts) -> str:
    """Why PyTorch dumps nothing when a collective has taken too long."""
    if facts.torch is None:
        return "its PyTorch is not known"
    if _gloo_alone(facts):
        return "gloo never dumps by itself"
    if not records(facts):
        return "its recorder is off"
    for name in (ON_TIMEOUT, FR_ON_TIMEOUT, MONITORING):
        if name in facts.environ and not _true(facts.environ[name]):
            return f"with {name}={facts.environ[name][:16]} it is never written"
    if _true(facts.environ.get(DYNAMIC)):
        return f"{DYNAMIC} lets the job choose the file while it runs"
    if not all(path.startswith("/") for path in dump_files(facts)):
        return "the job gave no absolute path for it"
    return ""


def _no_fifo(facts: RankFacts) -> str:
    environ, torch = facts.environ, facts.torch
    if torch is None:
        return "its PyTorch is not known"
    if _gloo_alone(facts):
        return "gloo makes none"
    if is_nccl2(facts) and torch < (2, 16):
        return "nccl2 makes none before PyTorch 2.16"
    if not environ.get(PIPE):
        return f"{PIPE} is not set"
    return _why_fifo_is_ignored(facts, environ, torch)


def _why_fifo_is_ignored(facts: RankFacts, environ: Mapping[str, str], torch: TorchVersion) -> str:
    """Why PyTorch would not read a debug FIFO that the environment asks for; "" where it does."""
    if not environ[PIPE].startswith("/"):
        return f"{PIPE} is no absolute path"
    if torch < (2, 11) and _number(environ.get(OLD_SIZE, "0")) <= 0:
        return f"PyTorch before 2.11 makes it only where {OLD_SIZE} is set, too"
    if not records(facts):
        return "its recorder is off"
    if any(_true(environ.get(name)) for name in BLOCKING):
        return f"with {BLOCKING[0]} nobody reads it"
    return _no_dump(facts)  # the same thread does both, into the same file


def _better(facts: RankFacts, have: set[AccessKind]) -> str:
    """One sentence on what to set the next time; "" where the best way is there, or nothing known would help."""
    torch = facts.torch
    if AccessKind.HOOK in have or torch is None:
        return ""
    if _gloo_alone(facts) and torch < (2, 13):
        return "gloo records its calls from PyTorch 2.13 on"
    start = "start the job with `mldebug run -- …`: its ranks then tell their Flight Recorder when they are asked"
    if AccessKind.FIFO in have or AccessKind.SERVER in have or _gloo_alone(facts):
        return start
    if is_nccl2(facts) and torch < (2, 16):
        return start
    size = f"{OLD_SIZE}=2000 " if torch < (2, 11) or not records(facts) else ""
    return f"{start}; or set {size}{PIPE}=/tmp/fr_"


def _true(text: str | None) -> bool:
    """As PyTorch reads a switch."""
    return (text or "").lower() in ("y", "yes", "1", "t", "true")


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
