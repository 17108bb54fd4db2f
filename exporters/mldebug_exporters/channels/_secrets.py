"""Read secrets from files that nobody else may read.

They are read anew for each message, because secrets are rotated, and never appear in an error.
"""

from pathlib import Path

from mldebug.core.errors import UsageError
from mldebug.core.files import read_secret

MOST = 8192  # bytes


def secret(path: Path | None) -> str:
    """The first line of the file, without spaces around it; "" for no path.

    Raises OSError where the file cannot be read, others than its owner and group may read or change it, it belongs to another user
    than root and this one, is empty, or its first line holds other than printable ASCII.
    """
    if path is None:
        return ""
    lines = secret_text(path, MOST).strip().splitlines()
    if not lines:
        raise OSError(f"{path} is empty: it should hold a secret")
    first = lines[0].strip()
    if not (first.isascii() and first.isprintable()):
        raise OSError(f"{path} holds characters that no secret here may have")
    return first


def secret_text(path: Path, most: int) -> str:
    """At most `most` bytes of a file of secrets, as text. Raises OSError where it cannot be read, or is no secret (see `secret`)."""
    try:
        return read_secret(path, f"chmod 600 {path}", most, any_group=True).decode(
            "utf-8", "replace"
        )
    except UsageError as error:
        raise OSError(f"{error.message}: {error.way_out}") from error
