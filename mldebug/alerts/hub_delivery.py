"""What an agent has sent to the hub of its fleet, and what waits, as status and metrics show it."""

from collections.abc import Iterator

from mldebug.core.model import MeasuredData
from mldebug.core.redact import clean
from mldebug.core.text import plural


class FleetDelivery(MeasuredData, frozen=True, kw_only=True):
    """Events for the hub since the agent's start. `refused`: by reason; `lost`: by kind, for want of space while the hub was away."""

    hub: str
    waiting: int = 0
    waiting_bytes: int = 0
    sent: int = 0
    doubles: int = 0  # of them, that the hub had already
    refused: dict[str, int] = {}
    lost: dict[str, int] = {}
    last_success: float | None = None  # unix; None: not yet
    trouble: str = ""  # why the last try failed
    refusal: str = ""  # what the hub has said of the last event that it refused


def fleet_lines(found: FleetDelivery | None) -> Iterator[str]:
    """Lines of `mldebug status` where something is wrong between this agent and the hub; none where all goes well."""
    if found is None:
        return
    if found.trouble:
        waits = f"{plural(found.waiting, 'event')} {'waits' if found.waiting == 1 else 'wait'}"
        yield f"hub {clean(found.hub, 80)}: {clean(found.trouble, 200)}; {waits} for it"
    if lost := sum(found.lost.values()):
        yield f"{plural(lost, 'event')} for the hub {'was' if lost == 1 else 'were'} dropped: there was no room for them"
    if refused := sum(found.refused.values()):
        yield f"the hub has refused {plural(refused, 'event')}: {clean(found.refusal, 200)}"
