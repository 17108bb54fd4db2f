"""The outbox of an agent: only what is new becomes an event, nothing is lost or doubled by a restart, and it stays within its bounds."""

import queue
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import pytest

from mldebug.alerts.hub_delivery import fleet_lines
from mldebug.fleet.batches import BatchAnswer, RefusedEvent, batch_of
from mldebug.fleet.events import AnyEvent, IncidentEvent, kind_of, with_id
from mldebug_agents.cluster.peers.net.errors import SilentError
from mldebug_agents.fleet.monitor import PAUSE_FIRST, PAUSE_MOST, FleetMonitor
from mldebug_agents.fleet.outbox import GO_FIRST, KEPT, MOST_SUBJECTS, Outbox
from mldebug_agents.system.workers import Result, Worker
from processes.harness import wait_for
from shared.fleet.fleet_events import (
    HOUR,
    NOW,
    attempt,
    checkpoint,
    fault,
    health,
    incident,
    job,
    one_of_each,
    over,
    probe,
)
from shared.goodput.memory_store import MemoryStore
from shared.web.snapshots import snapshot

MANY, LARGE = 1000, 1 << 20


@dataclass
class DiskStore(MemoryStore):
    """A store whose disk may be behind."""

    behind: bool = False
    unstored: set[str] = field(default_factory=set)

    def remember(self, name: str, data: bytes) -> None:
        super().remember(name, data)
        if self.behind:
            self.unstored.add(name)

    def is_stored(self, name: str) -> bool:
        return name not in self.unstored


def outbox(store: DiskStore | None = None, most: int = MANY, size: int = LARGE) -> Outbox:
    made = Outbox(store or DiskStore(), most, size)
    made.restore()
    return made


def bare(event: AnyEvent) -> AnyEvent:
    """As a look at the agent's state makes it."""
    return msgspec.structs.replace(event, id="", revision=1)


def waiting(box: Outbox) -> tuple[AnyEvent, ...]:
    return box.batch(MANY, LARGE)


def offer(box: Outbox, *events: AnyEvent, at: float = NOW) -> None:
    for event in events:
        box.offer(bare(event), at)


def test_a_state_becomes_one_event_however_often_it_is_looked_at() -> None:
    box = outbox()
    for second in range(100):
        offer(box, fault(), incident(), at=NOW + second)
    assert sorted(kind_of(one) for one in waiting(box)) == ["hardware_fault", "incident"]


def test_opened_changed_ended_are_three_events_with_rising_revisions() -> None:
    box = outbox()
    offer(box, incident(verdict="unknown"))
    offer(box, incident(verdict="gpu_fault"), at=NOW + 60)
    offer(box, over(incident(), NOW + 90), at=NOW + 90)
    found = [one for one in waiting(box) if isinstance(one, IncidentEvent)]
    assert [(one.state, one.revision, one.verdict) for one in found] == [
        ("opened", 1, "unknown"), ("changed", 2, "gpu_fault"), ("ended", 3, "gpu_fault"),
    ]  # fmt: skip
    assert [one.at for one in found] == [NOW, NOW + 60, NOW + 90]


def test_a_state_that_comes_back_is_an_event_again() -> None:
    box = outbox()
    for number, verdict in enumerate(("a", "b", "a")):
        offer(box, incident(verdict=verdict), at=NOW + 60 * number)
    assert len({one.id for one in waiting(box)}) == 3


def test_what_counts_on_is_told_now_and_then_and_its_end_at_once() -> None:
    box = outbox()
    for minute in range(150):
        running = attempt(gpu_seconds={"productive": 60.0 * minute})
        offer(box, running, job(runs=1, gpu_seconds={"productive": 60.0 * minute}), at=NOW + 60 * minute)  # fmt: skip
    assert [kind_of(one) for one in waiting(box)].count(
        "attempt"
    ) == 3  # at once, after 1 h, after 2 h
    assert [kind_of(one) for one in waiting(box)].count("job") == 3
    offer(box, attempt(ended=NOW + 9000, outcome="well"), at=NOW + 9000)
    assert [kind_of(one) for one in waiting(box)].count("attempt") == 4


def test_a_node_says_each_hour_that_it_is_there() -> None:
    box = outbox()
    for minute in range(130):
        offer(box, health(), at=NOW + 60 * minute)
    assert [one.revision for one in waiting(box)] == [1, 2, 3]


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    box = outbox()
    offer(box, incident(verdict="a"), at=NOW)
    offer(box, incident(verdict="b"), at=NOW - 10 * HOUR)
    assert len(waiting(box)) == 2


