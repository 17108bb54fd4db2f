"""A port on which nobody listens."""

import socket


def free_port() -> int:
    """One of the loopback interface; somebody may take it before it is used."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
