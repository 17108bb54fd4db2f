"""A pause that comes in every epoch raises one alarm, and none any more; what hangs in the same place is noticed all the same, and elsewhere as early as ever."""

from collections.abc import Callable

import msgspec
import pytest

from mldebug.capture.step_pauses import pause_place
from mldebug.stall.progress_clock import StallMemory
from mldebug.stall.signals import ProgressKind
from mldebug.stall.timeouts import LONGEST_PAUSE, PLACES, ProgressGaps
from shared.stall.plots import FSYNC
from shared.stall.traces import (
    LOADS,
    SLEEPS,
    SPINS,
    STOPPED,
    TRAINS,
    WAITS,
    WORKS,
    Crew,
    Does,
    Run,
    Story,
    watch,
)

LOOKS = 5.0
IN_STEP = "training_step (train.py:31)\nfit (lightning/pytorch/trainer/trainer.py:560)"
IN_EVALUATION = f"evaluate (train.py:40)\n{IN_STEP}"
IN_CHECKPOINT = f"fsync (storage.py:9)\nsave_checkpoint (train.py:70)\n{IN_STEP}"
UPLOADS = SLEEPS._replace(doing="publish (train.py:88)", class_name="socket")


def standing(does: Does, frames: str) -> Does:
    return does._replace(doing=frames, stands=True)


class Evaluates:
    """A rank that computes in its evaluation, in another line of it at each look."""

    def __init__(self) -> None:
        self.line = 0

    def __call__(self) -> Does:
        self.line += 1
        frames = (
            f"score (metrics.py:{self.line})\nevaluate (train.py:{40 + self.line % 3})\n{IN_STEP}"
        )
        return standing(WORKS, frames)


COMPUTES = Evaluates()
PAUSES: dict[str, tuple[float, Callable[[], Crew]]] = {
    "all upload": (300, lambda: UPLOADS),
    "all upload for longer than a collective may take": (900, lambda: UPLOADS),
    "rank 0 writes a checkpoint": (290, lambda: {0: standing(FSYNC, IN_CHECKPOINT)}),
    "a checkpoint of 100 s": (100, lambda: {0: standing(FSYNC, IN_CHECKPOINT)}),
    "rank 0 waits for a server in its evaluation": (300, lambda: {0: standing(SLEEPS, IN_EVALUATION)}),
    "rank 0 computes in its evaluation": (400, lambda: {0: COMPUTES()}),
}  # fmt: skip


def stepping(run: Run, seconds: float) -> Run:
    for _ in range(int(seconds / LOOKS)):
        run.at += LOOKS
        before = run.signals.get(ProgressKind.STEP)
        run.signal(ProgressKind.STEP, (before.value if before else 0) + 125)
        run.started = True
        run.look(TRAINS)
    return run


def paused(run: Run, seconds: float, crew: Callable[[], Crew]) -> Run:
    for _ in range(int(seconds / LOOKS)):
        run.at += LOOKS
        run.look(crew(), SPINS)
    return run


def epochs(pause: str, times: int) -> Run:
    """A run that has loaded for 20 s, and so many epochs of ten minutes with a pause behind each."""
    seconds, crew = PAUSES[pause]
    run = Run(interval=LOOKS).play(20, WORKS)
    for _ in range(times):
        paused(stepping(run, 600), seconds, crew)
    return stepping(run, 300)


def begun(run: Run) -> float:
    return run.at - run.looks[0].at


def shown(run: Run) -> Story:
    return watch(run.looks, interval=LOOKS)


@pytest.mark.parametrize("pause", PAUSES)
def test_a_pause_of_each_epoch_raises_one_alarm(pause: str) -> None:
    assert len(shown(epochs(pause, 6)).opened) == 1


@pytest.mark.parametrize("pause", PAUSES)
def test_a_hang_in_its_place_is_captured_early_and_named_at_half_as_much_again(pause: str) -> None:
    seconds, crew = PAUSES[pause]
    run = epochs(pause, 3)
    hung = begun(run)
    story = shown(paused(run, 2 * seconds + 100, crew))
    late = [at - hung for at in story.opened if at > hung]
    assert len(late) == 1
    assert min(seconds, 449) < late[0] <= 1.5 * seconds + 15
    assert any(0 < at - hung <= 90 for at in story.captured)


