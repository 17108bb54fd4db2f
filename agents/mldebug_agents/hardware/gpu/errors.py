"""Why there is no reading of the GPUs: what the agent raises, and at the end what a vendor's plugin raises in the child."""

from mldebug.core.errors import MissingError, MldebugError


class NoGpuLibraryError(MissingError):
    """There is no management library: no GPU of that vendor here, or no driver."""


class GpuBlockedError(MldebugError):
    """The child sits in a call into the driver and does not come back."""


class GpuCrashedError(MldebugError):
    """The GPU child has died: the vendor's library ended the process."""


class GpuDriverError(MldebugError):
    """The vendor's library reports that its driver is gone, or answers something that cannot be understood."""


class GpusReleasedError(MldebugError):
    """Somebody asked for the GPUs to be left alone, so that they can be reset."""


class MissingLibraryError(Exception):
    """There is no management library on this node: no GPU of that vendor, or no driver."""


class DriverGoneError(Exception):
    """All handles on GPUs have become invalid: the driver was unloaded, or loaded anew."""
