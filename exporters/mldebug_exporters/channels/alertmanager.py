"""Send alerts to Prometheus Alertmanager by its v2 API.

Alertmanager groups and silences them, and notifies people.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from mldebug.alerts.http_options import HttpOptions
from mldebug.alerts.model import Channel, EventMessage
from mldebug.core.units import Duration
from mldebug_exporters.channels._http import request
from mldebug_exporters.channels._login import credentials, login_problems

GRACE = 4  # repeats that may be missed before an alert ends by itself, as Prometheus has it


class Options(HttpOptions, frozen=True, forbid_unknown_fields=True):
    """The address of one Alertmanager and its credentials. A cluster of them needs one channel for each."""

    url: str = ""  # http://alertmanager:9093, without /api
    repeat: Annotated[Duration, msgspec.Meta(ge=1, le=3600)] = 60.0  # while something is wrong


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Yield (option name, what is wrong with it) for a bad URL or contradicting credentials.

    Types were checked before.
    """
    yield from login_problems(options)


class Alertmanager:
    """Posts an alert; the agent calls `send` again every `repeat` seconds while it fires.

    `endsAt` is set a few repeats ahead, so the alert ends by itself if the agent dies.
    """

    def __init__(self, options: Options) -> None:
        self.repeat = options.repeat
        self._options = options

    def send(self, message: EventMessage) -> None:
        """POST the alert. Raises where it was not accepted (see `_http.request`)."""
        options = self._options
        url = f"{options.url.rstrip('/')}/api/v2/alerts"
        headers = {"Content-Type": "application/json", "User-Agent": "mldebug"}
        body = msgspec.json.encode([alert_of(message, options.repeat, datetime.now(UTC))])
        request(url, body, headers | credentials(self._options), options.timeout, options.ca_file)


def alert_of(message: EventMessage, repeat: float, now: datetime) -> dict[str, Any]:
    """The alert as Alertmanager's v2 API takes it. `repeat`: seconds between two posts.

    Labels identify the alert and never change while it fires; texts that may change are annotations.
    """
    words = "".join(part.capitalize() for part in message.kind.split("_"))
    labels = {
        **message.labels,
        "alertname": f"Mldebug{words}",
        "severity": message.severity,
        "node": message.node,
        "event": message.key,
    }
    notes = {
        "summary": message.sentence,
        "verdict": message.verdict,
        "culprit": "; ".join(message.culprits),
        "next_step": "; ".join(message.next_steps),
        "report": message.link,
        "outcome": message.outcome,
    }
    began = datetime.fromisoformat(message.started)  # may lie ahead of a clock that was set back
    later = (max(began, now) + timedelta(seconds=GRACE * repeat)).isoformat().replace("+00:00", "Z")
    link = {"generatorURL": message.link} if message.link.startswith("http") else {}
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in notes.items() if value},
        "startsAt": message.started,
        "endsAt": message.ended or later,
        **link,
    }


def create(options: Options) -> Channel:
    """Build the channel `alertmanager`: send alerts to Prometheus Alertmanager by its v2 API."""
    return Alertmanager(options)
