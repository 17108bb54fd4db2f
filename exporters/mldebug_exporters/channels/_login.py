"""The credentials of a channel that speaks HTTP: a token, or a user with a password.

Token and password are read from files.
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mldebug_exporters.channels._http import problem_of
from mldebug_exporters.channels._secrets import secret


class Login(Protocol):
    """The options of a channel that name its address and credentials."""

    @property
    def url(self) -> str:
        """The URL to which messages are sent."""

    @property
    def token_file(self) -> Path | None:
        """A file with a token, sent as "Authorization: Bearer …"; None for no token."""

    @property
    def user(self) -> str:
        """The user of HTTP basic authentication; "" for none."""

    @property
    def password_file(self) -> Path | None:
        """A file with the user's password."""


def login_problems(options: Login) -> Iterator[tuple[str, str]]:
    """Yield (option name, what is wrong with it) for a bad URL, and for a user beside a token file.

    Types were checked before.
    """
    if wrong := problem_of(options.url):
        yield "url", wrong
    if options.user and options.token_file:
        yield "user", "stands beside a token_file; give one of them"


def credentials(options: Login) -> dict[str, str]:
    """The Authorization header for one request; empty where no credentials are configured.

    Raises OSError where a file is empty or cannot be read.
    """
    if options.token_file is not None:
        return {"Authorization": f"Bearer {secret(options.token_file)}"}
    if not options.user:
        return {}
    pair = f"{options.user}:{secret(options.password_file)}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
