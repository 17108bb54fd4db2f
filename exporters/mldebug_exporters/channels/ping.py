"""Dead man's switch: while the agent's main loop runs, it requests an address regularly.

A service there alerts when requests stop.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mldebug.alerts.model import Channel, EventMessage
from mldebug.core.units import Duration
from mldebug_exporters.channels._http import problem_of, request
from mldebug_exporters.channels._secrets import secret


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address to request regularly, for example of healthchecks.io.

    It may stand in a file, as it is a secret: with it anybody can send pings.
    """

    url: str = ""  # this or url_file must be set
    url_file: Path | None = None  # or a file that holds it
    every: Annotated[Duration, msgspec.Meta(ge=1, le=86400)] = 60.0  # between two pings
    method: Literal["GET", "POST"] = "GET"  # what the other side takes
    ca_file: Path | None = None  # of a private certificate authority
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0  # of one request


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Check what the types of the options cannot: yields (option, what is wrong with it)."""
    if bool(options.url) == bool(options.url_file):
        yield "url", "give either url or url_file"
    elif options.url and (wrong := problem_of(options.url)):
        yield "url", wrong


class Ping:
    """Requests an address every `every` seconds.

    It gets no alerts: the service at that address alerts when the requests stop.
    """

    repeat = 0.0

    def __init__(self, options: Options) -> None:
        self.every = options.every
        self._options = options

    def send(self, message: EventMessage) -> None:
        """Send one request; nothing of the message is in it.

        Raises where it was not accepted (see `_http.request`).
        """
        options = self._options
        url = options.url or secret(options.url_file)
        headers = {"User-Agent": "mldebug"}
        request(url, b"", headers, options.timeout, options.ca_file, options.method)


def create(options: Options) -> Channel:
    """Build the channel `ping`, a dead man's switch: it requests an address regularly while the agent's main loop runs."""
    return Ping(options)
