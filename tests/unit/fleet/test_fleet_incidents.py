"""Incidents of a fleet: what a search finds, what is alike, and what people note."""

from typing import Any

import msgspec
import pytest

from mldebug.core.errors import UsageError
from mldebug.fleet.answers.incidents import (
    IncidentQuery,
    incident_lines,
    search,
    similar,
    similar_lines,
)
from mldebug.fleet.events import AnyEvent, FleetCulprit, NoteEvent, with_id
from mldebug.fleet.validation import EventRefusedError, believed
from shared.fleet.fleet_events import DAY, NOW, attempt, incident, over


def note(of: str = "i1", text: str = "reseat the GPU", at: float = NOW + 60) -> AnyEvent:
    return with_id(NoteEvent(node="_notes", subject=f"note/{of}/{at}", at=at, incident=of, author="user 0", text=text, uid=1000, job="train.py"))  # fmt: skip


def blamed(node: str) -> tuple[FleetCulprit, ...]:
    return (FleetCulprit(kind="gpu", node=node),)


def incident_of(id: str, sentence: str, at: float = NOW, **more: Any) -> AnyEvent:
    return incident(id, sentence=sentence, at=at, since=at, **more)


EVENTS = [
    attempt(),  # of ada
    attempt("n7", uid=2000, user="bob", job="eval.py", run="r9"),
    incident_of("i1", "GPU 3 of gpu017 has fallen off the bus: Xid 79; ranks 0-23 wait in all_reduce"),
    incident_of("i2", "GPU 5 of gpu042 has fallen off the bus: Xid 79; ranks 1-31 wait in all_gather", NOW - 9 * DAY, culprits=blamed("gpu042")),
    incident_of("i3", "rank 5 sleeps in the data loader", NOW - DAY, verdict="rank_waiting", job="eval.py", run="r9", uid=2000, culprits=()),
    incident_of("i4", "/mnt/data does not answer", NOW - 2 * DAY, verdict="storage_fault", culprits=()),
    note(),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["i1", "i3", "i4", "i2"]),
        ({"words": "fallen BUS"}, ["i1", "i2"]),
        ({"words": "fallen loader"}, []),
        ({"words": "reseat"}, ["i1"]),  # a note
        ({"words": "i4"}, ["i4"]),
        ({"verdict": "storage_fault"}, ["i4"]),
        ({"verdict": "storage"}, []),  # a verdict is a whole word
        ({"node": "gpu042"}, ["i2"]),
        ({"node": "n1"}, ["i1", "i3", "i4", "i2"]),
        ({"node": "gpu04"}, []),
        ({"user": "bob"}, ["i3"]),
        ({"user": "2000"}, ["i3"]),
        ({"user": "ada", "words": "mnt"}, ["i4"]),
        ({"job": "eval.py"}, ["i3"]),
        ({"job": "r9"}, ["i3"]),
        ({"since": NOW - 3 * DAY}, ["i1", "i3", "i4"]),
        ({"until": NOW - 3 * DAY}, ["i2"]),
        ({"since": NOW - 1.5 * DAY, "until": NOW - 0.5 * DAY}, ["i3"]),
    ],
)
def test_all_that_is_asked_has_to_fit(wanted: dict[str, Any], found: list[str]) -> None:
    answer = search(EVENTS, IncidentQuery(**wanted))
    assert [one.incident for one in answer.incidents] == found
    assert answer.total == len(found)


def test_an_incident_that_several_nodes_tell_is_one_with_its_last_verdict() -> None:
    first = incident("i1", "n1", verdict="unknown", confidence="low", sentence="ranks wait", culprits=())  # fmt: skip
    second = incident("i1", "n2", since=NOW + 3)
    (one,) = search([first, second, over(second, NOW + 50)], IncidentQuery()).incidents
    assert (one.nodes, one.verdict, one.culprits) == ("n[1-2]", "gpu_fault", ("n2",))
    assert (one.at[:19], one.ended[:19]) == ("2026-11-21T05:46:40", "2026-11-21T05:47:30")


def test_of_too_many_the_newest_are_written_out() -> None:
    many = [incident_of(f"i{number}", "x", NOW + number) for number in range(250)]
    found = search(many, IncidentQuery())
    assert (found.total, len(found.incidents)) == (250, 200)
    assert found.incidents[0].incident == "i249"


# --- alike -----------------------------------------------------------------------------------------


def test_what_is_alike_differs_in_names_and_numbers_alone() -> None:
    found = similar(EVENTS, "i2")
    assert found is not None
    assert [one.incident for one in found.similar] == ["i1"]
    assert [one.text for one in found.noted] == ["reseat the GPU"]  # on the other one
    lines = list(similar_lines(found))
    assert "Seen 1 more time:" in lines
    assert any("note of user 0" in line for line in lines)


@pytest.mark.parametrize(
    ("sentence", "verdict", "alike"),
    [
        ("GPU 0 of n9 has fallen off the bus: Xid 79; ranks 2 wait in barrier", "gpu_fault", True),
        ("GPU 0 of n9 has uncorrectable memory errors", "gpu_fault", False),
        (
            "GPU 3 of gpu017 has fallen off the bus: Xid 79; ranks 0-23 wait in all_reduce",
            "network_fault",
            False,
        ),
    ],
)
def test_another_verdict_or_other_words_are_another_thing(sentence: str, verdict: str, alike: bool) -> None:  # fmt: skip
    found = similar([*EVENTS, incident_of("i9", sentence, verdict=verdict)], "i1")
    assert found is not None
    assert ("i9" in {one.incident for one in found.similar}) == alike


def test_without_a_verdict_more_words_have_to_be_the_same() -> None:
    events = [incident_of(id, words, verdict="unknown") for id, words in (("a", "ranks wait for the network now"), ("b", "ranks wait for nothing known"), ("c", "ranks wait for the network now 7"))]  # fmt: skip
    found = similar(events, "a")
    assert found is not None
    assert [one.incident for one in found.similar] == ["c"]


def test_an_unknown_incident_has_none_that_is_like_it() -> None:
    assert similar(EVENTS, "i99") is None


def test_lines_for_a_person() -> None:
    lines = list(incident_lines(search(EVENTS, IncidentQuery(words="i4")).incidents))
    assert lines[0].endswith("i4  train.py of ada: storage_fault (high), lasts")


# --- notes -----------------------------------------------------------------------------------------


def test_no_agent_sends_notes() -> None:
    own = msgspec.structs.replace(note(), node="n1")
    with pytest.raises(EventRefusedError, match="by people"):
        believed(msgspec.json.encode(own), "n1", NOW + 100)


def test_a_note_on_nothing_is_shown_nowhere() -> None:
    assert search([note("i99")], IncidentQuery()).incidents == ()


def test_an_empty_note_and_one_of_an_unknown_incident_are_refused() -> None:
    from mldebug_agents.fleet.hub.notes import NewNote, NoteBook

    class OneIncident:
        def similar(self, uid: int | None, incident: str) -> Any:
            return similar(EVENTS, "i1") if incident == "i1" else _raise()

    def _raise() -> None:
        raise UsageError("no such incident", "")

    book: Any = NoteBook(OneIncident(), None)  # type: ignore[arg-type]
    for wrong in (NewNote(incident="i1", text=" \t"), NewNote(incident="i2", text="x")):
        with pytest.raises(UsageError):
            book.add(None, "user 0", wrong)
