"""The kernel's log in the exposition: each series with its labels, absent where nothing is known."""

import pytest

from mldebug.core.plugins import NoOptions
from mldebug.hardware.kernel_log.counts import KernelCounts, KindCount, XidCount
from mldebug.hardware.kernel_log.model import KernelEventKind
from mldebug_exporters.metrics.hardware.kernellog import create
from shared.web.snapshots import snapshot

COUNTS = KernelCounts(
    xids=(
        XidCount(device="0000:3b:00.0", xid=79, count=2, last_at=1_795_239_000.5, uuid="GPU-1", gpu=3),
        XidCount(device="0000:86:00.0", xid=31, count=800_000, last_at=1_795_239_111.0),
        XidCount(device="0000:86:00.0", xid=43, count=5, last_at=1_795_239_112.0, uuid="GPU-2"),
    ),
    kinds=(KindCount(kind=KernelEventKind.OOM_KILL, count=7, last_at=1_795_239_222.0),),
    records=900,
    overruns=11,
    lost=1_300,
)  # fmt: skip


def sampled(counts: KernelCounts | None) -> dict[tuple[str, tuple[str, ...]], object]:
    found = list(create(NoOptions()).samples(snapshot(kernel=counts)))
    made: dict[tuple[str, tuple[str, ...]], object] = {
        (one.family.series, one.labels): one.value for one in found
    }
    assert len(made) == len(found)
    return made


def test_every_series() -> None:
    assert sampled(COUNTS) == {
        ("mldebug_gpu_xid_total", ("GPU-1", "3", "79")): 2,
        ("mldebug_gpu_xid_last_timestamp_seconds", ("GPU-1", "3", "79")): 1_795_239_000.5,
        ("mldebug_gpu_xid_total", ("", "0000:86:00.0", "31")): 800_000,
        ("mldebug_gpu_xid_last_timestamp_seconds", ("", "0000:86:00.0", "31")): 1_795_239_111.0,
        ("mldebug_gpu_xid_total", ("GPU-2", "0000:86:00.0", "43")): 5,
        ("mldebug_gpu_xid_last_timestamp_seconds", ("GPU-2", "0000:86:00.0", "43")): 1_795_239_112.0,
        ("mldebug_kernel_events_total", ("oom_kill",)): 7,
        ("mldebug_kernel_event_last_timestamp_seconds", ("oom_kill",)): 1_795_239_222.0,
        ("mldebug_kernel_log_readable", ()): 1,
        ("mldebug_kernel_log_overruns_total", ()): 11,
        ("mldebug_kernel_log_lost_records_total", ()): 1_300,
    }  # fmt: skip


def test_a_log_that_may_not_be_read_is_a_zero_and_no_silence() -> None:
    assert sampled(KernelCounts(readable=False)) == {
        ("mldebug_kernel_log_readable", ()): 0,
        ("mldebug_kernel_log_overruns_total", ()): 0,
        ("mldebug_kernel_log_lost_records_total", ()): 0,
    }


def test_before_the_first_look_there_is_nothing() -> None:
    assert sampled(None) == {}


@pytest.mark.parametrize("family", create(NoOptions()).families, ids=lambda family: family.name)
def test_every_family_is_used(family: object) -> None:
    assert family in {one.family for one in create(NoOptions()).samples(snapshot(kernel=COUNTS))}
