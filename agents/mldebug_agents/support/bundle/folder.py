"""The files of a bundle while they are gathered, within limits of size; what is too large or missing becomes a gap."""

from collections.abc import Callable
from typing import Any

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.model import Gap

MAX_FILE = 16 << 20  # bytes
MAX_TOTAL = 64 << 20
ASK_LESS = "record for a shorter time with --for"


class BundleFolder:
    """The files of a bundle by name, held in memory, and `gaps`: what is missing and why. `max_file` and `max_total` are bytes."""

    def __init__(self, max_file: int = MAX_FILE, max_total: int = MAX_TOTAL) -> None:
        self.files: dict[str, bytes] = {}
        self.gaps: list[Gap] = []
        self._max_file, self._left = max_file, max_total

    def add(self, name: str, content: bytes, limit: int | None = None) -> None:
        """Add a file. Where it is larger than `limit` bytes, or than what is left of the bundle, its beginning is cut off
        up to a line's start, and a gap says so.
        """
        most = min(limit or self._max_file, self._max_file, self._left)
        if len(content) > most:
            lost = len(content)
            content = content[len(content) - most :].partition(b"\n")[2]
            reason = f"its first {lost - len(content):,} of {lost:,} bytes were left out"
            self.gaps.append(Gap(what=name, reason=reason, way_out=ASK_LESS))
        self._left -= len(content)
        self.files[name] = content

    def add_json(self, name: str, value: Any) -> None:
        """Add a value as an indented JSON file. A file that is too large is left out, and noted as missing."""
        content = msgspec.json.format(msgspec.json.encode(value), indent=1)
        if len(content) > min(self._max_file, self._left):
            self.miss(name, f"it has {len(content):,} bytes", ASK_LESS)
        else:
            self.add(name, content + b"\n")

    def add_lines(self, name: str, values: list[Any]) -> None:
        """Add values as a JSON Lines file: one JSON text per line."""
        self.add(name, b"".join(msgspec.json.encode(value) + b"\n" for value in values))

    def miss(self, what: str, reason: str, way_out: str = "") -> None:
        """Record that something is missing in the bundle: what, why, and what would help."""
        self.gaps.append(Gap(what=what, reason=reason, way_out=way_out))

    def attempt(self, what: str, gather: Callable[[], None]) -> None:
        """Call `gather`. Where it raises, `what` is noted as missing, with the exception as the reason."""
        try:
            gather()
        except MldebugError as error:
            self.miss(what, error.message, error.way_out)
        except OSError as error:
            self.miss(what, f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
        except Exception as error:  # noqa: BLE001 - a bundle is made when things are broken
            self.miss(what, f"{type(error).__name__}: {error}", "report it as a defect of mldebug")
