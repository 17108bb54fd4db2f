"""Captures runs because an alert of Alertmanager asks for it: finds the runs that the alert's labels mean, and captures each once."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from mldebug.alerts.alertmanager import RunLabels, chosen, sentence, wanted
from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.model import Job
from mldebug_agents.alerts.action_runner.capture_requests import CaptureRequests

OK, BAD_REQUEST, NOT_FOUND, BUSY = 200, 400, 404, 503


class AlertCapture(msgspec.Struct, frozen=True):
    """One run that is captured because of an alert of Alertmanager."""

    run: str
    name: str = ""
    asked_seconds_ago: float = 0.0  # 0: the capture was ordered now; else one serves both


class AlertsAnswer(msgspec.Struct, frozen=True):
    """The JSON answer to a payload of Alertmanager: the captures that were ordered, and in `error` why there are none."""

    captures: tuple[AlertCapture, ...] = ()
    error: str = ""


class _MeantRun(NamedTuple):
    name: str
    job: Job | None


Elsewhere = Callable[[Iterable[str]], Iterator[str]]
"""Of these names, the ids of runs that other nodes show."""


class AlertReceiver:
    """Receives Alertmanager's webhook and captures the runs that its alerts name. Called in threads of the HTTP server."""

    def __init__(
        self, captures: CaptureRequests, node: str, elsewhere: Elsewhere | None = None
    ) -> None:
        self._captures, self._node, self._elsewhere = captures, node, elsewhere

    def answer(self, body: bytes) -> tuple[int, bytes]:
        """Handle one payload. Returns HTTP status and JSON body: 200, 400 (not a payload of alerts), 404 (no such run), 503
        (too many captures wait). Alertmanager sends it again after 503, and logs other errors.
        """
        try:
            wanted_runs = wanted(body)
        except UsageError as error:
            return BAD_REQUEST, msgspec.json.encode(AlertsAnswer(error=error.message))
        jobs = self._captures.jobs
        found = {
            one: [_MeantRun(job.id, job) for job in chosen(jobs, one, self._node)]
            for one in wanted_runs
        }
        unknown = [one for one, meant in found.items() if not meant]
        meant = [one for many in found.values() for one in many]
        meant += [_MeantRun(name, None) for name in self._others(unknown)] if unknown else []
        try:
            ordered = tuple(self._order(one) for one in dict.fromkeys(meant))
        except MldebugError as error:
            return BUSY, msgspec.json.encode(AlertsAnswer(error=error.message))
        why = sentence(unknown, self._node, jobs) if unknown and not ordered else ""
        return NOT_FOUND if why else OK, msgspec.json.encode(AlertsAnswer(ordered, why))

    def _order(self, one: _MeantRun) -> AlertCapture:
        age = self._captures.ask(one.name, one.job).age
        name = one.job.name if one.job is not None else ""
        return AlertCapture(run=one.name, name=name, asked_seconds_ago=round(age, 3))

    def _others(self, unknown: Iterable[RunLabels]) -> list[str]:
        names = [one.run or one.job for one in unknown if one.run or one.job]
        return list(self._elsewhere(names)) if self._elsewhere is not None and names else []
