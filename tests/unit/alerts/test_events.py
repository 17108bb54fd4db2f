"""Events from alarm to resolution, across restarts and channels that fail."""

import queue
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.alerts.event_registry import KEPT, MOST, EventRegistry
from mldebug.alerts.health_events import health_alerts, healthy_keys
from mldebug.alerts.message import message_of, plain_text
from mldebug.alerts.model import (
    Alert,
    AlertEvent,
    EventMessage,
    EventState,
    MessageRefusedError,
    Severity,
)
from mldebug.alerts.node_events import of_checkpoints, of_memory, of_storage, together
from mldebug.alerts.status_lines import event_lines
from mldebug.alerts.view import EventsView, EventView
from mldebug.config.schema import Config
from mldebug.core.model import Gap, Job, RankIdentity
from mldebug.core.plugin_options import Plugin
from mldebug.hardware.health.model import ComponentHealth, HealthState, SuggestedAction
from mldebug.hardware.health.sentences import GpuName
from mldebug.hardware.host_memory.parse import Level
from mldebug.hardware.host_memory.state import LevelState, NodeMemory
from mldebug.incidents.incident import Incident, close_incident
from mldebug.incidents.judge import judge
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.model import Completeness as SavedAs
from mldebug.storage.checkpoints.state import SeriesState
from mldebug.storage.filesystems.state import CollectorState, StorageState
from mldebug.storage.filesystems.state import StorageAlert as RoomAlarm
from mldebug_agents.alerts import delivery, notifier
from mldebug_agents.alerts.notifier import AlertNotifier
from mldebug_agents.state import writer_thread
from mldebug_agents.system.workers import Result
from shared.system.patience import PATIENCE
from shared.web.snapshots import snapshot

NOW = 1_700_000_000.0


def alarm(key: str = "a", sentence: str = "it hangs", **more: Any) -> Alert:
    return Alert(key=key, kind="stall", severity=Severity.CRITICAL, sentence=sentence, **more)


def states(book: EventRegistry) -> dict[str, str]:
    return {one.key: str(one.state) for one in book.all()}


# --- the book ------------------------------------------------------------------------------------


def test_an_alarm_fires_only_when_it_has_stood_for_a_while() -> None:
    book = EventRegistry(pending=30.0)
    book.raise_(alarm(), NOW)
    assert states(book) == {"a": "pending"}
    book.raise_(alarm(), NOW + 29)
    assert (states(book), book.unsent("ops")) == ({"a": "pending"}, [])
    book.raise_(alarm(), NOW + 30)
    assert states(book) == {"a": "firing"}


def test_what_passes_before_it_fires_is_told_to_nobody() -> None:
    book = EventRegistry(pending=30.0)
    book.raise_(alarm(), NOW)
    book.clear("a", NOW + 5)
    assert (book.all(), book.unsent("ops")) == ((), [])


def test_each_state_is_told_once_and_a_refined_culprit_is_no_news() -> None:
    book = EventRegistry()
    book.raise_(alarm(), NOW, at_once=True)
    (event,) = book.unsent("ops")
    book.acknowledge("a", "ops", "firing", event.started)
    book.raise_(alarm(sentence="rank 3 hangs"), NOW + 5, at_once=True)
    assert book.unsent("ops") == []
    book.clear("a", NOW + 9, "recovered")
    (over,) = book.unsent("ops")
    assert (over.state, over.outcome, over.alert.sentence) == ("resolved", "recovered", "rank 3 hangs")  # fmt: skip
    book.acknowledge("a", "ops", "resolved", over.started)
    assert book.unsent("ops") == []


def test_the_end_that_comes_while_the_beginning_is_under_way_is_told_after_it() -> None:
    book = EventRegistry()
    book.raise_(alarm(), NOW, at_once=True)
    (sent,) = book.unsent("ops")
    book.clear("a", NOW + 1)
    book.acknowledge("a", "ops", str(sent.state), sent.started)
    assert [one.state for one in book.unsent("ops")] == [EventState.RESOLVED]


def test_a_clock_that_is_set_back_ends_nothing_before_it_began() -> None:
    book = EventRegistry()
    book.raise_(alarm(), NOW, at_once=True)
    book.clear("a", NOW - 3600)
    (event,) = book.all()
    assert event.ended is not None
    assert event.ended >= event.started


