"""One rank leaves without a word and the others hang: who is missed is named, at `low`, and only where all others wait."""

from pathlib import Path

import msgspec
from msgspec.structs import replace

from mldebug.core.model import NodeCapture
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.incidents.incident import Incident
from mldebug.incidents.judge import judge
from shared.diagnosis.builders import process, still

WRECKS = Path(__file__).parents[2] / "fixtures" / "h200" / "wrecks"
CAPTURE = msgspec.json.decode((WRECKS / "exit.json").read_bytes(), type=NodeCapture)
EXIT = msgspec.json.decode((WRECKS / "exit-ending.json").read_bytes(), type=AttemptExit)


def judged(*captures: NodeCapture, ended: AttemptExit = EXIT) -> tuple[str, list[int | None], str]:
    incident = Incident(
        id="i", key="k", job_id=ended.job.id, job=ended.job, detected_at=1.8e9, kind="abnormal_end", exit=ended, captures=captures,
    )  # fmt: skip
    found = judge(incident).diagnosis
    return str(found.verdict), [one.rank for one in found.culprits], str(found.confidence)


def test_all_others_wait_for_the_one_that_left() -> None:
    """As recorded on two H200s: rank 1 left with 7 and wrote nothing, rank 0 waits for its GPU."""
    assert judged(CAPTURE) == ("rank_exited", [1], "low")


def test_without_a_capture_nobody_is_named() -> None:
    assert judged() == ("unknown", [], "low")


def test_one_that_lives_on_and_does_not_wait_may_have_driven_it_away() -> None:
    """A victim may leave in silence while who kept it waiting lives."""
    (rank,) = (one for one in CAPTURE.ranks if one.identity.rank == 0)
    sleeps = process(
        "load (train.py:9)", wchan="hrtimer_nanosleep", syscall="clock_nanosleep", move=still()
    )
    busy = replace(CAPTURE, ranks=(replace(rank, process=replace(sleeps, pid=rank.identity.pid)),))
    assert judged(busy)[1] == []


def test_exits_that_name_somebody_stay_as_they_are() -> None:
    killed = replace(EXIT, exits=tuple(replace(one, status=11) for one in EXIT.exits))
    assert judged(CAPTURE, ended=killed)[1:] == judged(ended=killed)[1:]
    assert judged(CAPTURE, ended=killed)[1] == [1]
