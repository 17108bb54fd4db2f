"""An agent starts on the state folder of the version before: an open incident goes on, and ends, under its id."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.alerts.model import AlertEvent
from mldebug.config.schema import AgentConfig, Config, StallConfig
from mldebug.diagnosis.exits.model import KnownExits
from mldebug.hardware.gpu.expected import ExpectedGpus
from mldebug.hardware.gpu.fingerprint import RunBaselines
from mldebug.incidents.incident import Incident
from mldebug.incidents.report_store import ReportStore
from mldebug.stall.progress_clock import StallMemory
from mldebug_agents.agent.node_tools import CurrentConfig, open_tools
from mldebug_agents.agent.wiring import build_loop
from mldebug_agents.alerts.action_runner.chains import ActionChain
from mldebug_agents.state.store import StateStore
from mldebug_agents.storage.checkpoints.monitor import _StoredSeries
from mldebug_agents.system.service.sd_notify import SystemdNotifier
from shared.system.hung import wait_until

OLDER = Path(__file__).parents[2] / "fixtures/state-0.1.0"
ID = "20261126T023237Z-7842990b"
ROWS: dict[str, Any] = json.loads((OLDER / "rows.json").read_bytes())
TYPES: dict[str, type[msgspec.Struct]] = {
    "runs.memory": StallMemory, "runs.incident": Incident, "ends": KnownExits, "gpus/": RunBaselines, "expected_gpus": ExpectedGpus,
    "saves": _StoredSeries, "action:": ActionChain, "event:": AlertEvent,
}  # fmt: skip
UNREAD = {"pools", "seen_at"}  # nothing has ever read them


def test_what_an_older_agent_left_open_is_ended_under_its_id(tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(OLDER, state)
    state.chmod(0o711)
    report = state / "reports" / ID / "report.json"
    before = json.loads(report.read_bytes())
    assert before["state"] == "open"
    config = Config(agent=AgentConfig(state_dir=state, listen=""), stall=StallConfig(interval=0.5))
    with open_tools(config) as tools:
        store = StateStore(state, tools.context.spawner, retry=0.01)
        store.start(30)
        loop = build_loop(CurrentConfig(config), tools, store, lambda _: None, SystemdNotifier({}))
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            wait_until(lambda: json.loads(report.read_bytes())["state"] == "ended")
        finally:
            loop.stop()
            thread.join(10)
            store.close(30)
    before, after = _without_module(before), _without_module(json.loads(report.read_bytes()))
    assert after["timeline"][: len(before["timeline"])] == before["timeline"]
    assert "gone when the agent came back" in after["timeline"][-1]["what"]
    for key in ("id", "kind", "job"):
        assert after[key] == before[key]
    # new keys may have come, and what to type next is advised anew
    before["diagnosis"].pop("next_steps")
    assert after["diagnosis"] == after["diagnosis"] | before["diagnosis"]
    assert after["ranks"] == [new | old for new, old in zip(after["ranks"], before["ranks"], strict=True)]  # fmt: skip


def _without_module(report: dict[str, Any]) -> dict[str, Any]:
    """An older agent's sentences call the code of a script `<module> (hang.py:8)`; it is the line alone since."""
    text = json.dumps(report).replace("<module> (hang.py:8)", "hang.py:8")
    found: dict[str, Any] = json.loads(text)
    return found


def test_reports_and_evidence_of_an_older_agent_are_read(tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(OLDER, state)
    (entry,) = ReportStore(state).list()
    assert (entry.id, entry.verdict) == (ID, "rank_waiting")
    assert msgspec.json.decode((state / "reports" / ID / "report.json").read_bytes())["diagnosis"]["culprits"][0]["rank"] == 1  # fmt: skip


def missing(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """What stands in an older document and not, or otherwise, in the one that is written of it now."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - UNREAD:
            yield from missing(old[key], new.get(key, "nothing"), f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from missing(before, now, f"{place}[{number}]")
    elif old != new:
        yield f"{place}: {old!r} became {new!r}"


def test_what_is_missing_is_found() -> None:
    old = {"a": [{"b": 1}], "pools": 1, "c": 2}
    assert list(missing(old, {"a": [{"b": 2, "d": 3}], "c": 2})) == [".a[0].b: 1 became 2"]
    assert list(missing(old, {"a": [{"b": 1}]})) == [".c: 2 became 'nothing'"]


def test_every_kind_of_row_has_an_older_example() -> None:
    assert ROWS.keys() == TYPES.keys()


@pytest.mark.parametrize("place", sorted(TYPES))
def test_nothing_is_lost_of_a_row_that_an_older_agent_wrote(place: str) -> None:
    read = msgspec.json.decode(json.dumps(ROWS[place]), type=TYPES[place])
    assert list(missing(ROWS[place], json.loads(msgspec.json.encode(read)))) == []
