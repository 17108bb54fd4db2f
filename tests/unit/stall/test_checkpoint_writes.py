"""A save on disk that grows holds an incident back, also where no rank writes it itself; one that died does not."""

from collections.abc import Iterator, Sequence

import msgspec

from mldebug.stall.signals import RunLook
from shared.stall.plots import trained
from shared.stall.traces import SLEEPS, SPINS, watch

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


def test_a_save_that_grows_for_ever_is_blamed_before_the_evidence_dies() -> None:
    looks = trained().play(700, {3: SLEEPS}, others=SPINS).looks
    story = watch(on_disk(looks, STALL, 5000), timeout=20.0)
    assert STALL + 440 <= story.opened[0] <= STALL + 455
