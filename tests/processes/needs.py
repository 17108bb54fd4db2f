"""What a module of tests needs here."""

from importlib.util import find_spec

import pytest


def need_torch(reason: str) -> None:
    """Skip the module where PyTorch is not. Its jobs import it: to do so here, too, would cost each part of CI a second."""
    if find_spec("torch") is None:
        pytest.skip(reason, allow_module_level=True)
