"""Slack, by an incoming webhook; Mattermost and Rocket.Chat take the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from mldebug.alerts.message import for_chat, plain_text
from mldebug.alerts.model import Channel, EventMessage
from mldebug.core.units import Duration
from mldebug_exporters.channels._http import request
from mldebug_exporters.channels._secrets import secret

MOST = 3500  # characters


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file with the webhook's address, which is a secret: with it anybody can write to the channel."""

    url_file: Path | None = None  # must be set: a file that holds the address
    ca_file: Path | None = None  # of a private certificate authority
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0  # of one request


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Check what the types of the options cannot: yields (option, what is wrong with it)."""
    if options.url_file is None:
        yield "url_file", "is missing: name a file that holds the address of the incoming webhook"


class Slack:
    """Posts each message as text, escaped so that the name of a job can neither mention anybody nor become a link."""

    repeat = 0.0

    def __init__(self, options: Options) -> None:
        self._options = options

    def send(self, message: EventMessage) -> None:
        """Post the message. Raises where it was not accepted (see `_http.request`)."""
        subject, rest = map(escape, map(for_chat, (message.subject, plain_text(message))))
        text = f"*{subject}*\n{rest[:MOST]}"
        body = msgspec.json.encode({"text": text})
        headers = {"Content-Type": "application/json", "User-Agent": "mldebug"}
        url = secret(self._options.url_file)
        request(url, body, headers, self._options.timeout, self._options.ca_file)


def escape(text: str) -> str:
    """Replace `&`, `<` and `>` as Slack demands.

    Without `<` a text can neither mention anybody nor become a link in Slack; `for_chat` does the same for others.
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def create(options: Options) -> Channel:
    """Build the channel `slack`: Slack, by an incoming webhook; Mattermost and Rocket.Chat take the same."""
    return Slack(options)
