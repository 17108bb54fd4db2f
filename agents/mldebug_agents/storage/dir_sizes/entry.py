"""Starts the child's own code: it alone needs watchdog, so only the child pays for it."""

import importlib
import socket


def serve(link: socket.socket) -> None:
    """The main function of the child that counts directories."""
    importlib.import_module("mldebug_agents.storage.dir_sizes.child").serve(link)
