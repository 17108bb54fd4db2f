"""Ways to tell somebody: one file each, by which `channels: {NAME: {kind: FILE}}` calls them."""

from mldebug.alerts.model import Channel

__all__ = ["Channel"]
