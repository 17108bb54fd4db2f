"""mldebug: find out why a distributed training run stopped."""

__version__ = "0.1.0"
