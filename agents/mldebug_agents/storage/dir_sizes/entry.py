"""Starts the child's own code: it alone needs watchdog, so only the child pays for it."""

import importlib
import socket


def serve(link: socket.socket) -> None:
    """Become the child that counts trees."""
    importlib.import_module("mldebug_agents.storage.dir_sizes.child").serve(link)
