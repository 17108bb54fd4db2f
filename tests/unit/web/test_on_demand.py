"""The agent's HTTP server before and after the first client: nothing is imported until then, and nothing of what it serves is lost."""

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.config.schema import AgentConfig
from mldebug.core.errors import UsageError
from mldebug.status.run_lines import stale_words
from mldebug_agents.web import on_demand
from mldebug_agents.web.client import ask_agent, inquire
from mldebug_agents.web.control_requests import carry_out
from mldebug_agents.web.listeners import open_unix
from mldebug_agents.web.on_demand import OnDemandServer
from mldebug_agents.web.server import AgentServer
from shared.system.hung import wait_until
from shared.web.snapshots import moving, snapshot

SNAPSHOT, NEWER = snapshot(moving("r1")), snapshot(moving("r2"))
ALONE = """
import sys
from pathlib import Path
from mldebug.config.schema import AgentConfig
from mldebug_agents.agent import serving
from mldebug_agents.web.client import inquire
from mldebug_agents.web.listeners import open_unix
from mldebug_agents.web.on_demand import OnDemandServer
place = Path(sys.argv[1])
def there(): return [one for one in ("starlette", "uvicorn", "asyncio", "prometheus_client", "ClusterShell.Task", "torch") if one in sys.modules]
server = OnDemandServer(AgentConfig(state_dir=place, listen=""))
server.start()
server.serve_socket(open_unix(place))
print(*there())
while (outcome := inquire(place).outcome) == "silent": pass  # a busy machine takes its time
print(outcome)
print(*there())
"""


class Made:
    """Makes real servers, and counts them."""

    def __init__(self, failures: int = 0) -> None:
        self.count, self.failures = 0, failures
        self.servers: list[AgentServer] = []

    def __call__(self, settings: AgentConfig) -> AgentServer:
        self.count += 1
        if self.count <= self.failures:
            raise OSError("its files cannot be read")
        self.servers.append(AgentServer(settings))
        return self.servers[-1]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def server(folder: Path, made: Made) -> Iterator[OnDemandServer]:
    one = OnDemandServer(AgentConfig(state_dir=folder, listen=""), made)
    one.start()
    yield one
    one.stop(5)


def test_what_serves_http_is_imported_at_the_first_connection(folder: Path) -> None:
    argv = [sys.executable, "-c", ALONE, str(folder)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    before, outcome, after = done.stdout.split("\n")[:3]
    assert before == ""
    assert outcome == "starting"  # no snapshot yet
    assert after.split() == ["starlette", "uvicorn", "asyncio"]


def test_the_first_client_is_answered_with_what_was_published_before(
    folder: Path, server: OnDemandServer, made: Made
) -> None:
    server.publish(SNAPSHOT)
    server.serve_socket(open_unix(folder))
    assert made.count == 0
    wait_until(lambda: ask_agent(folder) == SNAPSHOT)
    server.publish(NEWER)
    assert ask_agent(folder) == NEWER
    assert made.count == 1


def test_verbs_that_were_set_before_the_first_client_are_there(
    folder: Path, server: OnDemandServer, made: Made
) -> None:
    server.publish(SNAPSHOT)
    server.serve_verbs({"/api/v1/one": lambda _: SNAPSHOT}, {}, lambda _: (200, b""))
    server.serve_socket(open_unix(folder))
    wait_until(lambda: ask_agent(folder) == SNAPSHOT)
    assert carry_out(made.servers[0].verbs["/api/v1/one"], {})[0] == 200


def test_a_snapshot_is_as_old_as_it_is(folder: Path, server: OnDemandServer, made: Made) -> None:
    """Whoever comes to an agent that has stood still for long is told so."""
    server.publish(SNAPSHOT)
    assert server._published is not None
    server._published = server._published[0], server._published[1] - 1000
    server.serve_socket(open_unix(folder))
    wait_until(lambda: ask_agent(folder) == SNAPSHOT)
    [real] = made.servers
    assert stale_words(real.pages._age()) != ""


def test_a_socket_that_is_replaced_before_the_first_client_is_closed(
    folder: Path, server: OnDemandServer, made: Made
) -> None:
    first, second = socket.socket(), open_unix(folder)
    first.bind(("127.0.0.1", 0))
    first.listen()
    server.publish(SNAPSHOT)
    server.serve_socket(first)
    server.serve_socket(second)
    assert first.fileno() == -1
    wait_until(lambda: ask_agent(folder) == SNAPSHOT)
    server.serve_socket(None)
    wait_until(lambda: inquire(folder).outcome == "none")
    assert made.count == 1


def test_one_that_nobody_asked_ends_at_once_and_leaves_no_port(made: Made, folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    for _ in range(2):
        one = OnDemandServer(AgentConfig(state_dir=folder, listen=address), made)
        one.start()
        with pytest.raises(UsageError, match="cannot listen"):
            OnDemandServer(AgentConfig(state_dir=folder, listen=address), made).start()
        one.stop()
        wait_until(lambda one=one: not one._thread.is_alive())
        late = open_unix(folder)
        one.serve_socket(late)
        assert late.fileno() == -1
    assert made.count == 0


def test_a_server_that_cannot_be_made_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "RETRY", 0.05)
    made = Made(failures=2)
    server = OnDemandServer(AgentConfig(state_dir=folder, listen=""), made)
    server.publish(SNAPSHOT)
    server.start()
    server.serve_socket(open_unix(folder))
    wait_until(lambda: ask_agent(folder) == SNAPSHOT)
    assert made.count == 3
    server.stop(5)


def test_publishing_waits_for_no_server_that_is_being_made(folder: Path) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def slow(settings: AgentConfig) -> AgentServer:
        begun.set()
        assert goes_on.wait(60)
        return AgentServer(settings)

    server = OnDemandServer(AgentConfig(state_dir=folder, listen=""), slow)
    server.start()
    server.serve_socket(open_unix(folder))
    client = threading.Thread(target=inquire, args=(folder,))
    client.start()
    assert begun.wait(60)
    server.publish(SNAPSHOT)  # as the main loop does, which never waits
    goes_on.set()
    client.join(60)
    wait_until(lambda: ask_agent(folder) == SNAPSHOT)
    server.stop(5)


def test_a_group_that_is_not_there_is_refused_at_the_start(folder: Path) -> None:
    with pytest.raises(UsageError, match="no group"):
        OnDemandServer(AgentConfig(state_dir=folder, listen="", group="no-such-group"))
