"""Notes that people add to incidents. They are stored as events are, under the name of no node."""

import time
from collections.abc import Callable

import msgspec

from mldebug.core.errors import UsageError
from mldebug.core.redact import clean
from mldebug.core.text import seconds_of
from mldebug.fleet.answers.incidents import SimilarIncidents
from mldebug.fleet.events import NoteEvent, with_id
from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.fleet.hub.intake import Intake

NOBODY = "_notes"  # in place of a node: no host is called so
MOST = 600  # characters


class NewNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note that a person adds to an incident. `incident`: its id."""

    incident: str
    text: str


class NoteBook:
    """Adds the notes of people to incidents, as events that the hub stores. `now`: returns unix time."""

    def __init__(self, answerer: Answerer, intake: Intake, now: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._answerer, self._intake, self._now = answerer, intake, now

    def add(self, uid: int | None, author: str, note: NewNote) -> SimilarIncidents:
        """Add a note to an incident of this user (None: of anybody), and return what is known of it then. Raises UsageError for an incident
        that the user does not have, and for an empty note.
        """
        found = self._answerer.similar(uid, note.incident).incident
        text = clean(note.text, MOST).strip()
        if not text:
            raise UsageError("the note is empty", "mldebug fleet note INCIDENT 'what has helped'")
        event = NoteEvent(
            node=NOBODY,
            subject=f"note/{found.incident}/{self._now():.3f}"[:200],
            at=max(self._now(), seconds_of(found.at) or 0.0),
            job=found.job,
            run=found.run,
            uid=found.uid,
            incident=found.incident,
            author=author,
            text=text,
        )
        self._intake.keep(with_id(event))
        return self._answerer.similar(uid, note.incident)