def test_a_new_beginning_is_told_though_its_key_was_told_before() -> None:
    book = EventRegistry()
    for at in (NOW, NOW + 100):
        book.raise_(alarm(), at, at_once=True)
        (event,) = book.unsent("ops")
        assert event.state is EventState.FIRING
        book.acknowledge("a", "ops", "firing", event.started)
        book.clear("a", at + 1)
        (over,) = book.unsent("ops")
        book.acknowledge("a", "ops", "resolved", over.started)


def test_what_is_over_is_forgotten_only_when_all_have_heard() -> None:
    book = EventRegistry()
    book.raise_(alarm(), NOW, at_once=True)
    book.clear("a", NOW + 1)
    (over,) = book.unsent("ops")
    book.acknowledge("a", "ops", "resolved", over.started)
    book.tidy(("ops", "mail"), NOW + KEPT + 2)
    assert len(book.all()) == 1
    book.tidy(("ops",), NOW + KEPT + 2)  # mail was taken out of the configuration
    assert book.all() == ()
    assert ("a", None) in book.changed()


def test_ten_thousand_alarms_are_bounded_and_the_rest_is_counted() -> None:
    book = EventRegistry()
    for number in range(10_000):
        book.raise_(alarm(f"a{number}"), NOW + number, at_once=True)
    assert (len(book.all()), book.dropped) == (MOST, 10_000 - MOST)
    assert len(book.unsent("ops")) == MOST


# --- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [({"uid": 2001}, {"uid": 2002}), *((a, {"uid": 0, "owner": (0, "cd")}) for a in ({"uid": 0}, {"uid": 0, "owner": (0, "ab")}))],
)  # fmt: skip
def test_one_user_s_thousands_of_alerts_leave_room_for_another_s(a: Any, b: Any) -> None:
    book = EventRegistry()
    for number in range(MOST + 50):
        book.raise_(alarm(f"b{number}", **b), NOW, at_once=True)
    book.raise_(alarm("a", **a), NOW + 1, at_once=True)
    book.raise_(alarm("node"), NOW + 1, at_once=True)
    for number in range(50):  # he raises them again at each turn
        book.raise_(alarm(f"b{MOST + number}", **b), NOW + 2, at_once=True)
    assert book.get("a") is not None
    assert book.get("node") is not None
    assert len(book.all()) == MOST
    assert book.get("b0") is not None  # his own first ones stay


@pytest.mark.parametrize("b", [{"uid": 2002}, {"uid": 2001, "owner": (2001, "cd")}])
def test_the_events_that_are_shown_are_some_of_each_user(b: Any) -> None:
    events = [
        AlertEvent(alert=alarm(f"b{n}", **b), state=EventState.FIRING, started=NOW + n)
        for n in range(500)
    ]
    mine = AlertEvent(alert=alarm("a", uid=2001), state=EventState.FIRING, started=NOW - 9)
    shown = notifier._newest([mine, *events])
    assert len(shown) == notifier.SHOWN
    assert [one.key for one in shown[:2]] == ["a", "b401"]


def test_the_alert_of_a_run_in_a_container_takes_the_share_of_its_root() -> None:
    rank = RankIdentity(rank=0, world_size=1, pid=7, uid=0, container="ab")
    run = Job(id="r", name="j", launcher="torchrun", world_size=1, ranks=(rank,))
    stall = Incident(id="i", key="k", job_id="r", job=run, detected_at=NOW)
    made = notifier.alert_of(stall, judge(stall), 0)
    assert (made.uid, made.share) == (0, (0, "ab"))


def test_a_hostile_name_neither_breaks_the_subject_nor_leaks_a_secret() -> None:
    evil = "job\r\nBcc: x@evil\x1b[31m token=hf_abcdefghijklmnopqrstuvwxyz müller"
    event = AlertEvent(
        alert=alarm(sentence=evil, labels={"job": evil}), state=EventState.FIRING, started=NOW
    )
    result = message_of(event, "node1")
    assert result.subject.isprintable()
    assert "hf_abc" not in plain_text(result) + str(result.labels)
    assert "müller" in result.subject


def test_a_double_has_the_same_id_and_each_state_its_own() -> None:
    event = AlertEvent(alert=alarm(), state=EventState.FIRING, started=NOW)
    refined = msgspec.structs.replace(
        event, alert=alarm(sentence="rank 3"), acknowledged={"x": "firing"}
    )
    over = msgspec.structs.replace(event, state=EventState.RESOLVED, ended=NOW + 1)
    ids = [message_of(one, "node1").id for one in (event, refined, over)]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    ("link", "text"),
    [("", "mldebug reports show R1"), ("https://x/r/{report}", "https://x/r/R1")],
)
def test_a_message_shows_the_way_to_the_report(link: str, text: str) -> None:
    event = AlertEvent(
        alert=alarm(report="R1", next_steps=("look",)), state=EventState.FIRING, started=NOW
    )
    message = message_of(event, "node1", link)
    assert message.link == text
    assert f"report: {text}" in plain_text(message)
    assert "next step: look" in plain_text(message)


