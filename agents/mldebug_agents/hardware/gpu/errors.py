"""Why there is no reading of the GPUs: what the agent raises, and at the end what a vendor's plugin raises in the child."""

from mldebug.core.errors import MissingError, MldebugError


class NoGpuLibraryError(MissingError):
    """There is no management library: no GPU of that vendor here, or no driver."""


class GpuBlockedError(MldebugError):
    """The child sits in a call into the driver and does not come back."""


class GpuCrashedError(MldebugError):
    """The child has died: the vendor's library ended it."""


class GpuDriverError(MldebugError):
    """The library answers that its driver is gone, or something that cannot be understood."""


class GpusReleasedError(MldebugError):
    """Somebody asked for the GPUs to be left alone, so that they can be reset."""


class MissingLibraryError(Exception):
    """There is no management library on this node: no GPU of that vendor, or no driver."""


class DriverGoneError(Exception):
    """Every handle is worth nothing: the driver was unloaded or loaded anew."""
