"""Writes a file that a person has named on the command line."""

from pathlib import Path

from mldebug.core.errors import MldebugError, UsageError


def write_file(file: Path, content: bytes, force: bool) -> None:
    """Write a file for a person. Raises UsageError where it exists and `force` is False."""
    try:
        with file.open("wb" if force else "xb") as stream:
            stream.write(content)
    except FileExistsError:
        raise UsageError(f"{file} exists already", "overwrite it with --force") from None
    except OSError as error:
        raise MldebugError(
            f"{file} cannot be written: {error.strerror}", "choose another place"
        ) from error
