"""From a judgement and its captures to a report."""

import time

import pytest
from msgspec.structs import replace

from mldebug.core.model import ProcessCapture, ThreadStack, TreeNode
from mldebug.core.text import rfc3339
from mldebug.incidents.report.build import MAX_DEPTH, make_id
from mldebug.incidents.report.ranks import MAX_DETAILED, MAX_FRAMES
from shared.incidents import samples


def test_names_the_job_the_times_and_the_culprit() -> None:
    report = samples.report(samples.sleeping())
    assert report.id == "20261121T055041Z-3fa9c1"
    assert report.detected_at == "2026-11-21T05:50:41.250Z"
    assert report.stalled_since == "2026-11-21T05:49:41.250Z"
    assert report.node == "gpu-17"
    assert (report.job.world_size, report.job.nodes) == (8, ("gpu-17",))
    assert [one.rank for one in report.ranks if one.culprit] == [3]
    third = report.ranks[3]
    assert (third.pid, third.state, third.cpu_ratio) == (41003, "S hrtimer_nanosleep", 0.0)
    assert report.groups[third.group or 0].ranks == "3"
    assert report.gaps[0].way_out.startswith("run as root")
    assert report.nodes[0].ranks == "0-7"


def test_threads_and_log_only_for_culprits_and_one_of_each_group() -> None:
    report = samples.report(samples.sleeping())
    assert [one.rank for one in report.ranks if one.threads] == [0, 3]
    assert [one.rank for one in report.ranks if one.log] == [0, 3]
    main = report.ranks[3].threads[0]
    assert (main.name, main.state) == ("MainThread", "S hrtimer_nanosleep")
    assert main.frames[0] == "slow_data_loader (train.py:7)"


def test_a_lost_rank_has_no_pid_and_no_threads() -> None:
    lost = samples.report(samples.lost()).ranks[2]
    assert (lost.pid, lost.state, lost.cpu_ratio, lost.threads) == (None, "", None, ())
    assert lost.culprit


def test_nobody_named_means_nobody_marked() -> None:
    assert not any(one.culprit for one in samples.report(samples.unknown()).ranks)


def test_detail_is_bounded_however_many_groups() -> None:
    report = samples.report(samples.scattered())
    assert sum(bool(one.threads) for one in report.ranks) == MAX_DETAILED


def test_two_captures_of_one_node_are_two_moments_and_the_latest_counts() -> None:
    made = samples.sleeping()
    later = replace(made.captures[0], taken_at=samples.TAKEN_AT + 5, duration_seconds=0.1)
    report = samples.report(samples.Sample(made.judgement, (later, *made.captures)))
    assert [moment.at[17:19] for moment in report.captures] == ["41", "46"]
    assert [node.taken_at[17:19] for node in report.nodes] == ["46"]


def test_many_nodes_at_once_are_one_moment() -> None:
    report = samples.report(samples.huge(64, 9))
    assert [(moment.ranks, moment.note) for moment in report.captures] == [(64, "8 nodes")]
    assert len(report.nodes) == len(report.job.nodes) == 8


def test_equal_gaps_are_told_once() -> None:
    made = samples.sleeping()
    later = replace(made.captures[0], taken_at=samples.TAKEN_AT + 5)
    report = samples.report(samples.Sample(made.judgement, (*made.captures, later)))
    assert len(report.gaps) == 1


def test_the_blamed_worker_of_a_culprit_is_shown_first() -> None:
    made = samples.sleeping()
    children = tuple(
        ProcessCapture(
            pid=pid,
            kind="worker",
            stacks=(ThreadStack(tid=pid, name="MainThread", frames=samples.SLEEP_STACK),),
        )
        for pid in (500, 501)
    )
    ranks = list(made.judgement.ranks)
    capture = ranks[3].capture
    assert capture is not None
    ranks[3] = replace(
        ranks[3],
        capture=replace(capture, children=children),
        is_=replace(ranks[3].is_, worker_pid=501),
    )
    report = samples.report(
        samples.Sample(replace(made.judgement, ranks=tuple(ranks)), made.captures)
    )
    names = [thread.name for thread in report.ranks[3].threads]
    assert names == [
        "MainThread",
        "tqdm_monitor",
        "worker 501: MainThread",
        "worker 500: MainThread",
    ]


def test_a_native_stack_replaces_the_python_one() -> None:
    made = samples.sleeping()
    ranks = list(made.judgement.ranks)
    capture = ranks[3].capture
    assert capture is not None
    native = (
        ThreadStack(tid=41003, frames=(samples.frame("nanosleep libc.so.6"), *samples.SLEEP_STACK)),
    )
    process = replace(capture.process, native=native)
    ranks[3] = replace(ranks[3], capture=replace(capture, process=process))
    judgement = replace(made.judgement, ranks=tuple(ranks))
    main = samples.report(samples.Sample(judgement, made.captures)).ranks[3].threads[0]
    assert main.name == "MainThread"
    assert main.frames[:2] == ("nanosleep (libc.so.6)", "slow_data_loader (train.py:7)")


def test_endless_recursion_in_a_job_stays_readable() -> None:
    made = samples.sleeping()
    deep = TreeNode(frame="f", ranks="3", count=1)
    for _ in range(800):
        deep = TreeNode(frame="f", ranks="3", count=1, children=(deep,))
    groups = (replace(made.judgement.groups[0], frames=("f (x.py:1)",) * 5_000),)
    judgement = replace(made.judgement, tree=(deep,), groups=groups, group_of={3: 0})
    report = samples.report(samples.Sample(judgement, made.captures))
    depth, node = 0, report.tree[0]
    while node.children:
        depth, node = depth + 1, node.children[0]
    assert depth == MAX_DEPTH
    assert node.frame == "… deeper frames left out"
    assert len(report.groups[0].frames) == MAX_FRAMES + 1


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("3fa9c1", "3fa9c1"),
        ("../../etc/passwd", "etc-passwd"),
        ("", "job"),
        ("a" * 300, "a" * 64),
        ("<script>", "script"),
    ],
)
def test_an_id_is_a_safe_file_name(job: str, expected: str) -> None:
    assert make_id(0.0, job) == f"19700101T000000Z-{expected}"


def test_ids_sort_by_time() -> None:
    times = [1e9, 1.2e9, 1.7e9, 1.9e9]
    ids = [make_id(at, "z") for at in times]
    assert ids == sorted(ids)


def test_times_round_to_the_next_second() -> None:
    assert rfc3339(59.9996) == "1970-01-01T00:01:00.000Z"


def test_eight_thousand_ranks_build_quickly() -> None:
    made = samples.huge()
    started = time.process_time()
    report = samples.report(made)
    assert time.process_time() - started < 5.0  # 0.2 s where it was measured
    assert len(report.ranks) == 8192


def test_build_is_pure() -> None:
    made = samples.mismatch()
    assert samples.report(made) == samples.report(made)
