"""From the heartbeats of the ranks' hooks (mldebug's code in the training processes) to a progress signal: a step of any rank is
progress of the run.
"""

from collections.abc import Mapping

from mldebug.jobs.heartbeat import Heartbeat
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.signals import Progress, ProgressKind

HOOK = "hook"  # the name of this count beside those of logs


def last_step(beats: Mapping[int, Heartbeat]) -> int | None:
    """The highest step number that any rank has reported; None before the first step."""
    return max((beat.step for beat in beats.values() if beat.step is not None), default=None)


def shortest_timeout(beats: Mapping[int, Heartbeat]) -> float | None:
    """The shortest collective timeout of any rank, in seconds; None where no hook reports one."""
    timeouts = (beat.collective_timeout for beat in beats.values())
    return min((seconds for seconds in timeouts if seconds is not None), default=None)


class HeartbeatProgress:
    """Turns the heartbeats of one run's ranks into a progress signal."""

    def __init__(self) -> None:
        self._beats: dict[int, int] = {}  # by rank

    def signals(self, beats: Mapping[int, Heartbeat]) -> tuple[Progress, ...]:
        """One progress signal for all ranks whose heartbeats have a step (`beats`: by rank); empty where none has. Its value is
        the sum of their heartbeats, so it changes when any rank moves.
        """
        stepped = {rank: beat for rank, beat in beats.items() if beat.step is not None}
        if not stepped:
            return ()
        came = max(beat.beats - self._beats.get(rank, 0) for rank, beat in stepped.items())
        self._beats = {rank: beat.beats for rank, beat in stepped.items()}
        return (
            Progress(
                kind=ProgressKind.HEARTBEAT,
                value=sum(self._beats.values()),
                at=max(beat.stepped_at for beat in stepped.values()),
                events=max(1, came),
            ),
        )


def scalars(beats: Mapping[int, Heartbeat]) -> dict[str, float]:
    """The figures (loss, learning rate) of the last step by name, from the lowest rank that reports any; empty where none does."""
    return next((beats[rank].scalars for rank in sorted(beats) if beats[rank].scalars), {})


class HeartbeatSteps:
    """Turns the steps of the furthest rank into log records, at most two for each reading of the heartbeats: the first and the
    last new step.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None  # of the last step, or the mean of those since a look
        self._last: tuple[int, float] | None = None  # step, and when it was reached

    @property
    def has_steps(self) -> bool:
        """Whether any heartbeat so far had a step."""
        return self._last is not None

    def take(
        self, beats: Mapping[int, Heartbeat], now: float
    ) -> tuple[tuple[LogRecord, ...], float]:
        """The records of new steps since the previous call, and when the newest step was reached (monotonic seconds). Without a
        new step: no records, and `now`.
        """
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
        return tuple(LogRecord(step=number, format=HOOK) for number in steps), at
