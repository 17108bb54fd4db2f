"""Reasons for which the reader child refuses a request that the kernel would have allowed."""

from enum import IntEnum


class Refusal(IntEnum):
    """Why the reader child refused a request. The numbers are negative, so that they differ from errnos."""

    NOT_REGULAR = -1
    TOO_LARGE = -2
    NO_SUCH_LINE = -3
    NOT_A_FIFO = -4
    NOT_THEIRS = -5
    NOT_A_SOCKET = -6
    OTHER_PROCESS = -7
    NO_WORKER_SERVER = -8
    SHARED_PORT = -9
    UNSEEN = -10
    NO_RIGHTS = -11
    NOT_REACHED = -12


class Refused(Exception):  # noqa: N818 - an answer, not a defect
    """Raised inside the reader child to answer a request with a `Refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.name)
        self.refusal = refusal
