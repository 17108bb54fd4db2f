"""The JSON files that a rank's hook writes beside its record."""

from typing import Protocol, TypeVar

import msgspec

from mldebug.core.redact import clean


class HookFile(Protocol):
    """A JSON file that the hook in a training process writes for the agent."""

    @property
    def layout(self) -> int:
        """Number of the layout; 1 today."""


FileType = TypeVar("FileType", bound=HookFile)


def decode_hook_file(data: bytes, kind: type[FileType], max_bytes: int) -> FileType:
    """Decode a file of layout 1. Raises ValueError with the reason where it is too large or not what it should be."""
    if len(data) > max_bytes:
        raise ValueError(f"it has {len(data)} bytes, more than {max_bytes}")
    try:
        file = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not what it should be ({clean(str(error))[:200]})") from None
    if file.layout != 1:
        raise ValueError(f"it has layout {file.layout} and not 1")
    return file
