"""Secrets come from files, are read anew for each message (they are rotated), and stand in no error."""

from pathlib import Path

MOST = 8192  # bytes


def secret(path: Path | None) -> str:
    """The first line of the file; "" for no file. OSError says which file is empty or cannot be read."""
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
