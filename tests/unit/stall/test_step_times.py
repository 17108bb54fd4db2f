"""Step times from what logs tell, and from the time between records where they tell none; the counts only grow."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.jobs.logs.records import STEP_BOUNDS, LogRecord, StepTimes
from mldebug.stall.log_progress import LogProgress


def record(step: int | None, seconds: float | None = None, total: int | None = None) -> LogRecord:
    return LogRecord(step=step, step_seconds=seconds, total=total, format="plain")


class Job:
    """A run whose logs are polled."""

    def __init__(self) -> None:
        self.progress = LogProgress()

    def poll(self, now: float, *records: LogRecord, log: str = "a") -> None:
        self.progress.take(records, 10 * len(records), now, log)

    @property
    def times(self) -> StepTimes:
        found = self.progress.step_times
        assert found is not None
        return found

    @property
    def steps(self) -> int:
        return sum(self.times.counts)


def at(seconds: float) -> int:
    """The bucket of a duration."""
    return next((n for n, bound in enumerate(STEP_BOUNDS) if seconds <= bound), len(STEP_BOUNDS))


def test_a_log_without_steps_tells_no_times() -> None:
    job = Job()
    job.poll(1, record(None))
    job.poll(2, record(None, 3.0))
    assert job.progress.step_times is None


def test_told_durations_count_once_for_each_step() -> None:
    job = Job()
    job.poll(1, record(10, 0.2))
    job.poll(6, record(20, 0.3), record(30, 40.0))
    assert job.times.counts[at(0.2)] == 1  # how many steps the first record stands for is not known
    assert job.times.counts[at(0.3)] == 10
    assert job.times.counts[at(40)] == 10
    assert job.times.seconds == 0.2 + 3.0 + 400.0


def test_a_bound_belongs_to_its_own_bucket() -> None:
    job = Job()
    job.poll(1, record(1, 0.01), record(2, 600.0), record(3, 600.1))
    assert (job.times.counts[0], job.times.counts[-2], job.times.counts[-1]) == (1, 1, 1)


def test_without_durations_the_time_between_polls_is_shared() -> None:
    job = Job()
    job.poll(100, record(5))
    assert job.progress.step_times is None
    job.poll(105, record(6), record(7), record(15))
    job.poll(107)
    job.poll(110, record(16))
    assert job.times.counts[at(0.5)] == 10
    assert job.times.counts[at(5.0)] == 1
    assert job.times.seconds == 10.0


def test_a_pause_is_one_slow_step_whatever_comes_after_it() -> None:
    job = Job()
    for now in range(100, 105):
        job.poll(now, *(record(now * 10 + one) for one in range(10)))
    for now in range(105, 121):
        job.poll(now)
    job.poll(121, *(record(1050 + one) for one in range(10)))
    assert job.times.counts[at(16.1)] == 1
    assert job.steps == 50
    assert abs(job.times.seconds - 21) < 1e-6


def test_a_log_that_tells_every_tenth_step_tells_a_mean() -> None:
    job = Job()
    for now in range(100, 161):
        job.poll(now, *([record(now // 30 * 10)] if now % 30 == 0 else []))
    assert job.times.counts[at(3.0)] == 10
    assert job.steps == 10


def test_a_redrawn_bar_is_no_step() -> None:
    job = Job()
    for now in range(100, 110):
        job.poll(now, record(5))
    job.poll(110, record(6))
    assert job.steps == 1
    assert job.times.seconds == 10


def test_what_was_there_before_us_is_where_the_count_begins() -> None:
    result, derived = Job(), Job()
    for job in (result, derived):
        job.progress.arrive(record(100), 40.0, "a")
    result.poll(50, record(101, 2.0))
    derived.poll(50, record(105))
    assert result.times.seconds == 2.0
    assert derived.times.counts[at(2.0)] == 5


def test_a_log_that_is_met_again_begins_no_new_count() -> None:
    job = Job()
    job.poll(1, record(1))
    job.poll(10, record(10))
    job.progress.arrive(record(3), 8.0, "a")
    job.poll(12, record(10))  # a redrawn bar
    job.poll(15, record(11))
    assert job.steps == 10
    assert job.times.seconds == 14


def test_ranks_that_repeat_each_other_count_once() -> None:
    one_log, own_logs = Job(), Job()
    for step in range(1, 101):
        for rank in range(4):
            one_log.poll(step, record(max(1, step - rank % 2), 0.5))
            own_logs.poll(step, record(step, 0.5), log=f"rank{rank}")
    assert one_log.steps == own_logs.steps == 100


def test_own_logs_read_in_bursts_count_once() -> None:
    job = Job()
    for start in range(0, 5000, 500):
        burst = [record(step, 0.01) for step in range(start, start + 500)]
        for rank in range(4):
            job.poll(float(start), *burst, log=f"rank{rank}")
    assert job.steps == 5000


def test_a_new_epoch_goes_on_counting() -> None:
    job = Job()
    for epoch in range(3):
        for step in range(1, 101):
            job.poll(epoch * 100 + step, record(step, 1.0, total=100))
    assert job.steps == 300


def test_an_evaluation_does_not_count_as_training() -> None:
    job = Job()
    now = 0.0
    for round_ in range(3):
        for step in range(1, 101):
            now += 1
            job.poll(now, record(round_ * 100 + step, 1.0, total=1000))
        for step in range(1, 31):
            now += 1
            job.poll(now, record(step, 0.1, total=30))
    assert job.times.counts[at(1.0)] == 300
    assert job.steps == 300


def test_another_log_takes_over_where_the_first_fell_silent() -> None:
    job = Job()
    job.poll(1, record(1, 1.0), log="a")
    for now in range(2, 62):
        job.poll(now, record(now, 1.0), log="b")
    assert job.steps == 1
    job.poll(62, record(62, 1.0), log="b")
    job.poll(63, record(63, 1.0), log="b")
    assert job.steps == 3


def test_long_steps_are_no_silence() -> None:
    job = Job()
    for number in range(1, 20):
        for rank in range(4):
            job.poll(number * 90.0, record(number, 90.0), log=f"rank{rank}")
    assert job.steps == 19


def test_a_number_that_is_no_step_counts_once() -> None:
    job = Job()
    job.poll(1, record(1, 1.0))
    job.poll(2, record(10**14, 1.0))
    assert job.steps == 2


RECORDS = st.builds(
    record,
    st.one_of(st.none(), st.integers(0, 10**15)),
    st.one_of(st.none(), st.floats(1e-9, 1e9)),
    st.sampled_from([None, 10, 1000]),
)


POLLS = st.tuples(
    st.lists(RECORDS, max_size=4), st.sampled_from("abc"), st.floats(0, 200), st.none() | RECORDS
)


@settings(max_examples=150, deadline=None)
@given(st.lists(POLLS))
def test_whatever_comes_nothing_goes_backwards(
    polls: list[tuple[list[LogRecord], str, float, LogRecord | None]],
) -> None:
    progress, now, results = LogProgress(), 0.0, []
    for records, log, pause, before in polls:
        now += pause
        progress.arrive(before, now - pause / 2, log)
        progress.take(tuple(records), 1, now, log)
        if progress.step_times is not None:
            results.append(progress.step_times)
    for before_it, after in pairwise(results):
        assert after.seconds >= before_it.seconds
        assert all(b >= a for a, b in zip(before_it.counts, after.counts, strict=True))
