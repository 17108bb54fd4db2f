"""What status and the page of a run tell of waiting for data, and what is advised on the interval of checkpoints."""

import pytest

from mldebug.goodput.account.gpu_time import AttemptAccount
from mldebug.goodput.account.job_account import AttemptTotal, JobAccount
from mldebug.goodput.account.job_goodput import best_interval, interval_words, job_goodput
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.straggler import Slowness
from mldebug.status.run_lines import data_words, goodput_words
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.web.page import PageRequest
from mldebug.web.pages.run import RunPage


def run(*loading: float, **fields: object) -> RunState:
    shares = tuple(RankShares(rank=rank, samples=100, waiting=0.1, loading=share) for rank, share in enumerate(loading))  # fmt: skip
    slowness = Slowness(shares=shares) if shares else None
    return RunState(id="r", name="train.py", launcher="torchrun", slowness=slowness, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loading", "words"),
    [
        ((0.05, 0.09), ""),
        ((0.05, 0.12), "waits for data 8 % of the time: rank 1 12 %, rank 0 5 %"),
        ((0.2, 0.21, 0.2), "waits for data 20 % of the time, all ranks alike"),
        ((0.0, 0.6, 0.0), "waits for data 20 % of the time: rank 1 60 %, rank 0 0 %"),
    ],
)
def test_waiting_for_data_is_told_above_a_tenth(loading: tuple[float, ...], words: str) -> None:
    assert data_words(run(*loading)) == words


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (RankEvidence(file_waiting=0.55, mount="/data (nfs4)", worker=4711, busy_workers=1), "; of rank 1 worker 4711 waits for files on /data (nfs4) 55 % of the time"),
        (RankEvidence(file_waiting=0.4), "; of rank 1 it waits for files 40 % of the time"),
        (RankEvidence(file_waiting=0.1, mount="/data (nfs4)", worker=4711, busy_workers=2), "; of rank 1 2 workers compute all the time"),
        (RankEvidence(busy_workers=1), "; of rank 1 1 worker computes all the time"),
        (RankEvidence(file_waiting=0.1, mount="/data (nfs4)"), ""),
    ],
)  # fmt: skip
def test_the_worker_or_mount_that_is_slow_is_told(evidence: RankEvidence, words: str) -> None:
    shares = (
        RankShares(rank=0, samples=100, waiting=0.5),
        RankShares(rank=1, samples=100, waiting=0.1, loading=0.6, evidence=evidence),
    )
    one = RunState(id="r", name="train.py", launcher="torchrun", slowness=Slowness(shares=shares))
    assert data_words(one) == f"waits for data 30 % of the time: rank 1 60 %, rank 0 0 %{words}"


SLOW = "reads of /data (nfs01:/data) take 48 ms instead of 3 ms since 14:02 UTC"


def reading(rank: int, loading: float, **evidence: object) -> RankShares:
    """A rank whose worker waits for files of /data, which has become slow."""
    found = {"file_waiting": 0.9 * loading, "worker": 70, "mount": "/data (nfs4)", "mount_slow": SLOW} | evidence  # fmt: skip
    return RankShares(rank=rank, samples=100, waiting=0.1, loading=loading, evidence=RankEvidence(**found))  # type: ignore[arg-type]  # fmt: skip


def waiting_words(*shares: RankShares) -> str:
    return data_words(RunState(id="r", name="train.py", launcher="torchrun", slowness=Slowness(shares=shares)))  # fmt: skip


def test_ranks_that_wait_for_data_of_a_mount_that_has_become_slow_are_told_with_it() -> None:
    ranks = [reading(rank, 0.6) for rank in range(7)]
    healthy = RankShares(rank=7, samples=100, waiting=0.6)
    assert waiting_words(*ranks, healthy) == f"{SLOW}; 7 of 8 ranks wait for data"
    assert waiting_words(reading(0, 0.6)) == f"{SLOW}; its rank waits for data"
    itself = [reading(rank, 0.0, worker=0, file_waiting=0.4) for rank in range(2)]
    assert waiting_words(*itself, healthy) == f"{SLOW}; 2 of 3 ranks wait for files there"