# --- health --------------------------------------------------------------------------------------


def health(state: HealthState, reason: str = "") -> ComponentHealth:
    return ComponentHealth(component="gpu_ecc", state=state, reason=reason, uuid="G1", gpu=1, action=SuggestedAction.REPLACE)  # fmt: skip


def test_a_sick_gpu_is_an_alarm_until_it_is_known_to_be_well() -> None:
    names = {"G1": GpuName(1)}
    (sick,) = health_alerts([health(HealthState.UNHEALTHY, "5 errors")], names)
    (worse,) = health_alerts([health(HealthState.UNHEALTHY, "9 errors")], names)
    assert (sick.severity, sick.sentence) == ("critical", "GPU 1 is unhealthy: 5 errors")
    assert sick.key == worse.key
    assert list(healthy_keys([health(HealthState.UNKNOWN)])) == []
    assert list(healthy_keys([health(HealthState.HEALTHY)])) == [sick.key]


# --- the desk ------------------------------------------------------------------------------------


class Memory:
    """A ledger that outlives its agents; counts what is written."""

    opened = True

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}

    def memo(self, name: str) -> bytes:
        return self.rows.get(name, b"")

    def remember(self, name: str, data: bytes) -> None:
        if data:
            self.rows[name] = data
        else:
            self.rows.pop(name, None)

    def is_stored(self, name: str) -> bool:
        return True

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(name for name in self.rows if name.startswith(beginning))


class Sink:
    """A channel whose messages the test reads; `errors` are raised first."""

    repeat = 0.0

    def __init__(self) -> None:
        self.got: list[EventMessage] = []
        self.errors: list[Exception] = []
        self.gate = threading.Event()
        self.gate.set()

    def send(self, message: EventMessage) -> None:
        self.gate.wait(30)
        if self.errors:
            raise self.errors.pop(0)
        self.got.append(message)


