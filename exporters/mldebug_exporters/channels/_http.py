"""Send one HTTP request safely.

No redirect is followed (credentials would go to a stranger), no proxy is taken from the
environment, the answer that is read is bounded, and an error names only the host of an address.
"""

import http.client
import re
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from mldebug.alerts.model import MessageRefusedError
from mldebug_exporters.channels._time_limit import TIMES, limit

MOST = 4096  # bytes of an answer that are read
LATER = (401, 403, 404, 408, 425, 429)  # a person, or time, may mend these


def problem_of(url: str) -> str:
    """What is wrong with a URL, as the end of a sentence ("is no address"); "" if nothing is.

    The URL is not repeated, as it may hold a secret.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is no address"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is no http:// or https:// address"
    if parts.username is not None or parts.password is not None:
        return "holds a password; put that into a file and name it in password_file"
    if port == 0 or any(ord(one) < 33 or ord(one) > 126 for one in url):
        return "is no address: it holds characters that none may have"
    return ""


def request(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout: float,
    ca_file: Path | None = None,
    method: str = "POST",
) -> bytes:
    """Send an HTTP request; a 2xx status acknowledges it, and the first `MOST` bytes of the answer are returned. `timeout`: seconds for each read or write; all together may take
    `TIMES` times as long.

    Raises MessageRefusedError where the receiver refuses the message for good, OSError where a later try may succeed.
    """
    if wrong := problem_of(url):
        raise OSError(f"the address {wrong}")
    parts = urlsplit(url)
    link = _connect(parts, timeout, ca_file)
    began = time.monotonic()
    try:
        with limit(TIMES * timeout, lambda: link.sock):
            link.request(method, _path(parts), body, dict(headers))
            answer = link.getresponse()
            received = answer.read(MOST)
    except http.client.HTTPException as error:
        raise OSError(f"{parts.hostname} gave no HTTP answer: {type(error).__name__}") from None
    except TimeoutError:
        waited = time.monotonic() - began
        raise OSError(f"{parts.hostname} gave no answer in {waited:.0f} s") from None
    except OSError as error:
        raise OSError(f"{parts.hostname}: {error.strerror or error}") from None
    finally:
        link.close()
    _judge(answer.status, parts.hostname or "", received)
    return received


def _connect(
    parts: SplitResult, timeout: float, ca_file: Path | None
) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port, timeout=timeout)
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    return http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=context)


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _judge(status: int, host: str, received: bytes) -> None:
    """Raise where a status is no success. An answer that is one word (`no_service`) is quoted; any other text is a stranger's."""
    if 200 <= status < 300:
        return
    word = re.fullmatch(rb"\s*([a-z_]{3,40})\s*", received)
    words = f"{status}, {word[1].decode()}" if word else f"{status}"
    if 300 <= status < 400:
        raise OSError(f"{host} redirects ({status}), which is not followed: name the new address")
    if status in (401, 403):
        raise OSError(f"{host} does not accept our token or password ({words})")
    if status >= 500 or status in LATER:
        raise OSError(f"{host} answers {words}")
    raise MessageRefusedError(f"{host} answers {words}")
