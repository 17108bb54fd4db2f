"""NCCL RAS during the watch: when it is asked, and what its counts do to the decision, recorded and made up."""

import json
import queue
from typing import Any, NamedTuple

import msgspec
import pytest

from mldebug.capture.nccl_ras.answer import parse
from mldebug.core.model import Job, NcclRas, RankIdentity
from mldebug.stall.collective_counts import LIMIT, CollectiveProgress
from mldebug.stall.signals import Progress, ProgressKind, RunLook, Stage, StallDecision
from mldebug_agents.capture.nccl_ras.child import RasReply
from mldebug_agents.jobs.ranks.ras_address import OFF
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.ras_watch import HEALTHY, QUIET, REFUSED, RasWatch, RunToAsk
from shared.capture.rasserver import answer, recorded
from shared.hardware.recordings import looks, phases
from shared.stall.traces import BLIND, ONE_LINE, SLEEPS, SPINS, TRAINS, Run, watch

STEP = Progress(kind=ProgressKind.RECORD, value=3, at=1.0)


def answer_with(count: int) -> NcclRas:
    return parse(json.dumps(answer({0: {"AllReduce": count}, 1: {"AllReduce": count}})).encode())


# --- when it is asked ------------------------------------------------------------------------------


class Watched(NamedTuple):
    """As much of a run as counts here."""

    job: Job
    decision: StallDecision | None
    last_look: JobLook
    unjudged: str = ""


def run(
    stage: Stage | None = Stage.WATCHING,
    *progress: Progress,
    backend: str = "nccl",
    world: int = 2,
    ras: str = "",
    first: int = 0,
    **more: Any,
) -> Any:
    ranks = tuple(
        RankIdentity(rank=n, world_size=world, pid=100 + n, nccl_ras=ras)
        for n in range(first, first + 2)
    )
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=world, ranks=ranks)
    look = RunLook(at=0.0, run="j", progress=progress, backend=backend)
    decision = StallDecision(stage=stage, sentence="") if stage else None
    return Watched(job, decision, JobLook(job=job, look=look), **more)


class ClockedWatch:
    """A RasWatch with a clock of its own; `asked` are the moments of its questions."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.requests: list[float] = []
        self.orders: queue.SimpleQueue[RunToAsk] = queue.SimpleQueue()
        self.watch = RasWatch(self._put, lambda: self.now)

    def _put(self, order: RunToAsk) -> bool:
        self.requests.append(self.now)
        self.orders.put(order)
        return True

    def play(self, seconds: int, one: Any, count: int | None = 5) -> list[float]:
        """Look twice a second; every question is answered before the next look, None: it is refused."""
        begun, self.requests = self.now, []
        for _ in range(2 * seconds):
            self.watch.tick({"j": one})
            self.answer(count)
            self.now += 0.5
        return [at - begun for at in self.requests]

    def answer(self, count: int | None) -> None:
        """Answer what was asked."""
        while not self.orders.empty():
            reply = (
                RasReply(error="refused") if count is None else RasReply(answer=answer_with(count))
            )
            self.watch.on_result(Result("ras", self.orders.get(), reply, None))

    def signals(self, one: Any) -> tuple[Progress, ...]:
        """What the decision sees."""
        last_look = one.last_look
        look = msgspec.structs.replace(last_look.look, at=self.now)
        found = self.watch.complete(msgspec.structs.replace(last_look, look=look))
        return found.look.progress[len(look.progress) :]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (run(), [0.0, HEALTHY, 2 * HEALTHY]),
        (run(Stage.WATCHING, STEP), []),
        (run(Stage.QUIET, STEP), [n * QUIET for n in range(20)]),
        (run(Stage.SUSPECT, world=256), [n * 16.0 for n in range(3)]),
        (run(world=256), [n * 16.0 for n in range(3)]),
        (run(world=256, first=2), []),
        (run(backend="gloo"), []),
        (run(None), []),
        (run(Stage.SUSPECT, ras=OFF), []),
        (run(Stage.SUSPECT, unjudged="not judged"), []),
    ],
)
def test_when_it_is_asked(one: Any, expected: list[float]) -> None:
    assert ClockedWatch().play(40, one) == expected


def test_one_question_at_a_time() -> None:
    desk = ClockedWatch()
    for _ in range(100):
        desk.watch.tick({"j": run(Stage.SUSPECT)})
        desk.now += 1.0
    assert len(desk.requests) == 1


def test_who_does_not_answer_is_left_alone_for_a_while() -> None:
    assert ClockedWatch().play(130, run(Stage.SUSPECT), None) == [0.0, REFUSED, 2 * REFUSED]


def test_a_count_that_moved_is_a_sign_of_progress() -> None:
    desk, one = ClockedWatch(), run(Stage.SUSPECT)
    desk.play(3, one, 5)
    assert desk.signals(one) == (), "two equal answers show nothing"
    desk.play(3, one, 6)
    (sign,) = desk.signals(one)
    assert (sign.kind, sign.value, sign.at) == (ProgressKind.RAS, 1.0, 1002.0)


def test_what_moved_while_nobody_asked_is_no_news() -> None:
    """The job stepped for an hour since the last question: that its counts differ says nothing of now."""
    desk = ClockedWatch()
    desk.play(3, run(Stage.QUIET, STEP), 5)
    desk.play(3600, run(Stage.WATCHING, STEP), 5)
    quiet = run(Stage.QUIET, msgspec.structs.replace(STEP, at=desk.now))
    desk.play(10, quiet, 9000)
    assert desk.signals(quiet) == ()
    desk.play(10, quiet, 9001)
    assert len(desk.signals(quiet)) == 1


def test_another_attempt_begins_anew() -> None:
    desk, one = ClockedWatch(), run(Stage.SUSPECT)
    desk.play(3, one, 5)
    desk.play(3, one, 6)
    again = one._replace(job=msgspec.structs.replace(one.job, attempt=1))
    again = again._replace(last_look=msgspec.structs.replace(one.last_look, job=again.job))
    desk.watch.tick({"j": again})
    assert desk.signals(again) == ()


# --- what it does to the decision: recorded --------------------------------------------------------


def with_ras(name: str, **parts: bool) -> list[RunLook]:
    """A recording's looks, with the answers that NCCL gave every 8 seconds."""
    answers = [one for one in recorded(name) if one[1][:1] == "{"]
    progress = CollectiveProgress()
    found = []
    for look in looks(name, **parts):
        while answers and answers[0][0] <= look.at:
            at, text = answers.pop(0)
            progress.take(parse(text.encode()), at)
        signs = progress.signals(look)
        found.append(msgspec.structs.replace(look, progress=(*look.progress, *signs)))
    return found


