"""Why a request to another agent failed, and what each kind of failure means."""

from mldebug.core.errors import FailedCheckError, MldebugError


class SilentError(MldebugError):
    """The other node did not answer: it may be down, or the network is cut."""


class SlowError(SilentError):
    """The other node accepted the connection, but the TLS handshake was not done in time: it is overloaded, or its agent hangs."""


class RefusedError(MldebugError):
    """Something answered, but it is no agent of this cluster, or it declined the request."""


class StalledRunError(RefusedError, FailedCheckError):
    """The other agent leaves the run alone, because a stall of it is open."""


class StrangerError(RefusedError):
    """The other side has no valid certificate of this cluster. Nothing was sent to it."""


class CutError(RefusedError):
    """The connection was accepted and then closed before an answer, by the other side or by something in between."""


class NoRoomError(MldebugError):
    """This node has no descriptors or memory left for one more connection. Says nothing about the other node."""
