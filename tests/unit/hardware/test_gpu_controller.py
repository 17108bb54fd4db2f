"""Requests about GPUs: over a real socket to a server, from threads to the main loop, with a source that holds something."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.config.schema import AgentConfig
from mldebug.core.errors import MldebugError, UsageError
from mldebug_agents.hardware.gpu.controller import (
    ACCEPT,
    FOR_RESET,
    HOLD,
    LONGEST,
    RELEASE,
    Accepted,
    GpuController,
    Released,
    gpu_verbs,
)
from mldebug_agents.web.client import ask_nearest
from mldebug_agents.web.control_requests import carry_out, post_to_agent
from mldebug_agents.web.listeners import open_unix
from mldebug_agents.web.server import AgentServer
from shared.system.patience import PATIENCE
from shared.web.snapshots import snapshot


class Source:
    """GPUs that are held until released, and for a while longer."""

    def __init__(self, slow: float = 0.0) -> None:
        self.requests: list[float] = []
        self.released_seconds = 0.0
        self._free_at = math.inf
        self._slow = slow

    def release(self, seconds: float) -> None:
        self.requests.append(seconds)
        self.released_seconds = seconds
        self._free_at = time.monotonic() + self._slow if seconds else math.inf

    def let_go(self) -> bool:
        return time.monotonic() >= self._free_at


@contextmanager
def serving(folder: Path, desk: GpuController) -> Iterator[None]:
    server = AgentServer(AgentConfig(state_dir=folder, listen=""))
    server.verbs = gpu_verbs(desk)
    server.publish(snapshot())
    server.serve_socket(open_unix(folder))
    try:
        yield
    finally:
        server.stop(5)


# --- release ---------------------------------------------------------------------------------------------


def test_a_release_is_answered_when_the_handles_are_closed(tmp_path: Path) -> None:
    source = Source(slow=0.3)
    desk = GpuController(source)
    with serving(tmp_path, desk):
        began = time.monotonic()
        result = post_to_agent(tmp_path, RELEASE, Released, seconds=600.0)
    assert result == Released(seconds=600.0, closed=True)
    assert 0.3 <= time.monotonic() - began < 10 * PATIENCE
    assert source.requests == [600.0]
    assert desk.released_until is not None
    assert desk.released_until == pytest.approx(time.time() + 600, abs=5)


def test_a_reader_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mldebug_agents.hardware.gpu.controller.CLOSED_WITHIN", 0.1)
    assert GpuController(Source(slow=60.0)).release(60.0) == Released(seconds=60.0, closed=False)


def test_to_end_a_release_waits_for_nobody() -> None:
    source = Source()
    desk = GpuController(source)
    desk.release(60.0)
    began = time.monotonic()
    assert desk.release(0.0).seconds == 0.0
    assert time.monotonic() - began < 1 * PATIENCE
    assert (source.requests, desk.released_until, desk.why) == ([60.0, 0.0], None, "")


def test_the_agent_lets_go_by_itself_until_it_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source()
    desk = GpuController(source)
    assert desk.let_go_for_reset()
    assert "the driver asks for a reset" in desk.why
    desk.release(0.0)
    assert not desk.let_go_for_reset()
    assert source.requests == [FOR_RESET, 0.0]
    later = time.monotonic() + HOLD + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert desk.let_go_for_reset()


@pytest.mark.parametrize("seconds", [math.nan, -1.0, math.inf, LONGEST + 1])
def test_no_absurd_time_is_taken(seconds: float) -> None:
    source = Source()
    with pytest.raises(UsageError, match="so long"):
        GpuController(source).release(seconds)
    assert source.requests == []


def test_a_recording_holds_nothing() -> None:
    desk = GpuController(object())
    assert desk.release(60.0) == Released(seconds=60.0, closed=True)
    assert desk.released_until is None


# --- accept ----------------------------------------------------------------------------------------------


def test_accepting_is_done_by_the_main_loop(tmp_path: Path) -> None:
    desk = GpuController(Source())
    done: list[str] = []
    over = threading.Event()

    def accept() -> int:
        done.append(threading.current_thread().name)
        return 7

    def loop() -> None:
        while not over.wait(0.02):
            list(desk.grant(accept))

    main = threading.Thread(target=loop, name="loop")
    main.start()
    try:
        with serving(tmp_path, desk):
            assert post_to_agent(tmp_path, ACCEPT, Accepted) == Accepted(expected=7)
    finally:
        over.set()
        main.join(10)
    assert done == ["loop"]


def test_what_cannot_be_read_is_not_accepted() -> None:
    desk = GpuController(Source())
    answers: list[MldebugError] = []

    def ask() -> None:
        with pytest.raises(MldebugError) as raised:
            desk.accept(10.0)
        answers.append(raised.value)

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + 10 * PATIENCE
    while asking.is_alive() and time.monotonic() < deadline:
        assert list(desk.grant(lambda: None)) == []
    asking.join(10)
    assert "nothing was accepted" in answers[0].message


def test_a_loop_that_does_not_turn_is_told() -> None:
    with pytest.raises(MldebugError, match="was too busy to answer"):
        GpuController(Source()).accept(0.05)


# --- over the socket -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [{}, {"seconds": "soon"}, {"seconds": "1e9"}])
def test_a_bad_request_is_said_to_be_one(table: dict[str, str]) -> None:
    source = Source()
    status, body = carry_out(gpu_verbs(GpuController(source))[RELEASE], table)
    assert (status, source.requests) == (400, [])
    assert b"way_out" in body


def test_an_error_comes_back_as_the_same_error(tmp_path: Path) -> None:
    with serving(tmp_path, GpuController(Source())):
        with pytest.raises(UsageError, match="so long"):
            post_to_agent(tmp_path, RELEASE, Released, seconds=1e9)
        with pytest.raises(MldebugError, match="it is older"):
            post_to_agent(tmp_path, "/api/v1/gpus/paint", Released)


def test_only_what_is_meant_to_be_told_can_be_told(tmp_path: Path) -> None:
    source = Source()
    with serving(tmp_path, GpuController(source)), pytest.raises(MldebugError, match="it is older"):
        post_to_agent(tmp_path, "/api/v1/status", Released)
    assert source.requests == []


def test_no_agent_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(MldebugError, match="no agent runs here"):
        post_to_agent(tmp_path, RELEASE, Released, seconds=1.0)
    assert ask_nearest(tmp_path, here_only=True).state_dir == tmp_path
