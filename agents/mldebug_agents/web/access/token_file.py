"""The agent's token, by which users and programs without an account on this node prove who they are."""

import logging
from pathlib import Path

from mldebug.core.errors import MldebugError
from mldebug.core.files import read_secret

log = logging.getLogger("mldebug")

MAX_TOKEN, MIN_TOKEN = 8192, 16
MAKE_ONE = "openssl rand -hex 32 > FILE; chmod 600 FILE"


def token_of(path: Path) -> str:
    """Return the first word of the token file, read anew at each call. MldebugError where it is under 16 characters, or where others
    than root, this user and the file's group may read or change it.
    """
    lines = (
        read_secret(path, MAKE_ONE, MAX_TOKEN, any_group=True).decode("utf-8", "replace").split()
    )
    if not lines or len(lines[0]) < MIN_TOKEN:
        raise MldebugError(f"{path} holds no token of {MIN_TOKEN} characters", MAKE_ONE)
    return lines[0]


def warn_of_token(path: Path | None) -> None:
    """Log why this token file cannot be used, if it cannot: the answers to requests over TCP do not say it."""
    if path is None:
        return
    try:
        token_of(path)
    except MldebugError as error:
        log.warning("nobody gets in by the token: %s; way out: %s", error.message, error.way_out)
