"""Writes a file that a person has named on the command line."""

from collections.abc import Iterable
from pathlib import Path

from mldebug.core.errors import MldebugError, UsageError


def write_file(file: Path, pieces: Iterable[bytes], force: bool) -> None:
    """Write a file for a person, from its pieces. Raises UsageError where it exists and `force` is False, MldebugError
    where it cannot be written.
    """
    try:
        with file.open("wb" if force else "xb") as stream:
            stream.writelines(pieces)
    except FileExistsError:
        raise UsageError(f"{file} exists already", "overwrite it with --force") from None
    except OSError as error:
        raise MldebugError(
            f"{file} cannot be written: {error.strerror}", "choose another place"
        ) from error
