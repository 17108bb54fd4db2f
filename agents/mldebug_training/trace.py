"""The call tracer, as a job uses it: `from mldebug_training.trace import trace`, then `with trace("mypkg"): train()`."""

from mldebug_training.tracing.trace import NicerTrace, trace

__all__ = ["NicerTrace", "trace"]
