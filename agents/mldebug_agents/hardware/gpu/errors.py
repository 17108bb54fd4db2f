"""Why there is no reading of the GPUs: what the agent raises, and at the end what a vendor's plugin raises in the child."""

from mldebug.core.errors import MissingError, MldebugError


class NoGpuLibraryError(MissingError):
    """The vendor's management library is missing: this node has no GPU of that vendor, or no driver."""


class GpuBlockedError(MldebugError):
    """The child is in a call into the GPU driver that has not returned."""


class GpuCrashedError(MldebugError):
    """The GPU child has died: the vendor's library ended the process."""


class GpuDriverError(MldebugError):
    """The vendor's library reports that the driver is gone, or gives an answer that cannot be decoded."""


class GpusReleasedError(MldebugError):
    """The GPUs are not read now, because somebody has asked the agent to release them, for a reset for example."""


class MissingLibraryError(Exception):
    """Raised by a vendor's plugin in the child: no management library on this node, so no GPU of that vendor or no driver."""


class DriverGoneError(Exception):
    """Raised by a vendor's plugin in the child: all GPU handles are invalid, because the driver was unloaded or loaded again."""