def test_of_two_slow_mounts_the_one_that_holds_up_most_ranks_is_told() -> None:
    other = "opens of /more (nfs02:/more) take 1,200 ms instead of 2 ms since 14:03 UTC"
    more = [reading(rank, 0.5, mount="/more (nfs4)", mount_slow=other) for rank in (1, 2)]
    assert waiting_words(reading(0, 0.6), *more) == f"{other}; 2 of 3 ranks wait for data"


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (reading(0, 0.6, mount_slow=""), "waits for files on /data (nfs4)"),  # the mount is as usual
        (reading(0, 0.6, file_waiting=0.12, busy_workers=1), "1 worker computes all the time"),
        (reading(0, 0.05), ""),  # it does not wait for data
        (reading(0, 0.0, worker=0, file_waiting=0.05), ""),
    ],
)  # fmt: skip
def test_data_that_a_slow_mount_does_not_hold_up_are_not_told_with_it(
    share: RankShares, words: str
) -> None:
    found = waiting_words(share, reading(1, 0.0, file_waiting=0.0))
    assert SLOW not in found
    assert words in found
    assert bool(found) == bool(words)


def test_without_samples_the_phases_of_the_hook_count() -> None:
    steps = {"productive": 60.0, "data_wait": 20.0, "startup": 500.0}
    assert data_words(run(gpu_seconds=steps)) == "waits for data 25 % of the time of its steps"
    assert data_words(run(gpu_seconds=steps | {"data_wait": 2.0})) == ""
    assert data_words(run()) == ""


def test_the_page_of_a_run_has_the_sentence() -> None:
    one = run(0.3, 0.3, goodput="71 % productive; 9 % stalls")
    page = RunPage().build(PageRequest(snapshot=Snapshot(node="n", at=0, started_at=0, runs=(one,)), id="r"))  # fmt: skip
    assert page is not None
    assert tuple(goodput_words(one)) == page.lines
    assert page.lines[0] == "GPU hours: 71 % productive; 9 % stalls"


HOUR = 3600.0


def saving(*, attempts: int, living: int = 0, gpus: int = 8, period: float | None = 2 * HOUR, restarts: int | None = None, earlier: int = 0) -> JobAccount:  # fmt: skip
    """A job whose attempts run for six hours each, with three checkpoints of 80 s in each. `earlier`: attempts that are not kept one by one."""
    seconds = {"productive": (6 * HOUR - 240) * gpus, "checkpoint": 240.0 * gpus, "restart_gap": 600.0 * gpus}  # fmt: skip
    over = [AttemptTotal(run="r", attempt=n, began=7 * HOUR * n, ended=7 * HOUR * n + 6 * HOUR, seconds=seconds) for n in range(attempts)]  # fmt: skip
    live = [AttemptAccount(run="r", attempt=attempts + n, began=0.0, at=6 * HOUR, gpus=gpus, settled=dict(seconds)) for n in range(living)]  # fmt: skip
    count = attempts + living + earlier
    return JobAccount(
        name="train.py",
        user="ada",
        uid=1000,
        script="train.py",
        began=0.0,
        at=100 * HOUR,
        restarts=count if restarts is None else restarts,
        checkpoints=3 * count,
        checkpoint_period=period,
        count=count,
        over=over,
        open=live,
        earlier={use: earlier * one for use, one in seconds.items()},
    )


ADVICE = "advice: a checkpoint every 31 min in place of 2 h would lose 9 % less of the time: one costs 1 min 20 s, and a failure comes every 6 h (Young/Daly)"


@pytest.mark.parametrize(
    "job",
    [
        saving(attempts=3, living=1),
        saving(attempts=4),  # none lives any more
        saving(attempts=3, living=1, gpus=1),
        saving(attempts=4, earlier=40),
    ],
)
def test_the_best_interval_between_checkpoints_is_told_as_advice(job: JobAccount) -> None:
    assert job_goodput(job).advice == ADVICE


@pytest.mark.parametrize(
    "job",
    [
        saving(attempts=4, restarts=0),  # nothing failed
        saving(attempts=4, period=None),  # how often it writes is not known
        saving(attempts=4, period=2200.0),  # within a hundredth of the best
        saving(attempts=0),
    ],
)
def test_nothing_is_advised_where_nothing_would_be_won_or_is_known(job: JobAccount) -> None:
    assert job_goodput(job).advice == ""


def test_the_interval_is_that_of_young() -> None:
    found = best_interval(cost=50.0, checkpoints=3, running=40_000.0, failures=4, present=4000.0)
    assert found is not None
    assert (found.best, found.between_failures) == (1000.0, 10_000.0)
    assert found.best_loss == pytest.approx(0.05 + 0.05)
    assert found.present_loss == pytest.approx(0.0125 + 0.2)
    assert interval_words(found).startswith(
        "advice: a checkpoint every 17 min in place of 1 h 7 min "
    )
    assert best_interval(cost=50.0, checkpoints=2, running=40_000.0, failures=4, present=1.0) is None  # fmt: skip
