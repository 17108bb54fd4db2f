"""Who waits in a collective with a root may wait for one that others have passed: played jobs, and nobody but the one at fault is named."""

import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import capture, process, rank, still
from shared.diagnosis.rooted import rooted_job, stacks_of

JOBS = [job for job in map(rooted_job, range(700)) if job.hangs]


@pytest.mark.parametrize("recorders", [False, True], ids=["stacks", "stacks and recorders"])
def test_only_the_rank_that_left_the_common_path_is_named(recorders: bool) -> None:
    right = 0
    for seed, job in enumerate(JOBS):
        found = diagnose([stacks_of(job, recorders=recorders)]).diagnosis
        named = {one.rank for one in found.culprits}
        if found.confidence is not Confidence.LOW:
            assert named <= {job.fault}, (seed, job, found.summary)
        right += named == {job.fault}
    assert right > len(JOBS) / 4, "silence alone is no answer"


JOIN = "join (horovod/torch/mpi_ops.py:1100)"
SYNCHRONIZE = "synchronize (horovod/torch/mpi_ops.py:1010)"
MATCH = ("_match_all_reduce_for_bwd_pass (torch/nn/parallel/distributed.py:1970)", "main_hook (torch/nn/parallel/distributed.py:300)", "__exit__ (torch/distributed/algorithms/join.py:250)")  # fmt: skip
REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:2924)"


@pytest.mark.parametrize(
    ("ended", "others", "named"),
    [
        ((JOIN,), (SYNCHRONIZE,), []),
        (MATCH, (REDUCE,), []),
        ((SYNCHRONIZE,), (SYNCHRONIZE,), [1]),  # controls: another place without having joined
        (("barrier (torch/distributed/distributed_c10d.py:4000)",), (REDUCE,), [1]),
    ],
    ids=["Horovod", "PyTorch", "Horovod elsewhere", "PyTorch elsewhere"],
)
def test_who_has_joined_since_its_data_has_ended_holds_up_nobody(
    ended: tuple[str, ...], others: tuple[str, ...], named: list[int]
) -> None:
    ranks = [
        rank(n, process(*(ended if n == 1 else others), "main (train.py:344)" if n == 1 else "step (train.py:210)", wchan="futex_wait_queue", move=still()))
        for n in range(4)
    ]  # fmt: skip
    found = diagnose([capture(*ranks)]).diagnosis
    assert [one.rank for one in found.culprits] == named, found.summary
