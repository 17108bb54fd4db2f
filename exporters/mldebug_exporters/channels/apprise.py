"""Everything that the library Apprise knows: Teams, Discord, Matrix, ntfy and a hundred more."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mldebug.alerts.message import for_chat, plain_text
from mldebug.alerts.model import Channel, EventMessage
from mldebug_exporters.channels._secrets import secret_text

MOST = 64 * 1024  # bytes of the file of addresses


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file with Apprise's addresses, one per line; `#` begins a comment. They are not in the configuration because they hold secrets."""

    urls_file: Path | None = None  # must be set: a file of addresses, one in a line


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Yield (option name, what is wrong with it) where no file with addresses is named.

    Types were checked before.
    """
    if options.urls_file is None:
        yield "urls_file", "is missing: name a file with Apprise's addresses, one in a line"


class Apprise:
    """Sends each message to all addresses of the file. If one fails, the message is sent to all of them again."""

    repeat = 0.0

    def __init__(self, options: Options) -> None:
        self._options = options

    def send(self, message: EventMessage) -> None:
        """Send the message to all addresses. Raises OSError where one of them failed."""
        receivers = _receivers(_addresses(self._options.urls_file))
        if not receivers.notify(
            body=for_chat(plain_text(message)), title=for_chat(message.subject), body_format="text"
        ):
            raise OSError("Apprise could not deliver it to at least one address")


def _addresses(path: Path | None) -> list[str]:
    if path is None:
        raise OSError("no urls_file is set")
    lines = secret_text(path, MOST).splitlines()
    found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not found:
        raise OSError(f"{path} is empty: it should hold an address in each line")
    return found


def _receivers(addresses: list[str]) -> Any:
    """Apprise with all of them; an address that it does not understand is named by its number alone."""
    try:
        import apprise  # an extra, and heavy
    except ImportError:
        raise OSError("Apprise is not installed: pip install apprise") from None
    logging.getLogger("apprise").disabled = True  # its errors show addresses
    receivers = apprise.Apprise()
    for number, one in enumerate(addresses, start=1):
        if not receivers.add(one):
            raise OSError(f"Apprise does not understand address {number} of the file")
    return receivers


def create(options: Options) -> Channel:
    """Build the channel `apprise`: everything that the library Apprise knows: Teams, Discord, Matrix, ntfy and a hundred more."""
    return Apprise(options)