class Stand:
    """An agent's desk with one channel, and the turns of its loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: Memory, sink: Sink) -> None:
        monkeypatch.setattr(delivery, "create", lambda *_: sink)
        monkeypatch.setattr(delivery, "PAUSE_FIRST", 0.01)
        self.inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        config = Config(channels={"ops": Plugin(kind="sink", options=None)})
        self.desk = AlertNotifier(config, "node1", memory, self.inbox)  # type: ignore[arg-type]
        self.told_all = False

    def tick(self, *, hear: bool = True) -> None:
        self.desk.tick()
        if hear:
            try:
                result = self.inbox.get(timeout=0.02)
            except queue.Empty:
                return
            assert result is not None
            assert self.desk.on_result(result)

    def until(self, sink: Sink, count: int) -> list[tuple[str, str]]:
        end = time.monotonic() + 30 * PATIENCE
        while (len(sink.got) < count or self.waiting()) and time.monotonic() < end:
            self.tick()
        return [(one.key, one.state) for one in sink.got]

    def waiting(self) -> int:
        return self.desk.show(snapshot()).events.channels[0].waiting


def test_a_channel_that_is_down_gets_it_later_and_one_that_refuses_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink, memory = Sink(), Memory()
    stand = Stand(monkeypatch, memory, sink)
    sink.errors = [OSError("down"), OSError("down"), MessageRefusedError("400")]
    stand.desk.registry.raise_(alarm("a"), NOW, at_once=True)
    stand.desk.registry.raise_(alarm("b"), NOW + 1, at_once=True)
    assert stand.until(sink, 1) == [("b", "firing")]
    (channel,) = stand.desk.show(snapshot()).events.channels
    assert (channel.sent, channel.failed, channel.refused, channel.trouble) == (1, 2, 1, "")
    assert channel.last_success


def test_a_failing_channel_is_told_in_status(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    stand = Stand(monkeypatch, Memory(), sink)
    monkeypatch.setattr(delivery, "PAUSE_FIRST", 60.0)
    sink.errors = [OSError("mail.example gave no answer in 10 s")]
    stand.desk.registry.raise_(alarm("a"), NOW, at_once=True)
    end = time.monotonic() + 30 * PATIENCE
    while sink.errors and time.monotonic() < end:
        stand.tick()
    stand.tick()
    events = stand.desk.show(snapshot()).events
    assert list(event_lines(events, (), NOW + 7200)) == [
        "critical: it hangs (raised 2 h ago)",
        "channel ops fails: mail.example gave no answer in 10 s; 1 event waits for it",
    ]


def test_an_event_in_status_says_where_to_read_on() -> None:
    one = EventView(key="a", kind="abnormal_end", severity="critical", state="firing", sentence="rank 1 was killed " * 30, started=NOW, report="R1")  # fmt: skip
    (result,) = event_lines(EventsView(events=(one,)), (), NOW + 75)
    assert result.endswith("…, 1 min 15 s ago (report R1)")
    assert list(event_lines(EventsView(events=(one,)), {"R1"}, NOW)) == []


@pytest.mark.parametrize("killed", ["before it was sent", "before it was heard", "after it all"])
def test_an_agent_that_is_killed_loses_nothing_and_doubles_bear_the_same_id(
    monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    memory, sink = Memory(), Sink()
    first = Stand(monkeypatch, memory, sink)
    first.desk.registry.raise_(alarm(since=NOW - 60), NOW, at_once=True)
    if killed == "before it was sent":
        sink.gate.clear()
        sink.errors = [OSError("killed")]
    if killed == "after it all":
        first.until(sink, 1)
        first.tick()
    else:
        first.tick(hear=False)
        sink.gate.set()
        assert first.inbox.get(timeout=30)  # which nobody reads any more
    before = len(sink.got)
    second = Stand(monkeypatch, memory, sink)
    second.desk.registry.raise_(
        alarm(since=NOW - 60), NOW + 9, at_once=True
    )  # as the incident is recalled
    second.until(sink, before if killed == "after it all" else before + 1)
    assert len(sink.got) == (2 if killed == "before it was heard" else 1)
    assert len({one.id for one in sink.got}) == 1


def test_a_dead_mans_switch_is_told_that_the_loop_lives_and_of_no_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink, memory = Sink(), Memory()
    monkeypatch.setattr(sink, "every", 0.05, raising=False)
    stand = Stand(monkeypatch, memory, sink)
    stand.desk.registry.raise_(alarm("a"), NOW, at_once=True)
    assert set(stand.until(sink, 3)) == {("alive", "firing")}
    (channel,) = stand.desk.show(snapshot()).events.channels
    assert (channel.waiting, channel.trouble) == (0, "")
    assert channel.sent >= 2
    assert channel.last_success
    count = len(sink.got)  # the loop stands still
    time.sleep(0.2)
    assert len(sink.got) <= count + 1  # what was under way


def test_a_dead_mans_switch_that_fails_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Sink()
    monkeypatch.setattr(sink, "every", 3600.0, raising=False)
    stand = Stand(monkeypatch, Memory(), sink)
    sink.errors = [OSError("hc.example answers 500")] * 2
    troubles = set()
    end = time.monotonic() + 30 * PATIENCE
    while not sink.got and time.monotonic() < end:
        stand.tick()
        troubles.add(stand.desk.show(snapshot()).events.channels[0].trouble)
    assert "hc.example answers 500" in troubles
    assert len(sink.got) == 1


def test_the_configuration_that_is_read_again_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink, memory = Sink(), Memory()
    stand = Stand(monkeypatch, memory, sink)
    monkeypatch.setattr(delivery, "PAUSE_FIRST", 60.0)
    sink.errors = [OSError("down")]
    stand.desk.registry.raise_(alarm("a"), NOW, at_once=True)
    end = time.monotonic() + 30 * PATIENCE
    while sink.errors and time.monotonic() < end:
        stand.tick()
    stand.desk.reload(Config())
    stand.tick()
    assert stand.desk.show(snapshot()).events.channels == ()
    stand.desk.reload(Config(channels={"new": Plugin(kind="sink", options=None)}))
    assert stand.until(sink, 1) == [("a", "firing")]


def test_a_channel_that_never_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    sink.gate.clear()
    stand = Stand(monkeypatch, Memory(), sink)
    try:
        for number in range(200):
            stand.desk.registry.raise_(alarm(f"a{number}"), NOW + number, at_once=True)
            stand.desk.tick()
        assert stand.waiting() == 200
    finally:
        sink.gate.set()


def test_rows_of_another_version_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory, sink = Memory(), Sink()
    memory.rows = {"event:x": b'{"alarm": 5}', "event:y": b"\xff"}
    stand = Stand(monkeypatch, memory, sink)
    stand.desk.tick()
    assert (stand.desk.registry.all(), memory.rows) == ((), {})


# --- hostile hours -------------------------------------------------------------------------------


def test_what_begins_and_ends_at_once_stands_for_its_time_and_then_ends_as_it_did() -> None:
    book = EventRegistry()
    book.raise_(alarm(stands=600.0), NOW, at_once=True)
    book.clear("a", NOW + 1, "ended")
    assert states(book) == {"a": "firing"}
    assert message_of(book.all()[0], "n").ended == ""
    book.restore([])
    book.tidy((), NOW + 599)
    assert states(book) == {"a": "firing"}
    book.tidy((), NOW + 601)
    (over,) = book.all()
    assert (over.state, over.outcome, over.ended) == ("resolved", "ended", NOW + 1)


def test_what_goes_on_while_it_stands_is_not_over() -> None:
    book = EventRegistry()
    book.raise_(alarm(stands=600.0), NOW, at_once=True)
    book.clear("a", NOW + 1, "ended")
    book.raise_(alarm(stands=600.0, sentence="a second attempt failed"), NOW + 2, at_once=True)
    book.tidy((), NOW + 700)
    assert states(book) == {"a": "firing"}


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    book = EventRegistry()
    book.raise_(alarm(stands=600.0), NOW, at_once=True)
    book.clear("a", NOW - 7200)
    assert states(book) == {"a": "resolved"}


def test_a_sentence_that_changes_all_the_time_is_not_written_all_the_time() -> None:
    book = EventRegistry()
    book.raise_(alarm(), NOW, at_once=True)
    assert len(book.changed()) == 1
    book.raise_(alarm(sentence="83 degrees"), NOW + 1)
    assert book.changed(words=False) == []
    assert [event.alert.sentence for _, event in book.changed() if event] == ["83 degrees"]


def test_a_message_that_nobody_takes_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    stand = Stand(monkeypatch, Memory(), sink)
    send = sink.send

    def picky(message: EventMessage) -> None:
        if message.key == "poison":
            raise OSError("500")
        send(message)

    sink.send = picky  # type: ignore[method-assign]
    for number, key in enumerate(("poison", "b", "c")):
        stand.desk.registry.raise_(alarm(key), NOW + number, at_once=True)
    end = time.monotonic() + 30 * PATIENCE
    while len(sink.got) < 2 and time.monotonic() < end:
        stand.tick()
    assert [one.key for one in sink.got] == ["b", "c"]
    assert stand.waiting() == 1


def test_a_message_waits_for_the_disk_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, memory = Sink(), Memory()
    memory.is_stored = lambda _: False  # type: ignore[method-assign]
    monkeypatch.setattr(notifier, "STORED_WITHIN", 3600.0)
    stand = Stand(monkeypatch, memory, sink)
    stand.desk.registry.raise_(alarm(), NOW, at_once=True)
    for _ in range(5):
        stand.tick()
    assert sink.got == []
    monkeypatch.setattr(notifier, "STORED_WITHIN", 0.0)
    assert stand.until(sink, 1) == [("a", "firing")]


def test_names_that_are_no_text_are_stored_and_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, memory = Sink(), Memory()
    stand = Stand(monkeypatch, memory, sink)
    evil = "job\udc80\r\nX: y"
    stand.desk.registry.pending = 0.0
    stand.desk.raise_alert(alarm(f"storage/{evil}", sentence=evil, labels={"job": evil}))
    ((_, state),) = stand.until(sink, 1)
    assert (state, len(memory.rows)) == ("firing", 1)
    assert sink.got[0].labels["job"].isprintable()


def test_a_storm_of_events_pushes_out_no_state_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "MAX_EVENTS", 100)
    monkeypatch.setattr(writer_thread, "MAX_STATES", 50)
    writer = writer_thread.WriterThread(tmp_path, lambda: None)
    writer.put("run:job", lambda: None)
    for number in range(300):
        writer.put(f"memo:event:{number}", lambda: None)
    assert writer.waits("run:job")
    assert not writer.waits("memo:event:0")
    assert writer.waits("memo:event:299")
    for number in range(50):
        writer.put(f"run:{number}", lambda: None)
    assert not writer.waits("run:job")
    assert writer.waits("memo:event:299")


# --- rooms of the node ---------------------------------------------------------------------------


def storage(*alarms: RoomAlarm, gaps: tuple[Gap, ...] = ()) -> CollectorState:
    return CollectorState(name="filesystems", at=NOW, alarms=alarms, gaps=gaps)


FULL = RoomAlarm(kind="too_full", subject="/scratch", sentence="/scratch is 97.0% full")


def test_a_full_filesystem_fires_until_it_is_seen_with_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Sink()
    stand = Stand(monkeypatch, Memory(), sink)
    stand.desk.registry.pending = 0.0

    def look(*parts: CollectorState) -> dict[str, str]:
        stand.desk.look(msgspec.structs.replace(snapshot(), storage=StorageState(parts=parts)))
        return states(stand.desk.registry)

    key = "storage/filesystems//scratch#too_full"
    assert look(storage(FULL)) == {key: "firing"}
    assert look() == {key: "firing"}  # nobody has looked since the restart
    unread = Gap(what="filesystem /scratch", reason="no answer")
    assert look(storage(gaps=(unread,))) == {key: "firing"}
    assert look(storage()) == {key: "resolved"}


def test_memory_that_runs_out_is_an_event() -> None:
    level = Level(scope="host", name="", limit=100 << 30, used=97 << 30)
    (word,) = of_memory(NodeMemory(levels=(LevelState(level=level, alarm=True),)))
    (alert,) = word.alerts
    assert (alert.kind, alert.severity) == ("memory_full", "critical")
    assert alert.sentence.startswith("host memory: 97 GiB of 100 GiB in use")
    assert word.is_over("memory/cgroup/x")


def test_a_save_that_died_is_told_to_its_owner_until_a_newer_one_is_there() -> None:
    dead = KnownCheckpoint(name="ckpt-9", state=SavedAs.INCOMPLETE, why="its writer ended")
    state = SeriesState(run="r", folder="/data", series="ckpt-#", newest=dead, sentence="x")
    (word,) = of_checkpoints("r", 1000, [state])
    (alert,) = word.alerts
    assert (alert.kind, alert.uid, alert.severity) == ("save_incomplete", 1000, "warning")
    (well,) = of_checkpoints("r", 1000, [msgspec.structs.replace(state, newest=None)])
    assert well.is_over(alert.key)
    (blind,) = of_checkpoints("r", 1000, [msgspec.structs.replace(state, trouble="no answer")])
    assert not together([well, blind]).is_over(alert.key)


def test_an_event_of_which_nobody_speaks_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU was replaced, or the agent before was killed while it closed the incident."""
    memory, sink = Memory(), Sink()
    first = Stand(monkeypatch, memory, sink)
    for key in ("incident/gone", "incident/open", "health/gpu_ecc/G9"):
        first.desk.registry.raise_(alarm(key), NOW, at_once=True)
    first.until(sink, 3)
    second = Stand(monkeypatch, memory, sink)
    second.desk.tick()
    second.desk.look(snapshot(), {"open"})
    assert set(states(second.desk.registry).values()) == {"firing"}
    monkeypatch.setattr(notifier, "LOST", 0.0)
    second.desk.look(snapshot(), {"open"})
    assert states(second.desk.registry)["incident/open"] == "firing"
    assert states(second.desk.registry)["incident/gone"] == "resolved"
    assert states(second.desk.registry)["health/gpu_ecc/G9"] == "resolved"


def test_a_job_that_has_failed_is_told_as_wrong_though_its_incident_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Sink()
    stand = Stand(monkeypatch, Memory(), sink)
    opened = Incident(
        id="R1", key="r/0/end", job_id="r", detected_at=time.time(), kind="abnormal_end",
        sentence="rank 2 was killed",
    )  # fmt: skip
    for incident in (opened, close_incident(opened, "ended", time.time(), "the job is over")):
        stand.desk.incident(incident, judge(incident), 1000)
    assert stand.until(sink, 1) == [("incident/R1", "firing")]
    stand.desk.tick()
    assert states(stand.desk.registry) == {"incident/R1": "firing"}


@pytest.mark.parametrize(("users", "whose"), [((), -1), ((1001,), 1001), ((1001, 1002), 0)])
def test_a_mount_that_only_some_use_is_nobody_elses_news(
    users: tuple[int, ...], whose: int
) -> None:
    """-1 is everyone, 0 who sees all."""
    alarm = RoomAlarm(kind="stuck", subject="/home/ann/data", sentence="it is stuck", uids=users)
    (word,) = of_storage([CollectorState(name="filesystems", at=NOW, alarms=(alarm,))])

    assert [one.uid for one in word.alerts] == [whose]
