"""The end of a ring as a report tells it: the last records of the training thread, and of others that did something since."""

from mldebug.capture.trace.line_format import Source, lines
from mldebug.capture.trace.merge import training_thread
from mldebug.capture.trace.merge_text import event_words
from mldebug.capture.trace.records import Event, Ring
from mldebug.core.model import TraceTail
from mldebug.core.redact import safe_line

SHOWN = 24  # records
OF_OTHERS = 8  # of them at most, of threads beside the training thread


def last_events(ring: Ring) -> list[Event]:
    """By time: what the training thread did last, and the newest records of others."""
    mine = training_thread(ring)
    others = [event for event in ring.events if event.thread != mine][-OF_OTHERS:]
    own = [event for event in ring.events if event.thread == mine][len(others) - SHOWN :]
    return sorted([*own, *others], key=lambda event: event.at)


def trace_tail(ring: Ring, now: float, path: str, source: Source) -> TraceTail | None:
    """None of a ring in which nothing stands. `now`: unix time at which it was read."""
    shown = last_events(ring)
    mine = training_thread(ring)
    own = [event for event in ring.events if event.thread == mine]
    if not own or ring.newest is None:
        return None
    written = (ring.newest + ring.header.offset_ns) / 1e9
    return TraceTail(
        lines=tuple(lines(ring, shown, source)),
        last=event_words(own[-1]) + ring.header.stopped,
        written_at=round(written, 3),
        age=round(max(0.0, now - written), 3),
        step=own[-1].step,
        engine=ring.header.engine,
        path=safe_line(path, 400),
    )