def test_recorded_counts_are_the_only_sign_of_a_job_that_tells_nothing() -> None:
    """Training, evaluation, checkpoint, slow input: never 15 s without a launch, and no false alarm."""
    fault = phases("sleep")[-1][0]
    healthy = [look for look in with_ras("sleep", log=False, gpu=False) if look.at < fault + 5]
    story = watch(healthy, blind=False, timeout=15.0)
    assert story.opened == []
    assert sum(bool(look.progress) for look in healthy) > 100


@pytest.mark.parametrize("gpu", [True, False])
def test_recorded_hang_of_a_job_that_tells_nothing_but_its_counts(gpu: bool) -> None:
    recording = with_ras("sleep", log=False, gpu=gpu)
    last = recording[-1]
    later = [msgspec.structs.replace(last, at=last.at + n) for n in range(1, 60)]
    story = watch([*recording, *later], blind=False, timeout=15.0)
    fault = phases("sleep")[-1][0] - recording[0].at
    assert [at for at in story.opened if at < fault] == []
    assert 13 <= story.opened[0] - fault <= 15 + 8 + 2, "at most one question later"


# --- what it does to the decision: made up -----------------------------------------------------------


def hears(one: Run, seconds: float, does: Any, every: float | None) -> Run:
    """Let time pass without a step, while the counts move every so often; None: they do not."""
    end = one.at + seconds
    progress, count = one.__dict__.setdefault("heard", (CollectiveProgress(), [0]))
    progress.take(answer_with(count[0]), one.at)
    while one.at < end:
        before = len(one.looks)
        one.play(1.0, does)
        if every and int(one.at) % every == 0:
            count[0] += 1
            progress.take(answer_with(count[0]), one.at)
        for index in range(before, len(one.looks)):
            look = one.looks[index]
            signs = (*look.progress, *progress.signals(look))
            one.looks[index] = msgspec.structs.replace(look, progress=signs)
    return one


def trained() -> Run:
    return Run().train(120.0)


def test_a_long_evaluation_whose_collectives_go_on_is_no_stall() -> None:
    story = watch(hears(trained(), 300.0, SPINS, 4).looks, timeout=30.0)
    assert story.opened == []
    assert story.captured == []


def test_without_its_counts_the_same_evaluation_is_taken_for_one() -> None:
    story = watch(hears(trained(), 300.0, SPINS, None).looks, timeout=30.0)
    assert story.opened != []


def test_a_thread_that_launches_for_ever_does_not_hide_a_hang() -> None:
    """It counts until 0.75 of the collective's timeout has gone by without a step."""
    hung = hears(trained(), 700.0, {1: SLEEPS}, 4)
    story = watch(hung.looks, timeout=30.0)
    assert len(story.opened) == 1
    assert 120 + LIMIT * 600 <= story.opened[0] <= 120 + LIMIT * 600 + 30 + 5


def test_counts_that_move_again_end_an_incident() -> None:
    run_ = hears(trained(), 60.0, {1: SLEEPS}, None)
    story = watch(hears(run_, 20.0, BLIND, 2).looks, timeout=30.0)
    assert len(story.opened) == 1
    assert Stage.RECOVERED in story.stages


def test_a_run_that_tells_nothing_else_is_found_as_soon_as_without_its_counts() -> None:
    """Its clock is its stacks: 60 s, from the last launch that was seen."""
    begun = hears(Run(), 400.0, TRAINS, 15)
    story = watch(hears(begun, 120.0, {1: SLEEPS}, None).looks)
    assert len(story.opened) == 1
    assert 400 + 58 <= story.opened[0] <= 400 + 70


def test_frozen_stacks_whose_counts_go_on_are_no_stall() -> None:
    story = watch(hears(Run(), 900.0, BLIND, 15).looks)
    assert story.opened == []


@pytest.mark.parametrize("does", [TRAINS, ONE_LINE])
def test_counts_that_stand_still_are_no_stall(does: Any) -> None:
    """Work that is captured in a CUDA graph after a warm-up is counted no more."""
    begun = hears(Run(), 400.0, does, 15)
    story = watch(hears(begun, 900.0, does, None).looks)
    assert story.opened == story.captured == []


def test_a_run_that_steps_is_not_changed_by_its_counts() -> None:
    plain = watch(Run().train(200.0, does=TRAINS).looks)
    counted = watch(hears(Run().train(200.0, does=TRAINS), 1.0, TRAINS, 1).looks)
    assert plain.stages == counted.stages == [Stage.WATCHING]
