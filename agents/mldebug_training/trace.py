"""The call tracer, as a job uses it: `from mldebug_training.trace import trace`, then `with trace("mypkg"): train()`."""

from mldebug_training.tracing.nicer_trace import NicerTrace
from mldebug_training.tracing.trace import trace

__all__ = ["NicerTrace", "trace"]