def test_a_restart_makes_nothing_again_and_loses_nothing() -> None:
    store = DiskStore()
    offer(outbox(store), *one_of_each())
    box = outbox(store)
    offer(box, *one_of_each(), at=NOW + 1)
    assert {one.id for one in waiting(box)} == {one.id for one in one_of_each()}
    box.acknowledge(waiting(box))
    again = outbox(store)
    offer(again, *one_of_each(), at=NOW + 2)
    assert waiting(again) == ()


def test_an_agent_that_lost_its_memory_sends_ends_under_the_same_ids() -> None:
    ends = (over(incident(), NOW + 5), attempt(ended=NOW + 5, outcome="failed"), over(fault(), NOW))
    one, other = outbox(), outbox()
    offer(one, incident(), *ends, at=NOW + 5)
    offer(other, *ends, at=NOW + 700)
    ended = {each.id for each in waiting(other)}
    assert ended <= {each.id for each in waiting(one)}
    assert len(ended) == 3


def test_what_is_not_on_disk_is_not_sent() -> None:
    store = DiskStore(behind=True)
    box = outbox(store)
    offer(box, fault())
    assert waiting(box) == ()
    store.unstored.clear()
    assert len(waiting(box)) == 1


def test_too_many_give_way_by_their_kind_and_age_and_are_counted() -> None:
    box = outbox(most=100)
    for number in range(100):
        offer(box, checkpoint(number, subject=f"checkpoint/{number}"))
    offer(box, *(attempt(number=number, ended=NOW) for number in range(60)))
    offer(box, *(probe(subject=f"probe/{number}") for number in range(10)))
    kinds = [kind_of(one) for one in waiting(box)]
    assert (kinds.count("attempt"), kinds.count("probe"), kinds.count("checkpoint")) == (60, 10, 30)
    assert box.lost == {"checkpoint": 70}
    left = sorted(
        int(one.subject.partition("/")[2]) for one in waiting(box) if kind_of(one) == "checkpoint"
    )
    assert left == list(range(70, 100))  # the oldest went


def test_summaries_are_the_last_to_go() -> None:
    box = outbox(most=100)
    offer(box, *(attempt(number=number, ended=NOW) for number in range(100)))
    offer(box, *(incident(f"i{number}") for number in range(50)))
    assert {kind_of(one) for one in waiting(box)} == {"attempt"}
    assert box.lost == {"incident": 50}


def test_bytes_are_bounded_and_counted_exactly() -> None:
    box = outbox(size=20_000)
    for number in range(200):
        offer(box, incident(f"i{number}", sentence="x" * 600))
    sizes = sum(len(msgspec.json.encode(one)) for one in waiting(box))
    assert box.waiting_bytes == sizes <= 20_000
    assert box.lost["incident"] == 200 - box.waiting
    box.acknowledge(waiting(box))
    assert (box.waiting, box.waiting_bytes) == (0, 0)


def test_a_batch_is_bounded_and_has_the_important_first() -> None:
    box = outbox()
    offer(box, *reversed(one_of_each()))
    order = [kind_of(one) for one in waiting(box)]
    assert order == list(reversed(GO_FIRST))
    assert [kind_of(one) for one in box.batch(2, LARGE)] == order[:2]
    first = len(msgspec.json.encode(waiting(box)[0]))
    assert len(box.batch(MANY, first)) == 1


def test_what_nobody_speaks_of_any_more_is_forgotten_and_what_waits_is_not() -> None:
    store = DiskStore()
    box = outbox(store)
    offer(box, fault())
    box.tidy(NOW + 2 * KEPT)
    assert len(store.values) == 1  # it waits
    box.acknowledge(waiting(box))
    box.tidy(NOW + 1)
    assert len(store.values) == 1
    box.tidy(NOW + KEPT + 1)
    assert store.values == {}


def test_subjects_are_bounded() -> None:
    store = DiskStore()
    box = outbox(store, most=10)
    for number in range(MOST_SUBJECTS + 50):
        offer(box, fault(at=NOW + number), at=NOW + number)
    box.tidy(NOW + MOST_SUBJECTS)
    assert len(store.values) == MOST_SUBJECTS


