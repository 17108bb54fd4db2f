"""Asking a rank for a profile: what lies in shared memory before and afterwards, and what two that ask at once are told."""

import errno
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mldebug.core.errors import AccessError, MldebugError
from mldebug.core.model import RankIdentity
from mldebug_agents.jobs.hook import request_child, requests
from mldebug_agents.jobs.hook.request_child import HookRequestFile, HookRequestReply, carry_out
from mldebug_agents.jobs.hook.requests import HookRequests, HookResult, StepOrder
from mldebug_agents.jobs.hook.signals import SignalTarget
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.reader_answers import FilePiece

NAME = "mldebug-1-1.request"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def write(root: Path) -> HookRequestReply:
    owner = Rights(os.getuid(), os.getgid())
    order = HookRequestFile(verb="write", root=str(root), name=NAME, owner=owner, data=b"{}")
    return carry_out(order)


@pytest.mark.parametrize(
    ("age", "exists", "left"), [(3600.0, False, b"{}"), (-3600.0, False, b"{}"), (1.0, True, b"")]
)
def test_a_request_that_was_left_behind_keeps_nobody_out(
    root: Path, age: float, exists: bool, left: bytes
) -> None:
    path = root / "dev/shm" / NAME
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    assert write(root) == HookRequestReply(exists=exists)
    assert path.read_bytes() == left


def test_where_there_is_no_room_no_empty_request_is_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(request_child.os, "write", full)
        assert "No space left" in write(root).error
    assert list((root / "dev/shm").iterdir()) == []
    assert write(root) == HookRequestReply()


def same(_: RankIdentity, result: HookResult) -> HookResult:
    return result


class RankReader:
    """Two ranks with the hook, which answer what the test says; the clock goes on by a second with each look."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.answers, self.now = answers, 0.0

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def read_from(self, path: str, at: int, **_: object) -> FilePiece | None:
        if path.endswith(".answer"):
            one = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            data = json.dumps({"layout": 1, "number": 6, **one}).encode()
        else:
            data = b"trace"[at:]
        return FilePiece(data=data, size=len(data), mtime=0.0, inode=1, device=1, uid=os.getuid())


def hook_requests(reader: RankReader, monkeypatch: pytest.MonkeyPatch) -> HookRequests:
    beat = SimpleNamespace(signal=60, step=3)
    signals = SimpleNamespace(
        hold=lambda pid: nullcontext(
            SignalTarget(
                RankIdentity(rank=pid, world_size=2, pid=pid, uid=os.getuid()), -1, beat, "r", 0
            )  # type: ignore[arg-type]
        ),
        ask=lambda target, number: True,
        rights=lambda target: Rights(os.getuid(), os.getgid()),
        path=lambda target, suffix: "r" + suffix,
        beat=lambda target: SimpleNamespace(signal=60, step=4),
    )
    brief = SimpleNamespace(state="S", start_ticks=0)
    host = SimpleNamespace(root_of=lambda pid: "", brief=lambda pid: brief, proc="/proc")
    monkeypatch.setattr(requests, "PAUSE", 0.0)
    monkeypatch.setattr(requests.secrets, "randbelow", lambda most: 5)
    parts: Any = (signals, host, reader, None)
    return HookRequests(*parts, clock=reader.clock)


def rank(pid: int) -> RankIdentity:
    return RankIdentity(rank=pid, world_size=2, pid=pid, uid=os.getuid())


def test_who_was_heard_waits_on_when_another_one_is_declined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = {"number": 99, "state": "declined", "why": "it works on another request"}
    done = {"state": "done", "fd": 3, "bytes": 5, "first": 1, "last": 1}
    reader = RankReader([{"state": "accepted"}, *([other] * 15), done])
    monkeypatch.setattr(request_child, "place", lambda spawner, order: True)
    found = hook_requests(reader, monkeypatch).ask([rank(1)], StepOrder(what="profile"), same)
    assert (found[1].data, found[1].failure) == (b"trace", "")


def test_who_was_not_heard_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RankReader([{"number": 99, "state": "declined"}])
    monkeypatch.setattr(request_child, "place", lambda spawner, order: True)
    found = hook_requests(reader, monkeypatch).ask([rank(1)], StepOrder(what="profile"), same)
    assert found[1].failure == requests.DEAF


def test_one_rank_without_room_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = iter((MldebugError("/dev/shm of the rank: No space left on device"), None))

    def place(spawner: object, order: HookRequestFile) -> bool:
        if why := next(roots):
            raise why
        return True

    monkeypatch.setattr(request_child, "place", place)
    reader = RankReader([{"state": "done", "fd": 3, "bytes": 5, "first": 1, "last": 1}])
    found = hook_requests(reader, monkeypatch).ask(
        [rank(1), rank(2)], StepOrder(what="profile"), same
    )
    assert "No space left" in found[1].failure
    assert found[2].data == b"trace"


def test_who_is_interrupted_takes_back_what_he_has_asked_and_nothing_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank works on it, another is asked by somebody else: his request stays."""
    orders: list[tuple[str, Any]] = []

    def place(spawner: object, order: HookRequestFile) -> bool:
        orders.append((order.verb, json.loads(order.data).get("what")))
        return len(orders) != 2

    class Interrupted(RankReader):
        def read_from(self, path: str, at: int, **more: object) -> FilePiece | None:
            if len(self.answers) == 1:
                raise KeyboardInterrupt
            return super().read_from(path, at, **more)

    monkeypatch.setattr(request_child, "place", place)
    reader = Interrupted([{"state": "accepted"}] * 3)
    with pytest.raises(KeyboardInterrupt):
        hook_requests(reader, monkeypatch).ask([rank(1), rank(2)], StepOrder(what="profile"), same)
    assert orders == [("write", "profile"), ("write", "profile"), ("remove", "profile"), ("write", "cancel")]  # fmt: skip


@pytest.mark.parametrize("why", [KeyboardInterrupt(), AccessError("Permission denied")])
def test_what_was_asked_is_taken_back_when_the_next_rank_cannot_be(
    monkeypatch: pytest.MonkeyPatch, why: BaseException
) -> None:
    """Interrupted while the second request is laid down, it may lie there: both are taken back, and only what has this request's content."""
    orders: list[HookRequestFile] = []

    def place(spawner: object, order: HookRequestFile) -> bool:
        orders.append(order)
        if len(orders) == 2:
            raise why
        return True

    monkeypatch.setattr(request_child, "place", place)
    reader = RankReader([{"state": "accepted"}])
    with pytest.raises(type(why)):
        hook_requests(reader, monkeypatch).ask([rank(1), rank(2)], StepOrder(what="profile"), same)
    assert [one.verb for one in orders] == ["write", "write", *["remove", "write"] * 2]
    assert {one.data for one in orders if one.verb == "remove"} == {orders[0].data}
    assert [json.loads(one.data)["what"] for one in orders[3::2]] == ["cancel", "cancel"]


@pytest.mark.parametrize(("mine", "left"), [(b"{}", []), (b"another", [NAME])])
def test_a_request_is_taken_back_where_it_is_ones_own(
    root: Path, mine: bytes, left: list[str]
) -> None:
    assert write(root) == HookRequestReply()
    owner = Rights(os.getuid(), os.getgid())
    order = HookRequestFile(verb="remove", root=str(root), name=NAME, owner=owner, data=mine)
    assert carry_out(order) == HookRequestReply()
    assert [one.name for one in (root / "dev/shm").iterdir()] == left
