"""A save on disk that grows holds an incident back, also where no rank writes it itself; one that died does not."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from mldebug.stall.signals import ProgressKind, RunLook
from shared.stall.plots import FSYNC, save_in_pieces, trained
from shared.stall.traces import LOADS, SAVES, SLEEPS, SPINS, TRAINS, Run, watch

STALL = 60.0  # seconds of the trace at which the steps end


def on_disk(
    looks: Sequence[RunLook], first: float, last: float, every: float = 15.0
) -> Iterator[RunLook]:
    """The same looks with a save that a child of rank 3 writes between these seconds, as a look every 15 s sees it."""
    saved = None
    for look in looks:
        second = look.at - looks[0].at
        if first <= second <= last and (saved is None or look.at - saved >= every):
            saved = look.at
        yield msgspec.structs.replace(look, checkpoint_grew_at=saved)


def test_a_save_that_grows_holds_an_incident_back_until_it_ends() -> None:
    looks = trained().play(200, {3: SLEEPS}, others=SPINS).looks
    without = watch(looks, timeout=20.0)
    story = watch(on_disk(looks, STALL, STALL + 60), timeout=20.0)
    assert STALL + 19 <= without.opened[0] <= STALL + 21
    assert len(story.opened) == 1
    assert STALL + 75 <= story.opened[0] <= STALL + 85


def test_a_save_of_before_the_stall_is_no_excuse() -> None:
    looks = trained().play(200, {3: SLEEPS}, others=SPINS).looks
    story = watch(on_disk(looks, 10, 40), timeout=20.0)
    assert STALL + 19 <= story.opened[0] <= STALL + 21


@pytest.mark.parametrize("chatter", [0.0, 200.0, 20e3])  # bytes a second
@pytest.mark.parametrize("steps", [1, 4])
def test_a_hang_right_behind_a_checkpoint_is_blamed_on_time(chatter: float, steps: int) -> None:
    """The few bytes that a bar's monitor or a log's thread writes then let no checkpoint grow, however much was written before."""
    run = trained().play(5, {3: SAVES}, others=SPINS).train(steps)
    run.play(60, {3: LOADS._replace(writes=chatter)}, others=SPINS)
    assert watch(run.looks, timeout=15.0).opened[0] - (STALL + 5 + steps) <= 15.0 + 3


@pytest.mark.parametrize("saves", [0, 6])
def test_what_the_last_steps_sent_to_other_ranks_is_no_checkpoint(saves: int) -> None:
    """It counts as written; of two looks 5 s apart the second one sees it, seconds after the last step. A save behind that step goes on."""
    sends = TRAINS._replace(writes=2e6)
    run = Run(ranks=2, interval=5.0).train(60, does=sends)
    last = run.at + 1.0
    run.signal(ProgressKind.RECORD, 100, at=last)
    run.play(5.0, sends)
    run.interval = 1.0  # closer looks at a run that is quiet
    run.play(5.0 * saves, {1: SAVES})
    run.play(60, {1: LOADS._replace(class_name="storage")})
    opened = watch(run.looks, timeout=15.0, interval=5.0).opened[0] + run.looks[0].at
    assert (opened - last <= 16) == (not saves)


@pytest.mark.parametrize("every", [1, 4, 8])
def test_large_writes_with_pauses_are_a_checkpoint_that_grows(every: int) -> None:
    run = save_in_pieces(trained(), 40, every).play(5, {0: FSYNC}, others=SPINS)
    assert watch(run.train(30).looks, timeout=15.0).opened == []


def test_a_save_that_grows_for_ever_is_blamed_before_the_evidence_dies() -> None:
    looks = trained().play(700, {3: SLEEPS}, others=SPINS).looks
    story = watch(on_disk(looks, STALL, 5000), timeout=20.0)
    assert STALL + 440 <= story.opened[0] <= STALL + 455
