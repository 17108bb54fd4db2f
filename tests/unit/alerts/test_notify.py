"""What the service manager hears, over a real datagram socket, also while the agent's own look is stuck."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mldebug.config.schema import AgentConfig, Config, StallConfig
from mldebug.core.errors import MldebugError
from mldebug.status.snapshot import Snapshot
from mldebug_agents.agent import loop as module
from mldebug_agents.agent.node_tools import CurrentConfig, open_tools
from mldebug_agents.agent.wiring import build_loop
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.service.sd_notify import (
    MAX_STATUS,
    SystemdNotifier,
    reloading,
    status_text,
)
from mldebug_agents.watch.watch import Watch
from shared.system.hung import wait_until
from shared.web.snapshots import REPORT, moving, snapshot, stalled


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """The address of a service manager, and all that it has heard."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.setblocking(False)
        lines: list[str] = []

        def listen() -> list[str]:
            with suppress(BlockingIOError):
                while True:
                    lines.extend(ear.recv(4096).decode().splitlines())
            return lines

        yield str(tmp_path / "notify"), listen


def test_states_go_out_in_one_datagram_and_status_only_when_new(
    manager: tuple[str, Callable[[], list[str]]],
) -> None:
    address, messages = manager
    notifier = SystemdNotifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"})
    notifier.send("READY=1", "STATUS=x")
    for _ in range(3):
        notifier.status("1 run")
    notifier.status("2 runs")
    assert messages() == ["READY=1", "STATUS=x", "STATUS=1 run", "STATUS=2 runs"]


def test_an_abstract_address_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind("\0mldebug-test-notify")
        SystemdNotifier({"NOTIFY_SOCKET": "@mldebug-test-notify"}).send("READY=1")
        assert ear.recv(100) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "x"}])
def test_without_a_manager_nothing_happens(environ: dict[str, str]) -> None:
    SystemdNotifier(environ).send("READY=1")


def test_a_reload_begins_with_the_time_that_systemd_asks_for() -> None:
    before = time.monotonic_ns() // 1000
    first, second = reloading()
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_the_status_names_runs_and_open_incidents() -> None:
    assert status_text(snapshot()) == "0 runs"
    assert status_text(snapshot(moving())) == "1 run (train.py)"
    result = status_text(snapshot(moving(), stalled(), reports_waiting=2))
    assert result.startswith("2 runs (train.py, run")
    assert f"incident {REPORT}: rank_waiting" in result
    assert result.endswith("2 reports wait for the state dir")
    many = status_text(snapshot(*(moving(str(number)) for number in range(900))))
    assert len(many) <= MAX_STATUS
    assert "900 runs (train.py, train.py, train.py, …)" in many


def test_a_look_that_never_comes_back_stops_neither_the_watchdog_nor_the_start(
    manager: tuple[str, Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, messages = manager
    back = threading.Event()
    monkeypatch.setattr(Watch, "look", lambda *_: back.wait(60))
    monkeypatch.setattr(module, "LOOK_DEADLINE", 0.5)  # of its worker, which is made with it
    monkeypatch.setattr(module, "BEAT", 0.05)
    config = Config(
        agent=AgentConfig(state_dir=tmp_path / "state", listen=""), stall=StallConfig(interval=0.5)
    )
    published: list[Snapshot] = []
    with open_tools(config) as tools:
        ledger = StateStore(config.agent.state_dir, tools.context.spawner, retry=0.01)
        ledger.start(5)
        node = build_loop(
            CurrentConfig(config),
            tools,
            ledger,
            published.append,
            SystemdNotifier({"NOTIFY_SOCKET": address}),
        )
        monkeypatch.setattr(module, "LOOK_DEADLINE", 3600.0)  # of the start: until we say so
        thread = threading.Thread(target=node.run)
        thread.start()
        try:
            wait_until(lambda: messages().count("WATCHDOG=1") >= 5)
            assert "READY=1" not in messages()
            assert published == []
            monkeypatch.setattr(module, "LOOK_DEADLINE", 0.0)
            wait_until(lambda: "READY=1" in messages())
            before = messages().count("WATCHDOG=1")
            wait_until(lambda: messages().count("WATCHDOG=1") > before + 5)
            wait_until(lambda: any(one.stuck for one in published[-1].sources))
        finally:
            node.stop()
            # a manager reads all the time: its socket holds but a few messages, and what finds it full is lost
            wait_until(lambda: messages() and not thread.is_alive())
            back.set()
            ledger.close(5)
    assert "STOPPING=1" in messages()


def test_without_its_helper_the_loop_ends_with_an_error(tmp_path: Path) -> None:
    config = Config(
        agent=AgentConfig(state_dir=tmp_path / "state", listen=""), stall=StallConfig(interval=0.5)
    )
    with open_tools(config) as tools:
        ledger = StateStore(config.agent.state_dir, tools.context.spawner, retry=0.01)
        ledger.start(5)
        node = build_loop(CurrentConfig(config), tools, ledger, lambda _: None, SystemdNotifier({}))
        os.kill(tools.context.spawner.helper_pid, signal.SIGKILL)
        with pytest.raises(MldebugError, match="is gone; restart mldebug") as raised:
            node.run()
        ledger.close(5)
    assert raised.value.exit_code not in (0, 2)  # systemd starts it again
