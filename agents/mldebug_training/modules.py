"""The class that replaces an overflow hook in a copied or saved model.

Models that were saved whole name this module and this class, so neither may ever be moved or renamed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _NoHook:
    """Does nothing when the module is called."""

    def __call__(self, *_: Any) -> None:
        pass
