"""Asks a hub: the one on this machine by its socket, another by HTTPS with the hub's token. The token goes to the configured address alone."""

import http.client
import ssl
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from mldebug.config.fleet import PAGES_PORT, FleetConfig, host_and_port
from mldebug.config.schema import Config
from mldebug.core.errors import AccessError, MldebugError, ToolError, UsageError
from mldebug_agents.fleet.places import HUB_SOCKET, hub_dir
from mldebug_agents.web.access.token_file import token_of
from mldebug_agents.web.control_requests import ErrorAnswer
from mldebug_agents.web.unix_http import UnixConnection

TIMEOUT = 30.0  # seconds
MAX_ANSWER = 64 << 20  # bytes
HOW = "start one: mldebug hub; or say where it is: fleet: {pages: https://HOST:9756, token_file: FILE}"

T = TypeVar("T")


def ask_hub(config: Config, path: str, kind: type[T], **parameters: str) -> T:
    """The hub's answer at this path. Raises MldebugError where there is no hub, it refuses, or the question is wrong."""
    return _answer(
        config, "GET", f"{path}?{urlencode(parameters)}" if parameters else path, None, kind
    )


def send_to_hub(config: Config, path: str, order: msgspec.Struct, kind: type[T]) -> T:
    """The hub's answer to a POST with this body. Raises MldebugError as `ask_hub` does."""
    return _answer(config, "POST", path, msgspec.json.encode(order), kind)


def _answer(config: Config, method: str, target: str, sent: bytes | None, kind: type[T]) -> T:
    link, headers = _link(config)
    try:
        link.request(method, target, body=sent, headers=headers)
        answer = link.getresponse()
        body = answer.read(MAX_ANSWER)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise ToolError(f"no hub answers at {_place(config)}: {error.strerror}", HOW) from None
    except PermissionError:
        raise AccessError(f"{_place(config)} is closed to this user", "ask as root") from None
    except (OSError, http.client.HTTPException) as error:
        raise ToolError(f"the hub at {_place(config)} does not answer: {error}", "see its log") from None  # fmt: skip
    finally:
        link.close()
    if answer.status == 200:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ToolError(f"what answers at {_place(config)} is no hub", HOW) from None
    raise _error(answer.status, body)


def _link(config: Config) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    fleet = config.fleet
    if not fleet.pages:
        return UnixConnection(hub_dir(config), TIMEOUT, HUB_SOCKET), {}
    host, port = host_and_port(fleet.pages, PAGES_PORT)
    if fleet.token_file is None:
        raise UsageError("fleet.pages needs fleet.token_file", HOW)
    headers = {"Authorization": f"Bearer {token_of(fleet.token_file)}"}
    if urlsplit(fleet.pages).scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT), headers
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=_tls(fleet)), headers


def _tls(fleet: FleetConfig) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=fleet.pages_ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"fleet.pages_ca cannot be used: {error}", "name a PEM file") from error


def _place(config: Config) -> str:
    return config.fleet.pages or str(hub_dir(config) / HUB_SOCKET)


def _error(status: int, body: bytes) -> MldebugError:
    try:
        error = msgspec.json.decode(body, type=ErrorAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        error = ErrorAnswer(body[:200].decode(errors="replace").strip() if status == 503 else "")
    if status in (401, 403, 429):
        words = "the token is not the hub's" if status == 401 else "the hub refuses"
        return AccessError(error.error or words, error.way_out)
    if status == 400 and error.error:
        return UsageError(error.error, error.way_out)
    return MldebugError(error.error or f"the hub answers {status}", error.way_out or "see its log")
