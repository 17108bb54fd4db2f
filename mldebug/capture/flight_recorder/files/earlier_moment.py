"""Flight Recorder records that were taken at an earlier moment than those of the other ranks, as the calls themselves show."""

from collections.abc import Iterable, Mapping

from mldebug.capture.flight_recorder.votes import View, newest_call, views
from mldebug.capture.flight_recorder.waits_for import ROOTED
from mldebug.core.model import Collective, FlightRecord


def outrun(records: Mapping[int, FlightRecord]) -> dict[int, str]:
    """By rank, why its record is of an earlier moment than the others: they have finished a call that cannot end without this rank, and its record
    does not hold it. Only a call that is marked as completed counts, and none that members leave at different times.
    """
    found: dict[int, str] = {}
    for view in views(records):
        ended = max(_ended(view), key=lambda call: call.sequence, default=None)
        if ended is None:
            continue
        for rank, group in view.by_rank.items():
            if group.enqueued < ended.sequence and newest_call(records[rank]) < ended.created_at:
                found[rank] = _words(view, ended, group.enqueued)
    return found


def _ended(view: View) -> Iterable[Collective]:
    """The calls that have ended for a member, and can end for nobody before all have come."""
    for group in view.by_rank.values():
        yield from (one for one in group.calls if one.state == "completed" and one.op not in ROOTED)


def _words(view: View, ended: Collective, last: int) -> str:
    call = f"{ended.op} {ended.sequence} of {view.title}"
    return (
        f"it is of an earlier moment: others have finished {call}, which needs this rank, too, and the dump ends "
        + (f"at call {last} there" if last else "before its first call there")
    )
