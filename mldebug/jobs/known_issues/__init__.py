"""Versions, settings and log lines that are known to hang a training or to mislead its diagnosis. Never an alert."""
