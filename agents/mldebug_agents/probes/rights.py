"""Whoever may change the training environment's Python must not get our capabilities by it."""

import ctypes

_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4


def keep_rights_here() -> None:
    """Programs that we start from now on get none of the capabilities that a service gave us; we keep them, as do our forks.

    What root starts is root's, as ever. A kernel without ambient capabilities has none to clear.
    """
    ctypes.CDLL(None).prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
