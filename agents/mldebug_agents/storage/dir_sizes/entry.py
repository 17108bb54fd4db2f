"""Imports and starts the code of the child that counts directories: it needs watchdog, so only the child loads that package."""

import importlib
import socket


def serve(link: socket.socket) -> None:
    """The main function of the child that counts directories."""
    importlib.import_module("mldebug_agents.storage.dir_sizes.child").serve(link)
