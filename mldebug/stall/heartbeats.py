"""From what the ranks' own hooks say to signs of progress: a step of any rank is movement of the run."""

from collections.abc import Mapping

from mldebug.jobs.heartbeat import Heartbeat
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.signals import Progress, ProgressKind

HOOK = "hook"  # the name of this count beside those of logs


def last_step(beats: Mapping[int, Heartbeat]) -> int | None:
    """How far the first of them is; None before the first step."""
    return max((beat.step for beat in beats.values() if beat.step is not None), default=None)


def shortest_timeout(beats: Mapping[int, Heartbeat]) -> float | None:
    """Seconds after which the first rank ends a collective that does not end; None where nobody tells."""
    told = (beat.collective_timeout for beat in beats.values())
    return min((one for one in told if one is not None), default=None)


class HeartbeatProgress:
    """What the hooks of one run have told so far."""

    def __init__(self) -> None:
        self._beats: dict[int, int] = {}  # by rank

    def signals(self, beats: Mapping[int, Heartbeat]) -> tuple[Progress, ...]:
        """All ranks as one signal: its value is the sum of their beats, so it changes when any of them moves."""
        told = {rank: beat for rank, beat in beats.items() if beat.step is not None}
        if not told:
            return ()
        came = max(beat.beats - self._beats.get(rank, 0) for rank, beat in told.items())
        self._beats = {rank: beat.beats for rank, beat in told.items()}
        return (
            Progress(
                kind=ProgressKind.HEARTBEAT,
                value=sum(self._beats.values()),
                at=max(beat.stepped_at for beat in told.values()),
                events=max(1, came),
            ),
        )


def scalars(beats: Mapping[int, Heartbeat]) -> dict[str, float]:
    """What the lowest rank that tells any says of its last step: loss, lr."""
    return next((beats[rank].scalars for rank in sorted(beats) if beats[rank].scalars), {})


class HeartbeatSteps:
    """The steps of the furthest rank, as records of a log that tells each of them at the moment it was reached."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # of the last step, or the mean of those since a look
        self._last: tuple[int, float] | None = None  # step, and when it was reached

    def take(
        self, beats: Mapping[int, Heartbeat], now: float
    ) -> tuple[tuple[LogRecord, ...], float]:
        """The records since the last look, and their moment; none, and `now`, where no step was made."""
        last, step = self._last, last_step(beats)
        if step is None or (last is not None and step == last[0]):
            return (), now
        at = min(beat.stepped_at for beat in beats.values() if beat.step == step)
        if last is not None and step > last[0]:
            at = max(at, last[1])
            self.seconds = (at - last[1]) / (step - last[0]) or None
        self._last = step, at
        between = last is not None and step > last[0] + 1  # a pause belongs to the first of them
        steps = (last[0] + 1, step) if last is not None and between else (step,)
        return tuple(LogRecord(step=one, format=HOOK) for one in steps), at
