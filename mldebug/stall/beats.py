"""From what the ranks' own hooks say to signs of progress: a step of any rank is movement of the run."""

from collections.abc import Mapping

from mldebug.heartbeat import Heartbeat
from mldebug.stall.signals import Progress, ProgressKind


def last_step(beats: Mapping[int, Heartbeat]) -> int | None:
    """How far the first of them is; None before the first step."""
    return max((beat.step for beat in beats.values() if beat.step is not None), default=None)


class BeatProgress:
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
