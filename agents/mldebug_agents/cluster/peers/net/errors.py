"""Why a question to another agent came to nothing: three ways, and what each may be taken for."""

from mldebug.core.errors import MldebugError


class SilentError(MldebugError):
    """Nothing came from there: it may be down, or cut off."""


class SlowError(SilentError):
    """A connection was taken, and the proof did not come in time: a crowded node, or an agent that does not run."""


class RefusedError(MldebugError):
    """Somebody answered, and is no agent with our key, or will not do it."""


class StrangerError(RefusedError):
    """Somebody is there who cannot prove to be one of us: nothing was sent."""


class CutError(RefusedError):
    """The connection was taken, and cut before an answer: by the other side, or by what lies between."""


class NoRoomError(MldebugError):
    """This node itself cannot open one more connection: that says nothing of the other."""
