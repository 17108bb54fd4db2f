"""Commands that messages suggest, ready to be typed."""

import shlex
from pathlib import Path


def typed(command: str, config: Path | None = None) -> str:
    """The command line `mldebug COMMAND`, with `--config FILE` where a config file was given."""
    return f"mldebug {command}" + (f" --config {shlex.quote(str(config))}" if config else "")
