"""Channels: ways to send an alert's message to somebody.

One file each; `channels: {NAME: {kind: FILE}}` in the configuration selects it.
"""

from mldebug.alerts.model import Channel

__all__ = ["Channel"]
