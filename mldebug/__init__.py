"""mldebug: find out why a distributed training run stopped."""

__version__ = "0.1.0"
DISTRIBUTION = "mldebug-agent"
"""The name that pip knows: on PyPI `mldebug` is another program, with the same import name."""
