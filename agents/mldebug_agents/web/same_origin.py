"""Does a request come from a page of ours, or has another site's page made a browser send it?

Browsers say where a request comes from (`Sec-Fetch-Site`, `Origin`), and which name they were given (`Host`): a name of
somebody else's that leads here is DNS rebinding. What is no browser says none of it, and is let in as socket or token decide.
"""

import ipaddress
import re
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("localhost", "localhost.localdomain", "ip6-localhost")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?", re.ASCII)


class SameOriginOnly:
    """Middleware for the Unix socket when a browser reaches it by a forwarded port: only GETs from the agent's own pages pass."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on, or say why not."""
        headers = Headers(scope=scope)
        why = misled(headers, local=True)
        if not why and scope.get("method") not in ("GET", "HEAD") and from_browser(headers):
            why = "a browser may only look"
        answer = PlainTextResponse(f"Not answered: {why}.\n", 403) if why else self._app
        await answer(scope, receive, send)


def misled(headers: Mapping[str, str], *, local: bool, node: str = "") -> str:
    """Why this request is refused, "" for an accepted one; `local`: only names of this machine's loopback are accepted.

    Else this node's name will do too, alone or with a domain, and any address: nobody rebinds an address.
    """
    host = headers.get("host", "")
    if host and not _ours(hostname(host), local=local, node=node):
        return "this address leads here under a name that is not this node's"
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
    if site not in ("same-origin", "none") and mode != "navigate":
        return "another site's page has asked for this"
    return ""


def rebound(headers: Mapping[str, str], node: str) -> str:
    """Why this request gets no public data, "" where it does: its Host header is not a name of this node, so a foreign page may have pointed its own name at this address.

    Programs are not asked for the name: a Prometheus may know this node by any.
    """
    is_browser = headers.get("user-agent", "").startswith("Mozilla/") or from_browser(headers)
    return misled(headers, local=False, node=node) if is_browser else ""


def forged(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent this POST from anywhere but a page of this address."""
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
    if site and site not in ("same-origin", "none"):
        return True
    return bool(origin) and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def from_browser(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent the request: for a POST each sends Origin or Sec-Fetch-Site."""
    return "origin" in headers or "sec-fetch-site" in headers


def hostname(host: str) -> str:
    """The host name of a Host header: `localhost` of `LOCALHOST:8080`, `::1` of `[::1]:8080`; "" for an invalid one."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.partition(":")
    return name.lower().rstrip(".") if not port or port.isdecimal() else ""


def cookie_name(headers: Mapping[str, str]) -> str:
    """The name of the session cookie for this port: several nodes may be forwarded to ports of one host, which share a cookie jar."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"mldebug_{port}" if port.isascii() and port.isdecimal() else "mldebug"


def is_loopback(host: str) -> bool:
    """Whether this is an address, or a name, of the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK or host.endswith(".localhost")


def _ours(name: str, *, local: bool, node: str) -> bool:
    if is_loopback(name):
        return True
    if local:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        first = node.lower().partition(".")[0]
        named = _NAME.fullmatch(name) is not None and bool(first)
        return named and name.partition(".")[0] == first
    return True
