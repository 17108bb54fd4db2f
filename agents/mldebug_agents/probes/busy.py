"""The node is wanted for something else: no fault of it, and no failure of a probe that was to run only while it is idle."""

from mldebug.core.errors import MldebugError


class BusyError(MldebugError):
    """Somebody computes here, or another probe measures."""
