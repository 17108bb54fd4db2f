"""What is said of files that cannot be read."""

import errno
from pathlib import Path

import pytest

from mldebug.core.errors import AccessError, EvidenceError
from mldebug.core.files import BAD_DISK, NOT_THERE, unreadable


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.ENOENT, NOT_THERE),
        (errno.ENOTDIR, NOT_THERE),
        (errno.EIO, BAD_DISK),
        (errno.ESTALE, BAD_DISK),
    ],
)
def test_the_way_out_fits_the_reason(number: int, way_out: str) -> None:
    """A file that is not there was not cut off after it was written."""
    found = unreadable(Path("/nope"), OSError(number, "some reason"))
    assert isinstance(found, EvidenceError)
    assert (found.message, found.way_out) == ("cannot read /nope: some reason", way_out)


def test_a_missing_right_is_another_error() -> None:
    assert isinstance(unreadable(Path("/x"), PermissionError(errno.EACCES, "no")), AccessError)
