"""A POST of the message as JSON to an address of your own."""

from collections.abc import Iterator

import msgspec

from mldebug.alerts.http_options import HttpOptions
from mldebug.alerts.model import Channel, EventMessage
from mldebug_exporters.channels._http import request
from mldebug_exporters.channels._login import credentials, login_problems


class Options(HttpOptions, frozen=True, forbid_unknown_fields=True):
    """The address to POST to, and the credentials to send along."""


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Check what the types of the options cannot: yields (option, what is wrong with it)."""
    yield from login_problems(options)


class WebhookChannel:
    """Sends each message as one HTTP POST. Its header Idempotency-Key is the message's id, so a receiver can drop one that comes twice."""

    repeat = 0.0

    def __init__(self, options: Options) -> None:
        self._options = options

    def send(self, message: EventMessage) -> None:
        """POST the message. Raises where it was not accepted (see `_http.request`)."""
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": message.id,
            "User-Agent": "mldebug",
            **credentials(self._options),
        }
        options = self._options
        request(
            options.url, msgspec.json.encode(message), headers, options.timeout, options.ca_file
        )


def create(options: Options) -> Channel:
    """Build the channel `webhook`: a POST of the message as JSON to an address of your own."""
    return WebhookChannel(options)
