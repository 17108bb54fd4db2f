"""What status and the page of a run tell of waiting for data."""

import pytest

from mldebug.goodput.evidence import RankEvidence
from mldebug.goodput.rank_shares import RankShares
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
