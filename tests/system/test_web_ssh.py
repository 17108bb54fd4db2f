"""The line that `mldebug web` prints, typed as it stands: real ssh, real sshd, the agent's socket at its other end."""

import http.client
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug_agents.web.listeners import way_in
from processes.harness import free_port, wait_for
from shared.web.webpages import pages, shown, training
from system.hosts import Hosts, ssh_hosts

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(120)]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """One host with sshd."""
    if os.geteuid() != 0:
        pytest.skip("only root can start sshd")
    with ssh_hosts(1) as one:
        yield one


@pytest.fixture
def state() -> Iterator[Path]:
    """A state dir with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    yield folder
    shutil.rmtree(folder)


def test_the_printed_line_shows_the_pages(hosts: Hosts, state: Path) -> None:
    (line,) = (line for line in way_in(state, None) if line.startswith("  ssh "))
    port = free_port()
    ssh, *words, _ = shlex.split(line.replace("8080", str(port)))
    argv = [ssh, *shlex.split(hosts.options), *words, "h1"]
    with pages(state, shown(training())):
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        try:
            wait_for("the forwarded port", lambda: _open(port), 20)
            assert "llama-7b" in _get(port, f"localhost:{port}")[1]
            assert _get(port, "evil.example")[0] == 403
        finally:
            process.terminate()
            process.wait(10)


def _open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _get(port: int, host: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    link.request("GET", "/runs", headers={"Host": host})
    answer = link.getresponse()
    cases = answer.status, answer.read().decode()
    link.close()
    return cases
