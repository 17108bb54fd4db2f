"""Short ways to write Flight Recorder captures in tests."""

import msgspec

from mldebug.core.model import (
    Collective,
    FlightGroup,
    FlightRecord,
    NodeCapture,
    ProcessCapture,
)
from mldebug.core.ranksets import fold_ranks
from shared.diagnosis.builders import WAITER, capture, process, rank, still

LONG_AGO = 1_600_000_000.0  # before the captures of `builders`


def call(
    op: str, sequence: int, *, done: bool = False, elements: int = 64, at: float = LONG_AGO
) -> Collective:
    """One call; `at`: when it was made, unix."""
    return Collective(
        op=op, sequence=sequence, done=done, elements=elements, dtypes="Float", created_at=at
    )


def group(
    *calls: Collective,
    name: str = "0",
    ranks: tuple[int, ...] = (0, 1, 2, 3),
    backend: str = "gloo",
) -> FlightGroup:
    """A group after these calls."""
    pending = [one.sequence for one in calls if not one.done]
    newest = max((one.sequence for one in calls), default=0)
    return FlightGroup(
        name=name, backend=backend, members=fold_ranks(ranks), calls=calls, enqueued=newest,
        completed=min(pending, default=newest + 1) - 1,
    )  # fmt: skip


def waits_in(op: str, sequence: int, *, elements: int = 64, **kw) -> FlightGroup:
    """A group whose last call hangs; the one before is done."""
    before = call("all_reduce", sequence - 1, done=True)
    return group(before, call(op, sequence, elements=elements), **kw)


def has_done(op: str, sequence: int, *, elements: int = 64, **kw) -> FlightGroup:
    """A group all of whose calls are done."""
    return group(call(op, sequence, done=True, elements=elements), **kw)


def job(
    records: dict[int, tuple[FlightGroup, ...] | None],
    *,
    odd: dict[int, ProcessCapture] | None = None,
    world: int = 4,
    sends: dict[int, tuple[str, ...]] | None = None,
) -> NodeCapture:
    """All ranks wait at one line; `records` says what their Flight Recorders tell, None that nobody could ask."""
    ranks = []
    for number in range(world):
        value = records.get(number)
        waiter = process(*WAITER, move=still())
        one = rank(number, (odd or {}).get(number, waiter), world=world)
        flight = (
            None
            if value is None
            else FlightRecord(groups=value, sends=(sends or {}).get(number, ()))
        )
        ranks.append(msgspec.structs.replace(one, flight=flight))
    return capture(*ranks, world=world)
