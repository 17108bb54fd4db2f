"""How many steps each run makes in a second, by its step numbers of the last half minute. Pure."""

from collections.abc import Iterable

from mldebug.status.merged_runs import RunOnNodes

WINDOW = 30.0  # seconds
LEAST = 3.0  # seconds of it, from which on a rate is measured


class StepRates:
    """Remembers the step numbers of the last half minute."""

    def __init__(self) -> None:
        self._past: dict[str, list[tuple[float, int]]] = {}

    def look(self, runs: Iterable[RunOnNodes], now: float) -> dict[str, float]:
        """Steps per second by id of the run: measured, or at first by the time that its steps usually take. `now`: monotonic seconds."""
        past: dict[str, list[tuple[float, int]]] = {}
        found: dict[str, float] = {}
        for one in runs:
            run = one.first
            if one.step is None:
                continue
            points = [each for each in self._past.get(run.id, ()) if each[0] >= now - WINDOW and each[1] <= one.step]  # fmt: skip
            past[run.id] = [*points, (now, one.step)]
            (began, step), span = past[run.id][0], now - past[run.id][0][0]
            if span >= LEAST:
                found[run.id] = (one.step - step) / (now - began)
            elif run.step_seconds and not run.incident:
                found[run.id] = 1.0 / run.step_seconds
        self._past = past
        return found
