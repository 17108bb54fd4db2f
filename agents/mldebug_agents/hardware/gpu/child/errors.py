"""Why there is no reading of the GPUs, as the agent says it."""

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
