"""A POST of the message as JSON to an address of your own."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from mldebug.events.model import Message
from mldebug.settings.units import Duration
from mldebug_exporters.sending.http import problem_of, request
from mldebug_exporters.sending.secrets import secret


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to, and how to prove who sends it."""

    url: str = ""
    token_file: Path | None = None  # sent as "Authorization: Bearer …"
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None  # of a private certificate authority
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """What no type can say."""
    if wrong := problem_of(options.url):
        yield "url", wrong
    if options.user and options.token_file:
        yield "user", "stands beside a token_file; give one of them"


class Webhook:
    """The header Idempotency-Key is the message's id: a double has the same."""

    repeat = 0.0

    def __init__(self, options: Options) -> None:
        self._options = options

    def send(self, message: Message) -> None:
        """Deliver it, or raise."""
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": message.id,
            "User-Agent": "mldebug",
            **self._credentials(),
        }
        options = self._options
        request(
            options.url, msgspec.json.encode(message), headers, options.timeout, options.ca_file
        )

    def _credentials(self) -> dict[str, str]:
        if self._options.token_file is not None:
            return {"Authorization": f"Bearer {secret(self._options.token_file)}"}
        if not self._options.user:
            return {}
        pair = f"{self._options.user}:{secret(self._options.password_file)}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def create(options: Options) -> Webhook:
    """Build the channel."""
    return Webhook(options)