ELSEWHERE: dict[str, Crew] = {
    "one sleeps in its step": {1: standing(SLEEPS, IN_STEP)},
    "a data loader": {2: standing(LOADS, IN_STEP)},
    "all wait for each other": WAITS,
    "all wait for each other in an evaluation": standing(WAITS, IN_EVALUATION),
}


@pytest.mark.parametrize("hang", ELSEWHERE)
@pytest.mark.parametrize("pause", ["all upload", "rank 0 writes a checkpoint", "rank 0 waits for a server in its evaluation"])  # fmt: skip
def test_a_hang_elsewhere_is_named_as_after_any_false_alarm(pause: str, hang: str) -> None:
    run = epochs(pause, 3)
    hung = begun(run)
    late = [at - hung for at in shown(run.play(300, ELSEWHERE[hang], others=SPINS)).opened if at > hung]  # fmt: skip
    assert len(late) == 1
    assert late[0] <= 75


def test_a_hang_of_a_step_that_ended_by_itself_gives_no_such_time() -> None:
    """A storage that was away, a network that came back: the next time is a stall again."""
    run = stepping(Run(interval=LOOKS).play(20, WORKS), 600)
    stepping(run.play(300, {0: standing(FSYNC, IN_STEP)}, others=SPINS), 600)
    hung = begun(run)
    late = [at - hung for at in shown(run.play(300, {0: standing(FSYNC, IN_STEP)}, others=SPINS)).opened if at > hung]  # fmt: skip
    assert len(late) == 1
    assert late[0] <= 75


def test_a_rank_that_somebody_stopped_in_its_evaluation_gives_no_such_time() -> None:
    stopped = {0: standing(STOPPED, IN_EVALUATION)}
    run = stepping(Run(interval=LOOKS).play(20, WORKS), 600).play(300, stopped, others=SPINS)
    hung = begun(stepping(run, 600))
    late = [at - hung for at in shown(run.play(300, stopped, others=SPINS)).opened if at > hung]
    assert len(late) == 1
    assert late[0] <= 100


def test_a_run_that_tells_no_step_has_it_too() -> None:
    run = Run(interval=LOOKS).play(20, WORKS)
    for _ in range(5):
        run.play(600, TRAINS).play(300, UPLOADS)
    assert len(shown(run.play(300, TRAINS)).opened) == 1


def test_it_outlives_the_agent() -> None:
    run = epochs("rank 0 writes a checkpoint", 2)
    first = shown(run)
    stored = msgspec.json.decode(msgspec.json.encode(first.watch.memory()), type=StallMemory)
    run.looks = []
    seconds, crew = PAUSES["rank 0 writes a checkpoint"]
    paused(stepping(run, 300), seconds, crew)
    assert watch(stepping(run, 60).looks, stored, interval=LOOKS).opened == []


def test_a_timeout_from_the_config_is_kept_to() -> None:
    assert len(watch(epochs("all upload", 3).looks, interval=LOOKS, timeout=60.0).opened) == 3


def test_the_places_are_bounded_and_the_newest_stay() -> None:
    gaps = ProgressGaps()
    for number in range(3 * PLACES):
        gaps.survive({str(number)}, 100.0)
    assert len(gaps.memory.pauses) == PLACES
    newest = str(3 * PLACES - 1)
    assert gaps.pause_at([newest]) == 150.0
    assert gaps.pause_at(["0"]) == gaps.pause_at([]) == gaps.pause_at(["0", newest]) == 0.0
    gaps.survive({"a night"}, 30_000.0)
    assert gaps.pause_at(["a night"]) == LONGEST_PAUSE


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (IN_EVALUATION, f"evaluate (train.py)\n{IN_STEP}"),
        (f"score (m.py:1)\n{IN_EVALUATION}", f"evaluate (train.py)\n{IN_STEP}"),
        (IN_STEP, ""),
        ("train_and_evaluate (main.py:9)", ""),
        ("test_model (x.py:1)\nmain (x.py:2)", "test_model (x.py)\nmain (x.py:2)"),
        ("train (x.py:1)\ntest (x.py:2)", ""),
        ("", ""),
    ],
)
def test_the_place_of_a_pause_is_what_called_it(frames: str, place: str) -> None:
    assert pause_place(frames) == place
