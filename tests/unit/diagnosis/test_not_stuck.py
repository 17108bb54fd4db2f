"""A job that goes on while somebody looks is not stuck, whoever sleeps; and one that does not is told as before."""

import msgspec
import pytest

from mldebug.core.model import Movement, NodeCapture, ProcessCapture
from mldebug.diagnosis.diagnose import diagnose
from mldebug.incidents.report.wording import headline, sentence
from shared.diagnosis.builders import WAITER, capture, process, rank, still

HERE = ("load (train.py:7)", "<module> (train.py:50)")
SLEEPS = process(*HERE, wchan="hrtimer_nanosleep", move=still())
WAITS = process(*WAITER, move=still())
MOVES = Movement(samples=8, span_seconds=2.0, same_frames=False, cpu_ratio=0.4, process_cpu_ratio=0.6, switches=90)  # fmt: skip
WORKS = process("step (train.py:9)", "<module> (train.py:50)", state="R", wchan="0", move=MOVES)


def job(*what: ProcessCapture, steps: tuple[int, int] | None = None) -> NodeCapture:
    taken = capture(*[rank(n, one, world=len(what)) for n, one in enumerate(what)])
    return msgspec.structs.replace(taken, steps=steps)


@pytest.mark.parametrize("second", [SLEEPS, WAITS, WORKS])
def test_steps_that_were_made_say_so(second: ProcessCapture) -> None:
    """A rank sleeps in its loader for a moment: nobody is to blame."""
    judged = diagnose([job(WAITS, second, steps=(512, 534))])
    assert judged.diagnosis.summary == "Not stuck: step 512 → 534 while watched"
    assert (judged.diagnosis.works, judged.diagnosis.culprits, judged.stalled) == (True, (), False)
    assert headline(judged.diagnosis) == "Not stuck"
    assert (
        sentence(judged.diagnosis) == "Step 512 → 534 while watched"
    )  # it stands below the headline
    assert judged.diagnosis.next_steps == ()


def test_without_steps_all_ranks_must_have_changed() -> None:
    judged = diagnose([job(WORKS, WORKS)])
    assert judged.diagnosis.summary == "Not stuck: the stacks of both ranks changed while watched"
    assert not judged.stalled
    assert "Not stuck" not in diagnose([job(WORKS, WAITS)]).diagnosis.summary


@pytest.mark.parametrize("steps", [None, (512, 512)])
def test_a_job_that_stands_is_judged_as_before(steps: tuple[int, int] | None) -> None:
    judged = diagnose([job(WAITS, SLEEPS, steps=steps)])
    assert [one.rank for one in judged.diagnosis.culprits] == [1]
    assert (judged.stalled, judged.diagnosis.works) == (True, False)


def test_a_step_that_stays_the_same_is_no_work_however_the_ranks_run() -> None:
    """All ranks turn in a loop of retries."""
    judged = diagnose([job(WORKS, WORKS, steps=(7, 7))])
    assert not judged.diagnosis.works
    assert headline(judged.diagnosis) != "Not stuck"


def test_a_wait_that_looks_now_and_then_is_no_work() -> None:
    polls = msgspec.structs.replace(MOVES, cpu_ratio=0.0, process_cpu_ratio=0.004)
    one = process("is_completed (train.py:9)", "wait (train.py:8)", move=polls)
    assert not diagnose([job(one, one)]).diagnosis.works


def test_of_several_nodes_the_furthest_step_counts() -> None:
    first, second = job(WAITS, WAITS, steps=(3, 3)), job(WAITS, WAITS, steps=(3, 5))
    nodes = [msgspec.structs.replace(one, node=name) for one, name in ((first, "a"), (second, "b"))]
    assert diagnose(nodes).diagnosis.summary == "Not stuck: step 3 → 5 while watched"
