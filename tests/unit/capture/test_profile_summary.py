"""Where the time of a step goes, from traces that torch.profiler 2.13 made of a job of two ranks on gloo; rank 0 sleeps 20 ms in each step."""

import gzip
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from mldebug.capture.folded_stacks import folded_text, parse_folded
from mldebug.capture.profile.intervals import join, length, without
from mldebug.capture.profile.sampled import sampled_profile
from mldebug.capture.profile.sentences import UNSEEN, profile_lines, sampled_lines
from mldebug.capture.profile.summary import ProfileSummary, summarize
from mldebug.capture.profile.trace import MAX_OBJECTS, parse_trace
from mldebug.core.errors import EvidenceError

FOLDER = Path(__file__).parents[2] / "fixtures/profile"


def recorded(rank: int) -> bytes:
    return gzip.decompress((FOLDER / f"gloo-rank{rank}.json.gz").read_bytes())


def test_the_rank_that_sleeps_is_in_gaps_and_the_one_that_waits_for_it_in_collectives() -> None:
    sleeps, waits = (summarize(parse_trace(recorded(rank))) for rank in (0, 1))
    assert (sleeps.limit, waits.limit) == ("between", "communication")
    assert 18_000 < sleeps.gap < 22_000  # microseconds of one sleep
    assert sleeps.gap_after == "gloo:all_reduce"
    assert waits.communication > 2 * sleeps.communication
    assert waits.exposed == pytest.approx(waits.communication, rel=0.01)
    assert sleeps.device_busy is None


def test_an_operators_time_is_without_what_it_calls() -> None:
    shares = {one.name: one for one in summarize(parse_trace(recorded(0))).operators}
    assert "aten::addmm" in shares
    assert "aten::linear" not in shares  # it does nothing but call it
    assert shares["aten::mm"].count == 6


def event(cat: str, name: str, ts: float, dur: float, tid: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}


def of(*events: dict[str, Any]) -> ProfileSummary:
    return summarize(parse_trace(json.dumps({"traceEvents": list(events)}).encode()))


HOST = event("cpu_op", "aten::mm", 0, 1000)
SYNC = event("cuda_runtime", "cudaStreamSynchronize", 100, 900)


@pytest.mark.parametrize(
    ("events", "limit"),
    [
        ([HOST, event("kernel", "gemm", 50, 900)], "device"),
        ([HOST, event("kernel", "gemm", 5, 300)], "host"),
        ([HOST, SYNC, event("kernel", "gemm", 5, 300)], "unclear"),  # the host waits, too
        ([HOST, event("kernel", "ncclDevKernel_AllReduce", 50, 900)], "communication"),
        ([HOST, event("kernel", "ncclDevKernel_AllReduce", 50, 900), event("kernel", "gemm", 50, 900, 8)], "device"),
        ([HOST], "cpu only"),
        ([], "nothing"),
    ],
)  # fmt: skip
def test_what_limits(events: list[dict[str, Any]], limit: str) -> None:
    assert of(*events).limit == limit


def test_collectives_that_run_beside_kernels_cost_nothing() -> None:
    talk, work = event("kernel", "ncclKernel", 0, 600), event("kernel", "gemm", 400, 600, 8)
    found = of(talk, work)
    assert (found.communication, found.exposed, found.device_busy) == (600, 400, 1000)


def test_the_start_of_the_profiler_before_the_first_kernel_is_no_gap() -> None:
    late = [event("kernel", "gemm", 500 + at, 90) for at in range(0, 500, 100)]
    found = of(HOST, event("cuda_runtime", "cudaStreamSynchronize", 100, 600), *late)
    assert (found.span, found.limit, found.gap, found.gap_after) == (500, "device", 10, "gemm")
    assert (found.host_busy, found.host_waits) == (500, 200)


