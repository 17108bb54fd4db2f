"""Versions, settings and log lines that are known to hang a training, or to mislead whoever looks for why. Never an alarm."""
