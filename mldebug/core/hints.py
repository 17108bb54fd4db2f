"""Commands that a person is told to type, as they can be typed."""

import shlex
from pathlib import Path


def typed(command: str, config: Path | None = None) -> str:
    """`mldebug reports list --config /etc/mldebug.yaml`: with the config file that was given, where one was."""
    return f"mldebug {command}" + (f" --config {shlex.quote(str(config))}" if config else "")
