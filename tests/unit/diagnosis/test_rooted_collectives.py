"""Who waits in a collective with a root may wait for one that others have passed: played jobs, and nobody but the one at fault is named."""

import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.diagnose import diagnose
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
