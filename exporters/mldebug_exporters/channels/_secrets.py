"""Read a secret from its file.

It is read anew for each message, because secrets are rotated, and never appears in an error.
"""

from pathlib import Path

MOST = 8192  # bytes


def secret(path: Path | None) -> str:
    """The first line of the file, without spaces around it; "" for no path.

    Raises OSError where the file cannot be read, is empty, or its first line holds other than
    printable ASCII.
    """
    if path is None:
        return ""
    with path.open("rb") as file:
        lines = file.read(MOST).decode("utf-8", "replace").strip().splitlines()
    if not lines:
        raise OSError(f"{path} is empty: it should hold a secret")
    first = lines[0].strip()
    if not (first.isascii() and first.isprintable()):
        raise OSError(f"{path} holds characters that no secret here may have")
    return first