def test_sentences_say_shares_and_gaps() -> None:
    text = "\n".join(profile_lines(summarize(parse_trace(recorded(1)))))
    assert text.startswith("bound by communication")
    assert "in collectives 30.77 ms of 39.86 ms (77.2 %), 30.72 ms" in text
    assert "after gloo:all_reduce" in text
    assert list(profile_lines(ProfileSummary())) == ["the trace is empty"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"traceEvents": [{"ts": "x"}]}',
        b'{"traceEvents": [{"ts": 1e400}]}',
        b'{"traceEvents": [{',
    ],
)
def test_what_is_no_whole_trace_is_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        parse_trace(data)


def test_a_small_trace_of_endless_events_is_refused_before_it_is_unfolded() -> None:
    """96 MiB of empty events would be gigabytes of objects, in a process that root may have started."""
    trace = b'{"traceEvents": [' + b"{}," * MAX_OBJECTS + b"{}]}"
    assert len(trace) < 7 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EvidenceError, match="more events than a hook writes"):
        parse_trace(trace)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10  # KiB


def test_as_many_events_as_a_hook_writes_are_read() -> None:
    """The control: 200,000 events, each with its arguments and the name of a kernel with braces."""
    one = b'{"ph":"X","cat":"kernel","name":"at::{lambda(int)#1}","ts":1,"dur":1,"args":{}}'
    trace = b'{"traceEvents": [' + b",".join([one] * 200_000) + b"]}"
    assert len(parse_trace(trace).device) == 200_000


def test_times_that_are_none_and_names_for_terminals_do_no_harm() -> None:
    assert of(event("cpu_op", "a", 5, -3)).limit == "nothing"
    found = of(event("cpu_op", "a\x1b[31mb", 0, 5))
    assert "\x1b" not in found.operators[0].name


def test_times_whose_sums_have_no_end_are_left_out() -> None:
    """An infinite number is written as null, with which a report cannot be read back."""
    huge = [event("cpu_op", "a", 1e308, 1.7e308), event("cpu_op", "a", -1e308, 1e308)]
    assert of(*huge) == ProfileSummary()
    assert of(*huge, event("cpu_op", "a", 0, 5)) == of(event("cpu_op", "a", 0, 5))


def test_intervals() -> None:
    assert join([(5, 6), (0, 2), (1, 3)]) == [(0, 3), (5, 6)]
    assert without([(0, 10)], [(1, 2), (4, 12)]) == [(0, 1), (2, 4)]
    assert without([(0, 3), (5, 6)], []) == [(0, 3), (5, 6)]
    assert without([(0, 3), (5, 9)], [(2, 6)]) == [(0, 2), (6, 9)]
    assert length([(0, 3), (5, 6)]) == 4


SAMPLES = """\
thread (100): MainThread;train (/job/train.py:30);all_reduce (/v/site-packages/torch/distributed/distributed_c10d.py:9) 60
thread (100): MainThread;train (/job/train.py:31);step (/v/site-packages/torch/optim/sgd.py:5) 30
thread (100): MainThread;train (/job/train.py:29);__next__ (/v/site-packages/torch/utils/data/dataloader.py:7) 10
thread (101): beside;watch (/job/beside.py:3) 900
"""


def test_samples_are_of_the_thread_that_trains_and_say_what_they_cannot_see() -> None:
    found = sampled_profile(parse_folded(SAMPLES), 100)
    assert (found.samples, found.communication, found.data) == (100, 0.6, 0.1)
    assert found.places[0] == ("train (train.py:30)", 0.6)
    assert list(sampled_lines(found))[-1] == UNSEEN
    assert "no sample" in next(iter(sampled_lines(sampled_profile((), 1))))


def test_folded_stacks_are_written_as_they_are_read() -> None:
    stacks = parse_folded(SAMPLES)
    assert [(one.stack.tid, one.count, len(one.stack.frames)) for one in parse_folded(folded_text(stacks))] == [
        (one.stack.tid, one.count, len(one.stack.frames)) for one in stacks
    ]  # fmt: skip
