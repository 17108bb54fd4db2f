"""The training figures of one run as the agent stores them, and how they are read back. Pure."""

from typing import NamedTuple

import msgspec

from mldebug.goodput.scalars.history import ENDED_ROWS, HistoryTable
from mldebug.goodput.scalars.rules import TrainingRules

VERSION = 1
FUTURE = 300.0  # seconds by which a stored time may be ahead of the clock


class StoredTraining(msgspec.Struct, kw_only=True):
    """The history of one run with what its rules remember, as it is stored. Times are unix seconds."""

    version: int = VERSION
    run: str
    name: str
    user: str
    uid: int
    script: str
    started_at: float
    looked_at: float
    is_over: bool = False
    table: HistoryTable = msgspec.field(default_factory=HistoryTable)
    rules: TrainingRules = msgspec.field(default_factory=TrainingRules)

    @property
    def job(self) -> tuple[object, ...]:
        """What all runs of one job share."""
        return self.uid, self.user, self.name, self.script

    def look(self, at: float) -> bool:
        """The run was there at this time (unix seconds); return whether it had been taken for over."""
        self.looked_at, self.started_at = at, min(self.started_at, at)
        was_over, self.is_over = self.is_over, False
        if was_over:
            self.rules.go_on()
        return was_over

    def end(self) -> None:
        """The run is over: what lasted ended with its last look, and fewer rows are kept."""
        self.is_over = True
        self.rules.end(self.looked_at)
        self.table.thin(ENDED_ROWS)


class EndedTraining(NamedTuple):
    """The history of a run that is over, held as the bytes that are stored: what its rules remember is needed only where the run, or
    its job with another run, goes on.
    """

    run: str
    uid: int
    job: tuple[object, ...]
    looked_at: float  # unix
    size: int  # values in its table
    data: bytes

    def woken(self) -> StoredTraining:
        """The history with its rules."""
        return msgspec.json.decode(self.data, type=StoredTraining)


def put_down(one: StoredTraining) -> EndedTraining:
    """A history whose run is over, as it is held from then on."""
    data = msgspec.json.encode(one)
    return EndedTraining(one.run, one.uid, one.job, one.looked_at, one.table.size, data)


def read_stored(data: bytes, now: float) -> tuple[StoredTraining | None, str]:
    """A stored history, moved to where the clock is now (unix seconds), or None and why it cannot be used."""
    try:
        found = msgspec.json.decode(data, type=StoredTraining)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"it cannot be read: {error}"
    if found.version != VERSION:
        return None, f"it is of version {found.version}, and this agent reads version {VERSION}"
    problem = found.table.problem()
    if problem:
        return None, problem
    return _moved_back(found, now), ""


def _moved_back(one: StoredTraining, now: float) -> StoredTraining:
    """A history that is from the future, because the clock was set back since it was stored, so that it ends now; another as it is."""
    ahead = max(one.looked_at, one.started_at, *one.table.times[-1:]) - now
    if ahead <= FUTURE:
        return one
    events = [
        msgspec.structs.replace(event, at=event.at - ahead, ended=event.ended and event.ended - ahead)
        for event in one.rules.events
    ]  # fmt: skip
    return msgspec.structs.replace(
        one,
        looked_at=min(now, one.looked_at - ahead),
        started_at=one.started_at - ahead,
        table=msgspec.structs.replace(one.table, times=[at - ahead for at in one.table.times]),
        rules=msgspec.structs.replace(one.rules, events=events),
    )