def test_a_row_that_cannot_be_read_is_forgotten() -> None:
    store = DiskStore()
    store.values["fleet:1"] = b'{"subject": 7}'
    assert outbox(store).waiting == 0
    assert store.values == {}


# --- delivery --------------------------------------------------------------------------------------


class Steady:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeHub:
    """Answers each batch with the next of `answers`."""

    def __init__(self, answers: Iterable[BatchAnswer | Exception]) -> None:
        self.bodies: list[bytes] = []
        self._answers = iter(answers)

    def deliver(self, order: object) -> BatchAnswer:
        self.bodies.append(order.body)  # type: ignore[attr-defined]
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def fleet(*answers: BatchAnswer | Exception) -> tuple[FleetMonitor, FakeHub, Steady, "queue.SimpleQueue[Result | None]"]:  # fmt: skip
    hub, steady = FakeHub(answers), Steady()
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    worker = Worker("fleet", hub.deliver, inbox, 60.0)
    box = Outbox(DiskStore(), MANY, LARGE)
    monitor = FleetMonitor("n1", "hub:9755", box, worker, lambda: (), lambda: True, steady)
    monitor.tick()
    for event in one_of_each():
        box.offer(bare(event), NOW)
    return monitor, hub, steady, inbox


def turn(monitor: FleetMonitor, inbox: "queue.SimpleQueue[Result | None]") -> None:
    """One batch, and its answer."""
    wait_for("an idle worker", lambda: not monitor._worker or not monitor._worker.busy, 10)
    monitor.tick()
    result = inbox.get(timeout=10)
    assert result is not None
    assert monitor.on_result(result)


def test_a_batch_is_sent_once_and_forgotten_when_the_hub_has_it() -> None:
    monitor, hub, steady, inbox = fleet(BatchAnswer(stored=6, doubles=1))
    turn(monitor, inbox)
    steady.now += 1000
    monitor.tick()
    assert [len(batch_of(body).events) for body in hub.bodies] == [7]
    state = monitor.show(snapshot()).fleet
    assert state is not None
    assert (state.sent, state.doubles, state.waiting, state.trouble) == (7, 1, 0, "")


def test_while_the_hub_is_away_it_is_asked_less_and_less_often_and_gets_all_later() -> None:
    away = [SilentError("no answer in 3 s")] * 12
    monitor, hub, steady, inbox = fleet(*away, BatchAnswer(stored=7))
    pauses = []
    for _ in away:
        began = steady.now
        turn(monitor, inbox)
        while monitor._due > steady.now:
            steady.now += 0.5
        pauses.append(steady.now - began)
    assert pauses[0] <= 1.4 * PAUSE_FIRST + 0.5
    assert 0.6 * PAUSE_MOST <= pauses[-1] <= 1.4 * PAUSE_MOST + 0.5
    state = monitor.show(snapshot()).fleet
    assert list(fleet_lines(state)) == ["hub hub:9755: no answer in 3 s; 7 events wait for it"]
    turn(monitor, inbox)
    assert len({*hub.bodies}) == 1  # the same batch, event for event
    assert list(fleet_lines(monitor.show(snapshot()).fleet)) == []


def test_what_the_hub_refuses_is_not_sent_again_and_is_told() -> None:
    trouble = RefusedEvent(3, "future", "it is 900 s ahead of the hub's clock")
    monitor, _, _, inbox = fleet(BatchAnswer(stored=5, refused=2, troubles=(trouble,)))
    turn(monitor, inbox)
    state = monitor.show(snapshot()).fleet
    assert state is not None
    assert (state.refused, state.waiting) == ({"future": 1, "other": 1}, 0)
    assert list(fleet_lines(state)) == [f"the hub has refused 2 events: {trouble.why}"]


def test_without_a_hub_nothing_is_kept() -> None:
    store = DiskStore()
    monitor = FleetMonitor("n1", "", Outbox(store, MANY, LARGE), None, lambda: (), lambda: True)
    monitor.tick()
    assert monitor.show(snapshot()).fleet is None
    assert store.values == {}


@pytest.mark.parametrize("kind", GO_FIRST)
def test_every_kind_may_wait(kind: str) -> None:
    (event,) = (one for one in one_of_each() if kind_of(one) == kind)
    box = outbox()
    offer(box, event)
    assert waiting(box) == (with_id(event),)
