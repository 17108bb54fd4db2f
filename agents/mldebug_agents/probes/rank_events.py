"""Events of the ranks of the collectives probe, validated: with `--read` they come from a file of unknown origin."""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from mldebug.core.errors import EvidenceError
from mldebug.probes.collectives import OPS
from mldebug_agents.probes.child import Event

Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Row = Annotated[list[Seconds], Meta(min_length=1)]
T = TypeVar("T")
SHORTEST = 1e-10  # seconds


class MeasuredRanks(msgspec.Struct, frozen=True, kw_only=True):
    """The event `joined`: what the ranks measure with. `ranks` 0: it has not come yet."""

    ranks: int = 0
    backend: str = ""
    gpu: str = ""  # the model, or all of them where they differ; "" on CPUs
    nccl: str = ""
    torch: str = ""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """The event `skipped`: one op and size that cannot be measured."""

    op: str
    bytes: Bytes
    reason: str


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The event `failed`, which a rank of a probe sends to the process that started it: an exception has ended the rank. `kind` is the exception's class,
    `error` its text.
    """

    event: str
    rank: int
    kind: str
    error: str


class Died(msgspec.Struct, frozen=True, kw_only=True):
    """The event `died`: a rank ended before it was done; a negative code is a signal."""

    event: str
    rank: int
    code: int


FAILURES: dict[str, type[Failed | Died]] = {"failed": Failed, "died": Died}


class CollectiveTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The event `cell`: times of one op and size, a row of seconds for each rank, and the wrong elements that each counted."""

    op: str
    bytes: Bytes
    times: Annotated[list[Row], Meta(min_length=1)]
    wrong: list[Bytes | None]

    def __post_init__(self) -> None:
        """ValueError for what does not fit together."""
        if self.op not in OPS:
            raise ValueError("there is no such op")
        if len({len(row) for row in self.times}) > 1 or len(self.wrong) != len(self.times):
            raise ValueError("each rank has other figures")
        if any(0 < one < SHORTEST for row in self.times for one in row):
            raise ValueError("nothing takes less than a nanosecond")


def checked_event(event: Event, kind: type[T]) -> T:
    """An event as a struct of that kind; raises EvidenceError where it is not valid."""
    try:
        return msgspec.convert(event, kind)
    except msgspec.ValidationError as error:
        what = f"a line {str(event['event'])[:20]!r} is none that a probe's rank says: {error}"
        raise EvidenceError(what, "name what the line of --print-commands has printed") from None
