"""A real nats-server of our own with JetStream, in a temporary folder, where each node may only publish for itself."""

import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from mldebug_agents.fleet.key_files import KeyFiles
from processes.harness import free_port, wait_for
from system.sites import Site

CONFIG = """
listen: "127.0.0.1:{port}"
max_payload: 2MB
jetstream {{ store_dir: "{folder}/jetstream", max_file_store: 2GB, max_memory_store: 16MB }}
tls {{ cert_file: "{site}/nats.pem", key_file: "{site}/nats.key", ca_file: "{site}/ca.pem", verify_and_map: true }}
authorization {{ users: [
  {{ user: "hub", permissions: {{ publish: ["$JS.API.>", "$JS.ACK.>", "_INBOX.>"], subscribe: ["_INBOX.hub.>"] }} }}
  {{ user: "anybody", permissions: {{ publish: ["mldebug.events.>"], subscribe: ["_INBOX.>"] }} }}
{nodes}
] }}
"""
NODE = '  {{ user: "{0}", permissions: {{ publish: ["mldebug.events.{0}"], subscribe: ["_INBOX.{0}.>"] }} }}'


class NatsServer:
    """One server, and the certificates of the hub and of its nodes."""

    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        if shutil.which("nats-server") is None:
            pytest.skip("needs nats-server (Debian: nats-server)")
        self.folder, self.port = folder, free_port()
        folder.mkdir(exist_ok=True)
        self.site = Site(folder / "site")
        self.site.node("nats", "127.0.0.1")
        for name in ("hub", "anybody", *nodes):  # anybody: benchmarks have thousands of nodes
            self.site.node(name)
        self._config = folder / "nats.conf"
        lines = "\n".join(NODE.format(one) for one in nodes)
        self._config.write_text(CONFIG.format(port=self.port, folder=folder, site=self.site.folder, nodes=lines))  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """As a config names it."""
        return f"nats://127.0.0.1:{self.port}"

    def keys(self, name: str) -> KeyFiles:
        """With what a node, or the hub, proves itself."""
        site = self.site.folder
        return KeyFiles(None, site / f"{name}.pem", site / f"{name}.key", self.site.ca)

    def start(self) -> None:
        """Start it, and wait until it listens."""
        argv = ["setpriv", "--pdeathsig=KILL", "nats-server", "-c", str(self._config)]
        with (self.folder / "nats.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)

        def listens() -> bool:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return True
            return False

        wait_for("nats-server", listens, 60)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None
