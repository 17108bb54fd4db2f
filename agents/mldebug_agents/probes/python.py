"""Which Python a probe runs in: the training environment's, never this process."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from mldebug.core.errors import ToolError, UsageError

INSIDE = Path(__file__).parent / "verbs" / "inside"
WAY_OUT = "name the training environment's: --python /path/to/env/bin/python"


def find_python(named: str | None) -> str:
    """The interpreter that was named, else ours if it has torch; UsageError or ToolError in words."""
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise UsageError(f"--python {named}: there is no such program", WAY_OUT)
        return str(Path(found).absolute())
    if find_spec("torch") is None:
        raise ToolError("a probe needs PyTorch, which the Python of mldebug does not have", WAY_OUT)
    return sys.executable
