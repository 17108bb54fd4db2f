"""POST requests to the agent's socket that make the agent do something, with answers in JSON: client and server side."""

import http.client
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from mldebug.core.errors import (
    AccessError,
    ExitCode,
    FailedCheckError,
    MldebugError,
    ToolError,
    UsageError,
)
from mldebug_agents.web.listeners import SOCKET
from mldebug_agents.web.unix_http import UnixConnection

TIMEOUT = 10.0
MAX_BYTES = 1 << 20
OK, BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, LOCKED = 200, 400, 403, 404, 409, 423

T = TypeVar("T")


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The JSON body for a request that was refused or failed."""

    error: str = ""
    way_out: str = ""


def carry_out(verb: Callable[[Mapping[str, str]], object], parameters: Mapping[str, str]) -> tuple[int, bytes]:  # fmt: skip
    """Call `verb` with the parameters of a request. Returns HTTP status and JSON body. An MldebugError becomes 400 (wrong
    usage), 403 (no right), 423 (the job is stalled) or 409 with an `ErrorAnswer`; other errors are raised.
    """
    try:
        return OK, msgspec.json.encode(verb(parameters))
    except MldebugError as error:
        status = BAD_REQUEST if error.exit_code is ExitCode.USAGE else CONFLICT
        status = FORBIDDEN if isinstance(error, AccessError) else status
        status = LOCKED if isinstance(error, FailedCheckError) else status
        return status, msgspec.json.encode(ErrorAnswer(error.message, error.way_out))


def answered(found: object) -> tuple[int, bytes]:
    """The HTTP status 200, and this struct as the JSON body."""
    return OK, msgspec.json.encode(found)


def not_found(sentence: str, way_out: str) -> tuple[int, bytes]:
    """The HTTP status and body for a thing that is not there, or that this user may not see."""
    return NOT_FOUND, msgspec.json.encode(ErrorAnswer(sentence, way_out))


def refused() -> tuple[int, bytes]:
    """The HTTP status and body for a user who may not give this order."""
    way_out = "ask as root, as the agent's user, or as a member of agent.group"
    return FORBIDDEN, msgspec.json.encode(
        ErrorAnswer("the agent does that for its own only", way_out)
    )


def post_to_agent(
    state_dir: Path,
    path: str,
    type_: type[T],
    *,
    timeout: float = TIMEOUT,
    most: int = MAX_BYTES,
    **parameters: float | str,
) -> T:
    """POST to the agent of this state dir and decode its answer, of at most `most` bytes, as `type_`. `timeout`: seconds
    for each step. Raises MldebugError where the agent refuses, does not answer, or does not run.
    """
    link = UnixConnection(state_dir, timeout)
    query = f"{path}?{urlencode(parameters)}" if parameters else path
    try:
        link.request("POST", query, headers={"Content-Length": "0"})
        answer = link.getresponse()
        body = answer.read(most)
        if answer.status == OK:
            return msgspec.json.decode(body, type=type_)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        raise ToolError(
            f"no agent runs here: nothing answers at {state_dir / SOCKET}",
            "start one: mldebug up; or name the --config of one with another state directory",
        ) from None
    except PermissionError:
        raise AccessError(f"{state_dir / SOCKET} is closed to this user", "ask as root") from None
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        silent = f"the agent does not answer at {state_dir / SOCKET}"
        raise MldebugError(
            silent,
            "wait a minute; if it stays so, see its log: journalctl -u mldebug, or up.log in its state directory",
        ) from None
    finally:
        link.close()
    raise _error(answer.status, body)


def _error(status: int, body: bytes) -> MldebugError:
    try:
        error = msgspec.json.decode(body, type=ErrorAnswer)
    except msgspec.MsgspecError:
        error = ErrorAnswer()
    if status == FORBIDDEN:
        return AccessError(error.error or "the agent refuses", error.way_out)
    if status == BAD_REQUEST and error.error:
        return UsageError(error.error, error.way_out)
    if status == LOCKED:
        return FailedCheckError(error.error, error.way_out)
    if status in (NOT_FOUND, 405):
        return MldebugError("the agent does not know that: it is older", "restart the agent")
    return MldebugError(error.error or f"the agent answers {status}", error.way_out)
