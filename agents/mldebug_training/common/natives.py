"""Python's own thread functions, saved when the interpreter starts. gevent and eventlet replace them later; our threads would then
be greenlets of the job, and block it when they block. `imports` loads this module that early.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident, start_new_thread

__all__ = ["NATIVE", "allocate_lock", "get_ident", "start_new_thread"]

NATIVE = type(start_new_thread).__name__ == "builtin_function_or_method"
"""False: they had been replaced already."""
