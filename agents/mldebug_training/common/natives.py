"""Python's own thread functions, taken when the interpreter starts: gevent and eventlet put others in their place later, under which
a thread of ours would be a greenlet of the job's, and what blocks it would block the job. `imports` has them taken that early.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident, start_new_thread

__all__ = ["NATIVE", "allocate_lock", "get_ident", "start_new_thread"]

NATIVE = type(start_new_thread).__name__ == "builtin_function_or_method"
"""False: they had been replaced already."""
