"""The files with which agents and hubs prove who they are."""

from pathlib import Path
from typing import NamedTuple


class KeyFiles(NamedTuple):
    """Files with which a program proves itself: the shared key of all, or a certificate of its own with its key and the CA."""

    key_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
