"""Asking the agent to do something, and its answer: a POST to its socket, JSON back. Both ends."""

import http.client
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from mldebug.core.errors import AccessError, ExitCode, MldebugError, UsageError
from mldebug_agents.web.listeners import SOCKET
from mldebug_agents.web.unix_http import UnixConnection

TIMEOUT = 10.0
MAX_BYTES = 1 << 20
OK, BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT = 200, 400, 403, 404, 409

T = TypeVar("T")


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Why something was not done."""

    error: str = ""
    way_out: str = ""


def carry_out(verb: Callable[[Mapping[str, str]], object], asked: Mapping[str, str]) -> tuple[int, bytes]:  # fmt: skip
    """The agent's end: status code and body."""
    try:
        return OK, msgspec.json.encode(verb(asked))
    except MldebugError as error:
        status = BAD_REQUEST if error.exit_code is ExitCode.USAGE else CONFLICT
        return status, msgspec.json.encode(ErrorAnswer(error.message, error.way_out))


def refused() -> tuple[int, bytes]:
    """What everybody else gets."""
    way_out = "ask as root, as the agent's user, or as a member of agent.group"
    return FORBIDDEN, msgspec.json.encode(
        ErrorAnswer("the agent does that for its own only", way_out)
    )


def tell_agent(
    state_dir: Path,
    path: str,
    type_: type[T],
    *,
    timeout: float = TIMEOUT,
    most: int = MAX_BYTES,
    **asked: float | str,
) -> T:
    """The other end: have something done. Raises an MldebugError in words where it is not."""
    link = UnixConnection(state_dir, timeout)
    query = f"{path}?{urlencode(asked)}" if asked else path
    try:
        link.request("POST", query, headers={"Content-Length": "0"})
        answer = link.getresponse()
        body = answer.read(most)
        if answer.status == OK:
            return msgspec.json.decode(body, type=type_)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        raise MldebugError(
            f"no agent runs here: nothing answers at {state_dir / SOCKET}",
            "give its --config where it has another state directory",
        ) from None
    except PermissionError:
        raise AccessError(f"{state_dir / SOCKET} is closed to this user", "ask as root") from None
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        silent = f"the agent does not answer at {state_dir / SOCKET}"
        raise MldebugError(silent, "see its log") from None
    finally:
        link.close()
    raise _error(answer.status, body)


def _error(status: int, body: bytes) -> MldebugError:
    try:
        told = msgspec.json.decode(body, type=ErrorAnswer)
    except msgspec.MsgspecError:
        told = ErrorAnswer()
    if status == FORBIDDEN:
        return AccessError(told.error or "the agent refuses", told.way_out)
    if status == BAD_REQUEST and told.error:
        return UsageError(told.error, told.way_out)
    if status in (NOT_FOUND, 405):
        return MldebugError("the agent does not know that: it is older", "restart the agent")
    return MldebugError(told.error or f"the agent answers {status}", told.way_out)
