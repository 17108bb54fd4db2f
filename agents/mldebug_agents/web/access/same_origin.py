"""Tells whether a request comes from one of the agent's own pages, or another site's page made a browser send it.

Browsers say where a request comes from (`Sec-Fetch-Site`, `Origin`) and which host name they used (`Host`). A foreign host name
that leads here is DNS rebinding. Programs that are no browsers send none of these, and are judged by socket or token alone.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

BY_NAME = "Open it by this node's address, or its host name alone or as its /etc/hosts and the domains of its /etc/resolv.conf have it."
LOOPBACK = ("localhost", "localhost.localdomain", "ip6-localhost")


class SameOriginOnly:
    """ASGI middleware for the Unix socket, which a browser may reach by a forwarded port. From a browser it passes only GET and
    HEAD, and only from the agent's own pages; other requests get 403.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on, or say why not."""
        headers = Headers(scope=scope)
        why = refused_origin(headers, local=True)
        if not why and scope.get("method") not in ("GET", "HEAD") and from_browser(headers):
            why = "a browser may only look"
        answer = PlainTextResponse(f"Not answered: {why}.\n", 403) if why else self._app
        await answer(scope, receive, send)


def refused_origin(
    headers: Mapping[str, str], *, local: bool, names: Callable[[], Collection[str]] = tuple
) -> str:
    """Return why a request to the web server is refused, or "" where it is accepted.

    It is refused where its Host header is a foreign name (DNS rebinding), or where the script of another site's page has
    sent it. A link on another site may lead here. With `local` the only accepted hosts are the names and addresses of
    loopback; otherwise also the `names` of this node, which are asked for only then, and any IP address, because DNS cannot rebind that.
    """
    host = headers.get("host", "")
    if host and not _ours(hostname(host), local=local, names=names):
        return "this address leads here under a name that is not this node's"
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
    if site not in ("same-origin", "none") and mode != "navigate":
        return "another site's page has asked for this"
    return ""


def refused_host(headers: Mapping[str, str], node: str) -> str:
    """Why this request gets no public data; "" where it gets them. A browser must use a host name of this node,

    since a foreign page may have pointed its own name at this address. Programs may use any name, as Prometheus does.
    """
    is_browser = headers.get("user-agent", "").startswith("Mozilla/") or from_browser(headers)
    return refused_origin(headers, local=False, names=lambda: own_names(node)) if is_browser else ""


def forged(headers: Mapping[str, str]) -> bool:
    """Whether this POST was sent by a browser from a page of another address."""
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
    if site and site not in ("same-origin", "none"):
        return True
    return bool(origin) and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def from_browser(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent the request: it has the header Origin or Sec-Fetch-Site, of which browsers add one to each POST."""
    return "origin" in headers or "sec-fetch-site" in headers


def hostname(host: str) -> str:
    """The host name of a Host header: `localhost` of `LOCALHOST:8080`, `::1` of `[::1]:8080`; "" for an invalid one."""
    inside, bracket, rest = host.removeprefix("[").partition("]")
    if host.startswith("["):
        fits = bracket and (not rest or (rest[0] == ":" and _is_port(rest[1:])))
        return inside if fits else ""
    name, _, port = host.partition(":")
    return name.lower().rstrip(".") if _is_port(port) else ""


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdecimal())


def cookie_name(headers: Mapping[str, str]) -> str:
    """The name of the session cookie, made from the port in the Host header: forwarded ports of one host share their cookies."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"mldebug_{port}" if port.isascii() and port.isdecimal() else "mldebug"


def is_loopback(host: str) -> bool:
    """Whether this IP address or host name means the loopback interface of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK or host.endswith(".localhost")


def own_names(node: str, etc: Path = Path("/etc")) -> Collection[str]:
    """The names under which a browser may reach this node: its host name, alone and below each domain that the node itself is in, by
    the files `resolv.conf` and `hosts` in the folder `etc`.

    Not below any domain: its owner may call a machine in it as this node is called, and point that name here. The files are read
    again once they have changed: everybody may ask, and `hosts` of a cluster is long.
    """
    files = etc / "resolv.conf", etc / "hosts"
    return _own_names(node, files, tuple(map(_stamp, files)))


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(4)
def _own_names(
    node: str, files: tuple[Path, Path], _stamps: tuple[tuple[int, ...], ...]
) -> frozenset[str]:
    node, (resolv_conf, hosts) = node.lower().rstrip("."), files
    first = node.partition(".")[0]
    names = {node, first}
    for line in _lines(resolv_conf):
        if line[0] in ("search", "domain"):
            names |= {f"{first}.{domain.strip('.')}" for domain in line[1:]}
    for line in _lines(hosts):
        names |= {name for name in line[1:] if name.startswith(f"{first}.")}
    return frozenset(names if first else ())


def _lines(file: Path) -> list[list[str]]:
    """The words of each line that has some, in small letters."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return []
    words = (re.split(r"[#;]", line)[0].lower().split() for line in text.splitlines())
    return [one for one in words if one]


def _ours(name: str, *, local: bool, names: Callable[[], Collection[str]]) -> bool:
    if is_loopback(name):
        return True
    if local:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names()
    return True
