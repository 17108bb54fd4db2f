"""A GPU vendor's file, put into its folder for one test: the agent and its child find it as they find their own."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mldebug_agents.hardware.gpu import vendors


@contextmanager
def vendor_file(folder: Path, name: str, text: str) -> Iterator[None]:
    """Enter before the process starter forks its helper, which inherits it."""
    (folder / f"{name}.py").write_text(text)
    vendors.__path__.append(str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        vendors.__path__.remove(str(folder))
        sys.modules.pop(f"{vendors.__name__}.{name}", None)
        if hasattr(vendors, name):
            delattr(vendors, name)
