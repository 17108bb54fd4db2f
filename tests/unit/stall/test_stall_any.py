"""Properties: nothing makes the watch raise, only differences of time count, progress keeps it silent."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.core.model import Role
from mldebug.stall.decision import StallWatch
from mldebug.stall.progress_clock import StallMemory
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Progress, ProgressKind, RankLook, RunLook
from shared.stall.traces import (
    SLEEPS,
    WAITS,
    WORKS,
    Run,
    watch,
)

# --- properties ----------------------------------------------------------------------------------------

ANY = st.floats(allow_nan=True, allow_infinity=True)
RANKS = st.builds(
    RankLook,
    rank=st.integers(0, 5),
    role=st.sampled_from([None, *Role]),
    class_name=st.sampled_from(["", "init", "collective"]),
    doing=st.text(max_size=5),
    operation=st.text(max_size=5),
    frames_signature=st.sampled_from([None, "a", "b"]),
    cpu_ratio=ANY,
    process_cpu_ratio=ANY,
    children_cpu_ratio=ANY,
    children_io_rate=ANY,
    switches=st.integers(-5, 10**9),
    io_bytes=st.integers(-5, 10**12),
    state=st.sampled_from(["", "R", "S", "D", "T", "Z"]),
    compiling=st.booleans(),
    device_progress=st.sampled_from([None, True, False]),
)
SIGNALS = st.builds(
    Progress, kind=st.sampled_from(ProgressKind), value=ANY, at=ANY, events=st.integers(-1, 5)
)
LOOKS = st.builds(
    RunLook,
    at=st.one_of(st.floats(0, 1e5), ANY),
    attempt=st.integers(0, 2),
    ranks=st.lists(RANKS, max_size=4).map(tuple),
    exited=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    progress=st.lists(SIGNALS, max_size=3).map(tuple),
    started=st.booleans(),
    backend=st.sampled_from(["nccl", "gloo", "mpi", ""]),
    collective_timeout=st.one_of(st.none(), ANY),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(LOOKS, max_size=25), st.sampled_from(["auto", 0.0, 15.0]))
def test_no_look_makes_it_raise(looks: list[RunLook], timeout: float | str) -> None:
    watcher = StallWatch(StallSettings(timeout=timeout, interval=1.0))  # type: ignore[arg-type]
    for look in looks:
        decision = watcher.look(look)
        assert not {"\n", "\x1b", "\u202e"} & set(decision.sentence)
        assert decision.next_look > 0
    msgspec.json.decode(msgspec.json.encode(watcher.memory()), type=StallMemory)


@settings(max_examples=20, deadline=None)
@given(st.integers(-900, 10**6))
def test_only_differences_of_time_count(shift: int) -> None:
    def run(start: float) -> Run:
        return (
            Run(start=start).train(40).play(50, {3: SLEEPS}).train(5).play(80, {0: WORKS}).train(5)
        )

    here, there = watch(run(1000.0).looks), watch(run(1000.0 + shift).looks)

    assert [d.stage for _, d in here.decisions] == [d.stage for _, d in there.decisions]
    assert [d.sentence for _, d in here.decisions] == [d.sentence for _, d in there.decisions]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.1, 14.0), min_size=5, max_size=60), st.sampled_from(["auto", 15.0, 20.0])
)
def test_progress_within_the_timeout_never_opens(pauses: list[float], timeout: str | float) -> None:
    run = Run(ranks=2).play(sum(pauses), WAITS, every=lambda step: pauses[step % len(pauses)])

    story = watch(run.looks, timeout=timeout)
    assert story.opened == []
    assert story.captured == [] or timeout == 15.0  # of which 14 s are nearly all
