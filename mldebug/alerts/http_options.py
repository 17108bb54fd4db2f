"""Options for sending HTTP POST requests: of the channels `webhook` and `alertmanager`, and of the action `webhook`."""

from pathlib import Path
from typing import Annotated

import msgspec

from mldebug.core.units import Duration


class HttpOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address to POST to, and the credentials to send along."""

    url: str = ""  # must be set: https://…
    token_file: Path | None = None  # sent as "Authorization: Bearer …"
    user: str = ""  # of HTTP basic authentication, with a password_file
    password_file: Path | None = None  # read anew for each message
    ca_file: Path | None = None  # of a private certificate authority
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0  # of one request
